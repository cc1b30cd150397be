"""A training run, asked for whatever its model can do. Needs TensorFlow."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.apps.serving.tensors import RequestError
from keras_transformer.search.pipeline import Pipeline
from keras_transformer.search.run_directory import example_sources
from keras_transformer.search.translator import Translator
from keras_transformer.text.words import labels_of, words_of

MOST_CHARACTERS = 2000
MOST_TRANSLATIONS = 10
MOST_HYPOTHESES = 16
_MOST_PIPELINES = 8  # Kept with their graphs, one for each beam size or layer.


class PlayedRun:
    """The translator of a run; its methods answer the page.

    An argument that is out of range is a `RequestError`.
    """

    def __init__(self, directory: str | Path):
        self._translator = Translator.load(directory)
        self._config = self._translator.config.replace(n_best=None)
        model = self._translator.model
        tokenizers = self._translator.tokenizers

        def pipeline(**changes):
            return Pipeline(model, tokenizers, self._config.replace(**changes))

        self._pipeline = functools.lru_cache(_MOST_PIPELINES)(pipeline)
        layers = model.config.num_decoder_layers
        beam_size = min(self._config.beam_size, MOST_HYPOTHESES)
        self.facts = {
            "name": str(directory),
            "beam_size": beam_size,
            "layers": layers,
            "layer": self._config.alignment_layer % layers,
            "heads": 0,
            "max_text_length": MOST_CHARACTERS,
            "examples": example_sources(directory),
        }
        # The first run of a graph is slow.
        self.translate(".")
        first = self._pipeline(alignment_layer=self.facts["layer"])
        looked = first.answer("attend", ["."], [[tokenizers.target.end_id]])
        self.facts["heads"] = looked["attention"].shape[1]

    def translate(
        self,
        text: str,
        count: int = 1,
        beam_size: int | None = None,
        prefix: str = "",
        temperature: float | None = None,
        seed: int = 0,
    ) -> dict[str, Any]:
        """Returns translations with scores and tokens: `count` of a search, the one
        that begins with `prefix`, or draws at a `temperature`, the first with `seed`.
        """
        _check_text("text", text)
        _check_text("prefix", prefix)
        _check_number("count", count, 1, MOST_TRANSLATIONS)
        beam_size = self.facts["beam_size"] if beam_size is None else beam_size
        _check_number("beam_size", beam_size, 1, MOST_HYPOTHESES)
        _check_number("seed", seed, 0, 2**31 - 1)
        if temperature is not None:
            _check_number("temperature", temperature, 0, 10, (int, float))
            seeds = range(seed, seed + count)
            name = "sample"
            columns = ([text] * count, [temperature] * count, seeds)
        elif prefix.strip():
            name = "complete"
            columns = ([text], [prefix])
        else:
            name = "nbest"
            columns = ([text],)
        pipeline = self._pipeline(beam_size=beam_size)
        outputs = pipeline.answer(name, *columns, with_ids=True)
        pad_id = self._translator.tokenizers.target.pad_id
        texts = outputs.get("translations", outputs.get("translation")).reshape(-1)
        scores = outputs.get("scores", outputs.get("score")).reshape(-1)
        rows = outputs["ids"].reshape(len(texts), -1)
        found = [
            {"text": text, "score": float(score), "tokens": row[row != pad_id].tolist()}
            for text, score, row in zip(texts, scores, rows, strict=True)
            if np.isfinite(score)  # Of a place that the search did not fill it is not.
        ]
        return {
            "translations": found[:count],
            "truncated": bool(outputs["truncated"][0]),
        }

    def attend(
        self, text: str, tokens: list[int], layer: int, head: int | None = None
    ) -> dict[str, Any]:
        """Returns `weights` [T, S] of the `tokens` of a translation, and both sides'
        pieces and words; without a `head` they are the mean of the layer's heads.
        """
        _check_text("text", text)
        _check_number("layer", layer, 0, self.facts["layers"] - 1)
        longest = self._config.longest_output
        if not isinstance(tokens, list) or not 1 <= len(tokens) <= longest:
            raise RequestError(f"`tokens` must be a list of 1 to {longest} ids.")
        for token in tokens:
            largest = self._translator.tokenizers.target.vocabulary_size - 1
            _check_number("tokens", token, 0, largest)
        pipeline = self._pipeline(alignment_layer=layer)
        outputs = pipeline.answer("attend", [text], [tokens])
        weights = outputs["attention"][0]
        if head is None:
            weights = weights.mean(axis=0)
        else:
            _check_number("head", head, 0, len(weights) - 1)
            weights = weights[head]
        answer: dict[str, Any] = {}
        for side in ("source", "target"):
            pieces = [piece for piece in outputs[f"{side}_tokens"][0] if piece]
            answer[side] = {"pieces": labels_of(pieces), "words": words_of(pieces)}
        return answer | {"weights": np.round(weights.astype("float64"), 4).tolist()}


def _check_text(name, text):
    if not isinstance(text, str) or len(text) > MOST_CHARACTERS:
        received = f"{len(text):,}" if isinstance(text, str) else repr(text)
        raise RequestError(
            f"`{name}` must be a text of at most {MOST_CHARACTERS:,} characters. "
            f"Received: {received:.50}"
        )


def _check_number(name, value, least, most, types=(int,)):
    if type(value) not in types or not least <= value <= most:
        raise RequestError(
            f"`{name}` must be a number from {least} to {most}. Received: {value!r:.50}"
        )
