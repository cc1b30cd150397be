"""A model and how its outputs are chosen: base of `Generator`, `LanguageSampler`."""

from __future__ import annotations

import functools

import keras

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding import Constraints, DecodingResult, SpecialIds, sample


class ModelSearch:
    """A model that decodes step by step, and how its outputs are chosen.

    Args:
        model: A `Seq2Seq` or a `LanguageModel`.
        config: How its outputs are chosen.
        weights: `model.decoding_weights()` to keep, or `None` to make them from the
            model's present weights each time.
    """

    def __init__(self, model, config: DecodingConfig, weights=None):
        self.model = model
        self.config = config
        self.weights = weights

    def _step(self):
        weights = self.weights or self.model.decoding_weights()
        return functools.partial(self.model.decode_step, weights=weights)

    def _special_ids(self):
        sizes = self.model.config
        return SpecialIds(sizes.pad_id, sizes.start_id, sizes.end_id)

    def _constraints(self, longest, prefix=None):
        """Returns what outputs of `longest` tokens or fewer must obey."""
        size = self.config.no_repeat_ngram_size
        # A graph may not know its outputs' length, and would compare size - 1 times.
        if isinstance(longest, int) and size >= longest:
            size = 0
        never = None if self.config.allow_unknown else self.model.config.unknown_id
        return Constraints(self.config.min_output_length, size, prefix, never)

    def _draw(self, state, constraints, **options) -> DecodingResult:
        """Draws outputs: `sample` with this model and the options of `config`."""
        return sample(
            self._step(),
            state,
            special_ids=self._special_ids(),
            top_k=self.config.top_k,
            top_p=self.config.top_p,
            alpha=self.config.length_penalty,
            length_penalty_form=self.config.length_penalty_form,
            constraints=constraints,
            **options,
        )


def as_graph(function, signature):
    """Returns a function that runs as one graph on TensorFlow; `function` elsewhere.

    Args:
        function: A function of tensors.
        signature: The shape and dtype of each, such as a `keras.InputSpec`; sizes that
            may vary are `None`, and one graph serves them all.
    """
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    signature = [tf.TensorSpec(spec.shape, spec.dtype) for spec in signature]
    return tf.function(function, input_signature=signature, autograph=False)
