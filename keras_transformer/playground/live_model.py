"""A training run, asked for whatever its model can do. Needs TensorFlow."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_transformer.generation.generator import as_graph
from keras_transformer.generation.pipeline import INPUTS, TEXT, Pipeline
from keras_transformer.playground.played_model import (
    Offer,
    looked_at,
    translations_of,
)
from keras_transformer.playground.questions import (
    MOST_HYPOTHESES,
    AttentionQuestion,
    TranslationQuestion,
)
from keras_transformer.serving.errors import bad_request
from keras_transformer.translator import Translator

# Graphs that are kept, such as those of a few sizes of the beam.
_MOST_GRAPHS = 8
_SPECS = INPUTS | {
    "attend": {"text": TEXT, "ids": tf.TensorSpec([None, None], "int32")}
}


class LiveModel:
    """The translator of a training run.

    Args:
        path: Directory of the run.

    Raises:
        FileNotFoundError: If a part is missing.
        ValueError: If a part is damaged, or the model is no translator.
    """

    def __init__(self, path: str | Path):
        self._translator = Translator.load(path)
        self._config = self._translator.config
        self._graph = functools.lru_cache(_MOST_GRAPHS)(self._make_graph)
        layers = self._translator.model.config.num_decoder_layers
        layer = self._config.alignment_layer % layers
        self._layers = layers
        self._run("nbest", ["."], beam_size=self._beam_size(None))
        end = [[self._translator.tokenizers.target.end_id]]
        heads = self._run("attend", ["."], end, layer=layer)["attention"].shape[1]
        self.offer = Offer(
            name=str(path), kind="run", beam_size=self._beam_size(None), several=True,
            prefix=True, sampling=True, attention="any", layers=layers, layer=layer,
            heads=heads if heads > 1 else 0, missing=(),
        )  # fmt: skip

    def translate(self, question: TranslationQuestion) -> dict[str, Any]:
        """Answers a `TranslationQuestion`."""
        texts, count = [question.text], question.count
        if question.temperature is not None:
            temperatures = [question.temperature] * count
            seeds = [question.seed + i for i in range(count)]
            outputs = self._run("sample", texts * count, temperatures, seeds)
        else:
            beam_size = self._beam_size(question.beam_size)
            if question.prefix.strip():
                outputs = self._run(
                    "complete", texts, [question.prefix], beam_size=beam_size
                )
            else:
                outputs = self._run("nbest", texts, beam_size=beam_size)
        pad_id = self._translator.tokenizers.target.pad_id
        return {
            "translations": translations_of(outputs, pad_id)[:count],
            "truncated": bool(outputs["truncated"][0]),
        }

    def attend(self, question: AttentionQuestion) -> dict[str, Any]:
        """Answers an `AttentionQuestion`.

        Raises:
            RequestError: If there is no such layer, head or token.
        """
        if question.tokens is None:
            raise bad_request("`tokens` is missing: a run needs the translation's ids.")
        layer = self.offer.layer if question.layer is None else question.layer
        _check_below("layer", layer, self._layers)
        most = self._translator.tokenizers.target.vocabulary_size
        _check_below("tokens", max(question.tokens), most)
        if len(question.tokens) > self._config.longest_output:
            raise bad_request("`tokens` are more than any translation has.")
        row = self._run("attend", [question.text], [question.tokens], layer=layer)
        weights = row.pop("attention")[0]
        row = {name: values[0] for name, values in row.items()}
        if question.head is None:
            return looked_at(row, weights.mean(axis=0))
        _check_below("head", question.head, len(weights))
        return looked_at(row, weights[question.head])

    def _beam_size(self, wanted):
        return min(wanted or self._config.beam_size, MOST_HYPOTHESES)

    def _run(self, name, *columns, **changes):
        """Returns the outputs of a function of the pipeline, as arrays."""
        function = self._graph(name, *changes.items())
        specs = _SPECS[name].values()
        tensors = [
            tf.constant(column, spec.dtype)
            for column, spec in zip(columns, specs, strict=True)
        ]
        return {key: value.numpy() for key, value in function(*tensors).items()}

    def _make_graph(self, name, *changes):
        """Returns a function of the pipeline of the run's search with changes."""
        config = self._config.replace(n_best=None)
        changes = dict(changes)
        if "layer" in changes:
            config = config.replace(alignment_layer=changes["layer"])
        if "beam_size" in changes:
            config = config.replace(beam_size=changes["beam_size"])
        model, tokenizers = self._translator.model, self._translator.tokenizers
        pipeline = Pipeline(model, tokenizers, config)
        if name == "attend":
            function = pipeline.attend
        else:
            function = functools.partial(pipeline.run, name, with_ids=True)
        return as_graph(function, _SPECS[name].values())


def _check_below(name, value, most):
    if value >= most:
        raise bad_request(
            f"`{name}` must be from 0 to {most - 1}. Received: {name}={value}"
        )
