"""A SavedModel, asked for what its signatures offer. Needs TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.export.saved_model import latest_version
from keras_transformer.playground.played_model import (
    Offer,
    looked_at,
    translations_of,
)
from keras_transformer.playground.questions import (
    AttentionQuestion,
    TranslationQuestion,
)
from keras_transformer.serving.batching import Workers
from keras_transformer.serving.config import ServingConfig
from keras_transformer.serving.errors import bad_request
from keras_transformer.serving.served_model import ServedModel

# What must be there of each signature that is used.
_SIGNATURES = {
    "serving_default": ({"text"}, {"translation", "score"}),
    "nbest": ({"text"}, {"translations", "scores"}),
    "complete": ({"text", "prefix"}, {"translation", "score"}),
    "sample": ({"text", "temperature", "seed"}, {"translation", "score"}),
    "align": (
        {"text"}, {"translation", "source_tokens", "target_tokens", "attention"},
    ),
}  # fmt: skip
_WITHOUT = {
    "nbest": "It gives one translation: it has no signature `nbest`.",
    "complete": "It takes no beginning: it has no signature `complete`.",
    "sample": "It draws no translations: it has no signature `sample`.",
    "align": "It does not tell what it looks at: it has no signature `align`.",
}
_FIXED = "Its beam was fixed when it was exported; a training run can be given another."
_OF_THE_BEST = (
    "It tells what its best translation looks at, as the mean of the heads of one "
    "layer; a training run tells it of every translation, layer and head."
)


class ExportedModel:
    """A SavedModel that `export` wrote.

    Args:
        path: Its directory: NAME/VERSION, or NAME for its latest version.

    Raises:
        FileNotFoundError: If there is no SavedModel.
        ValueError: If it is no translator.
    """

    def __init__(self, path: str | Path):
        version = latest_version(path)
        model = ServedModel(version, Workers(1), ServingConfig())
        self._signatures = {
            name: signature
            for name, signature in model.signatures.items()
            if name in _SIGNATURES and _fits(signature, *_SIGNATURES[name])
        }
        self._model = model  # Keeps the signatures alive.
        if "serving_default" not in self._signatures:
            raise ValueError(
                f"{version} must be a translator that `export` wrote: a SavedModel "
                "whose `serving_default` takes `text` and gives `translation` and "
                f"`score`. Received: signatures {', '.join(model.signatures) or 'none'}"
            )
        missing = [_WITHOUT[name] for name in _WITHOUT if name not in self._signatures]
        missing.append(_FIXED)
        if "align" in self._signatures:
            missing.append(_OF_THE_BEST)
        self.offer = Offer(
            name=str(path), kind="SavedModel", beam_size=None,
            several="nbest" in self._signatures, prefix="complete" in self._signatures,
            sampling="sample" in self._signatures,
            attention="best" if "align" in self._signatures else "none",
            layers=0, layer=0, heads=0, missing=tuple(missing),
        )  # fmt: skip
        self.translate(TranslationQuestion(0, "."))  # The first run is slow.

    def translate(self, question: TranslationQuestion) -> dict[str, Any]:
        """Answers a `TranslationQuestion`.

        Raises:
            RequestError: If it asks for what the SavedModel has no signature for.
        """
        count = question.count
        if question.temperature is not None:
            outputs = self._run(
                "sample",
                text=[question.text] * count,
                temperature=np.full(count, question.temperature, "float32"),
                seed=np.arange(question.seed, question.seed + count, dtype="int64"),
            )
        elif question.beam_size is not None:
            raise bad_request(_FIXED)
        elif question.prefix.strip():
            outputs = self._run(
                "complete", text=[question.text], prefix=[question.prefix]
            )
        else:
            # Also for one translation: it is the one that `align` tells of.
            name = "nbest" if "nbest" in self._signatures else "serving_default"
            outputs = self._run(name, text=[question.text])
        return {
            "translations": translations_of(outputs)[:count],
            "truncated": bool(outputs.get("truncated", [False])[0]),
        }

    def attend(self, question: AttentionQuestion) -> dict[str, Any]:
        """Answers an `AttentionQuestion` about its best translation.

        Raises:
            RequestError: If it asks about another translation, a layer or a head, or
                the SavedModel does not tell what it looks at.
        """
        if question.layer is not None or question.head is not None:
            raise bad_request(_OF_THE_BEST)
        outputs = self._run("align", text=[question.text])
        row = {name: values[0] for name, values in outputs.items()}
        if row["translation"].decode("utf-8") != question.translation:
            raise bad_request(_OF_THE_BEST)
        return looked_at(row, row["attention"])

    def _run(self, name, **columns):
        if name not in self._signatures:
            raise bad_request(_WITHOUT[name])
        inputs = {
            key: np.array([text.encode("utf-8") for text in column], object)
            if isinstance(column, list)
            else column
            for key, column in columns.items()
        }
        return self._signatures[name].run(inputs)


def _fits(signature, inputs, outputs):
    return set(signature.inputs) == inputs and outputs <= set(signature.outputs)
