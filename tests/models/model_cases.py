"""The table of the battery: a row a kind of model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest

from keras_transformer import (
    LanguageModel,
    LanguageModelConfig,
    MaskedCrossentropy,
    MaskedLanguageModel,
    Tagger,
    TextClassifier,
    Transformer,
    TransformerConfig,
)
from tests.models.encoder_cases import (
    CLASSES,
    FEATURES,
    HIDDEN,
    IDS,
    KINDS,
    TAGS,
    classes_expected,
    classifier,
    config_of,
    hidden_expected,
    masked_language_model,
    tagger,
    tags_expected,
)
from tests.models.transformer_cases import (
    IDS_IN,
    IDS_OUT,
    LANGUAGE_SIZES,
    LANGUAGE_VARIANTS,
    SIZES,
    SOURCE,
    TARGET_IN,
    TARGET_OUT,
    VARIANTS,
    logits_expected,
    next_expected,
)


class Case(NamedTuple):
    """A kind of model: how it is made, what it takes and what it must give.

    `make` takes `name` and `dtype`; `expected(model, inputs)` are the logits by the
    reference. Properties: "decodes" step by step, and so sees no later token; "no
    weights" of attention to drop.
    """

    model_class: type[keras.Model]
    make: Callable[..., keras.Model]
    inputs: Any
    targets: np.ndarray
    expected: Callable[[keras.Model, Any], np.ndarray]
    properties: frozenset[str] = frozenset()
    loss: keras.losses.Loss = MaskedCrossentropy(0.1)

    @property
    def ids(self):
        """The inputs whose positions the output has."""
        return keras.tree.flatten(self.inputs)[-1]

    @property
    def real(self):
        """Which rows of the output count: padding has none."""
        if self.targets.ndim == 1:
            return np.ones(len(self.targets), bool)
        return self.ids != 0 if self.ids.ndim == 2 else (self.ids != 0).any(axis=-1)


def _of_config(model_class, config_class, sizes):
    def make(dtype=None, **options):
        return model_class(config_class(**sizes), dtype=dtype, **options)

    return make


def _properties(options, *names):
    lacks = options.get("attention") in ("linear", "performer")
    return frozenset(names + ("no weights",) * lacks)


_OF_CLASSES = dict(
    model_class=TextClassifier, inputs=IDS, targets=CLASSES, expected=classes_expected,
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)  # fmt: skip
CASES = {
    f"Transformer: {name}": Case(
        Transformer,
        _of_config(Transformer, TransformerConfig, SIZES | options),
        (SOURCE, TARGET_IN),
        TARGET_OUT,
        logits_expected,
        _properties(options, "decodes"),
    )
    for name, options in VARIANTS.items()
}
CASES |= {
    f"LanguageModel: {name}": Case(
        LanguageModel,
        _of_config(LanguageModel, LanguageModelConfig, LANGUAGE_SIZES | options),
        IDS_IN,
        IDS_OUT,
        next_expected,
        _properties(options, "decodes"),
    )
    for name, options in LANGUAGE_VARIANTS.items()
}
CASES |= {
    "Tagger": Case(Tagger, tagger, IDS, TAGS, tags_expected),
    "Tagger of features": Case(
        Tagger, functools.partial(tagger, features=True), FEATURES, TAGS,
        tags_expected,
    ),
    "TextClassifier: mean": Case(
        make=functools.partial(classifier, "mean"), **_OF_CLASSES
    ),
    "TextClassifier: class token": Case(
        make=functools.partial(classifier, "class_token"), **_OF_CLASSES
    ),
    "MaskedLanguageModel": Case(
        MaskedLanguageModel, masked_language_model, IDS, HIDDEN, hidden_expected,
    ),
}  # fmt: skip
CASES |= {
    f"Tagger: {kind}": Case(
        Tagger, functools.partial(tagger, config_of(kind)), IDS, TAGS, tags_expected
    )
    for kind in KINDS
}

# By class, the first row.
FIRST = {case.model_class: name for name, case in reversed(CASES.items())}
ALL = pytest.mark.parametrize("name", list(CASES))
# The others by hand.
A_ROW_A_CLASS = pytest.mark.parametrize(
    "name",
    [
        name if name in FIRST.values() else pytest.param(name, marks=pytest.mark.slow)
        for name in CASES
    ],
)


def with_property(name):
    """Parametrises a test by the rows that have a property."""
    names = [case for case in CASES if name in CASES[case].properties]
    return pytest.mark.parametrize("name", names)
