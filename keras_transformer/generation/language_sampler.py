"""Ids to longer ids: a language model and sampling."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding import Constraints, DecodingResult
from keras_transformer.decoding.arguments import check_temperature
from keras_transformer.decoding.constraints import check_constraints
from keras_transformer.generation.model_search import ModelSearch, as_graph
from keras_transformer.kernels.execution import shape_of
from keras_transformer.models.language_model import LanguageModel
from keras_transformer.types import TensorLike


class LanguageSampler(ModelSearch):
    """Continues texts, drawing one token after the other.

    Works as `decoding.sample` does: a token is drawn with the probability
    softmax(logits / temperature), among the `top_k` most probable, then among the
    fewest most probable whose probability reaches `top_p`. On TensorFlow the texts of a
    length are drawn by one graph.

    Args:
        model: A `LanguageModel`.
        top_k: Most probable tokens to draw among, or `None` for all.
        top_p: Probability to draw among, in (0, 1], or `None` for all.
        min_length: Shortest text (tokens, prompt and end token counted), at least 1.
        no_repeat_ngram_size: No n-gram of this size is drawn twice; 0 allows all.
    Call arguments:
        prompts: Integer array (B, P), the texts' first tokens without a start token,
            each row padded at its end; (B, 0) for none.
        length: Longest text (tokens, prompt and end token counted).
        temperature: Divides the logits: 0 is greedy, more is more diverse.
        seed: Row i draws with the seed `seed` + i, whatever the batch around it.
    Returns:
        A `DecodingResult` with one text a prompt: `ids` (B, 1, `length`) begin with the
        prompt. Log-probabilities are the model's, the prompt's tokens counted.
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
    ) -> None:
        check_constraints(Constraints(min_length, no_repeat_ngram_size))
        config = DecodingConfig(
            top_k=top_k,
            top_p=top_p,
            min_output_length=min_length,
            no_repeat_ngram_size=no_repeat_ngram_size,
            length_penalty=0.0,
        )
        super().__init__(model, config)
        self._functions = {}

    def __call__(
        self, prompts: Sequence[Sequence[int]], length: int, temperature: float = 1.0,
        seed: int = 0,
    ) -> DecodingResult:  # fmt: skip
        prompts = np.asarray(prompts, "int32")
        self._check_call(prompts, length, temperature)
        batch = len(prompts)
        uniforms = [
            np.random.default_rng(seed + i).random(length) for i in range(batch)
        ]
        inputs = (
            prompts,
            np.array(uniforms, "float32").reshape(batch, length),
            np.full(batch, temperature, "float32"),
        )
        return self._function(length)(*map(ops.convert_to_tensor, inputs))

    def _check_call(self, prompts, length, temperature):
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
        check_temperature(temperature)
        size = self.model.config.vocabulary_size
        if np.any((prompts < 0) | (prompts >= size)):
            raise ValueError(
                "`prompts` must hold ids of the vocabulary, from 0 to "
                f"{size - 1}. Received: ids from {prompts.min()} to {prompts.max()}"
            )

    def _function(self, length):
        """Returns the function that draws texts of `length`."""
        if length not in self._functions:
            signature = [
                keras.InputSpec(shape=(None, None), dtype="int32"),
                keras.InputSpec(shape=(None, length), dtype="float32"),
                keras.InputSpec(shape=(None,), dtype="float32"),
            ]
            self._functions[length] = as_graph(self.draw, signature)
        return self._functions[length]

    def draw(
        self, prompts: TensorLike, uniforms: TensorLike, temperature: TensorLike
    ) -> DecodingResult:
        """Continues texts with random numbers that the caller gives; checks nothing.

        Args:
            prompts: Integer tensor (B, P), as for a call.
            uniforms: Float tensor (B, L), numbers in [0, 1); L is the longest text.
            temperature: Float tensor (B,).

        Returns:
            As a call.
        """
        batch, length = shape_of(uniforms)
        return self._draw(
            self.model.start_decoding(batch, length),
            self._constraints(length, prompts),
            uniforms=uniforms,
            temperature=temperature,
            max_lengths=ops.full((batch,), length, dtype="int32"),
            limit=length,
        )
