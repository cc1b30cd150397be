"""Ids to longer ids: a language model and the sampler together."""

from __future__ import annotations

import functools

import keras
import numpy as np
from keras import ops

from keras_transformer.decoding import (
    Constraints,
    DecodingResult,
    SpecialIds,
    sample,
)
from keras_transformer.models.language_model import LanguageModel


class LanguageSampler:
    """Continues texts, drawing one token after the other.

    Works as `decoding.sample`, whose arguments have the same names: a token is drawn
    with the probability softmax(logits / temperature), among the `top_k` most probable,
    then among the fewest most probable whose probability reaches `top_p`. The keys and
    values of the tokens before are kept, so a token costs the same at every length.

    Args:
        model: A `LanguageModel`.
        top_k: Most probable tokens to draw among, or `None` for all.
        top_p: Probability to draw among, in (0, 1], or `None` for all.
        min_length: Shortest text (tokens, prompt and end token counted).
        no_repeat_ngram_size: No n-gram of this size is drawn twice; 0 allows all.
    Call arguments:
        prompts: Integer array (B, P), the texts' first tokens without a start token,
            each row padded at its end; (B, 0) for none.
        length: Longest text (tokens, prompt and end token counted).
        temperature: Divides the logits: 0 is greedy, more is more diverse.
        seed: Row i draws with the seed `seed` + i, whatever the batch around it.
    Returns:
        A `DecodingResult` with N = 1: `ids` (B, 1, `length`) begin with the prompt.
        Log-probabilities are the model's, the prompt's tokens counted.
    Raises:
        ValueError: If an argument is out of range, or learned positions are fewer than
            `length`.

    Example:
        >>> sampler = LanguageSampler(model, top_k=40)
        >>> result = sampler(np.array([[5, 9]]), length=20, temperature=0.8, seed=1)
        >>> result.ids[0, 0]  # 20 tokens, the first of them 5 and 9
    """

    def __init__(
        self,
        model: LanguageModel,
        top_k: int | None = None,
        top_p: float | None = None,
        min_length: int = 1,
        no_repeat_ngram_size: int = 0,
    ):
        self.model = model
        self.top_k = top_k
        self.top_p = top_p
        self.min_length = min_length
        self.no_repeat_ngram_size = no_repeat_ngram_size
        self._draws = {}

    def __call__(
        self, prompts, length: int, temperature: float = 1.0, seed: int = 0
    ) -> DecodingResult:
        prompts = np.asarray(prompts, "int32")
        _check(prompts, length, temperature)
        self._check_ids(prompts)
        rows = len(prompts)
        uniforms = [
            np.random.default_rng(seed + row).random(length) for row in range(rows)
        ]
        if length not in self._draws:
            self._draws[length] = self._draw_of(length)
        return DecodingResult(
            *self._draws[length](
                prompts,
                np.array(uniforms, "float32").reshape(rows, length),
                np.full(rows, temperature, "float32"),
            )
        )

    def _check_ids(self, prompts):
        size = self.model.config.vocabulary_size
        if np.any((prompts < 0) | (prompts >= size)):
            raise ValueError(
                "`prompts` must hold ids of the vocabulary, from 0 to "
                f"{size - 1}. Received: ids from {prompts.min()} to {prompts.max()}"
            )

    def _draw_of(self, length):
        """Returns the function that draws texts of `length`; on TensorFlow a graph."""
        draw = functools.partial(self._draw, length)
        if keras.backend.backend() != "tensorflow":
            return lambda *inputs: draw(*map(ops.convert_to_tensor, inputs))
        import tensorflow as tf

        signature = [
            tf.TensorSpec([None, None], tf.int32),
            tf.TensorSpec([None, length], tf.float32),
            tf.TensorSpec([None], tf.float32),
        ]
        return tf.function(draw, input_signature=signature, autograph=False)

    def _draw(self, length, prompts, uniforms, temperature):
        rows = ops.shape(prompts)[0]
        step = functools.partial(
            self.model.decode_step, weights=self.model.decoding_weights()
        )
        result = sample(
            step,
            self.model.start_decoding(rows, length),
            uniforms=uniforms,
            temperature=temperature,
            max_lengths=ops.full((rows,), length, dtype="int32"),
            limit=length,
            special_ids=self._ids(),
            top_k=self.top_k,
            top_p=self.top_p,
            alpha=0.0,
            constraints=Constraints(
                self.min_length, self.no_repeat_ngram_size, prompts
            ),
        )
        return tuple(result)

    def _ids(self):
        config = self.model.config
        return SpecialIds(config.pad_id, config.start_id, config.end_id)


def _check(prompts, length, temperature):
    if prompts.ndim != 2:
        raise ValueError(
            "`prompts` must have one row a text, shape (B, P). Received: shape "
            f"{prompts.shape}"
        )
    if length < max(1, prompts.shape[1]):
        raise ValueError(
            "`length` must be at least 1 and that of the prompts. Received: "
            f"length={length}, prompts of {prompts.shape[1]} tokens"
        )
    if not 0 <= temperature < float("inf"):
        raise ValueError(
            "`temperature` must be finite and at least 0. Received: "
            f"temperature={temperature}"
        )
