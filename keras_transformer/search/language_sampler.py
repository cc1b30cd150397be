"""Sampling of texts with a language model, without TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_transformer.config import DecodingConfig
from keras_transformer.config.options import check_number
from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.own_model import OwnLanguageModel
from keras_transformer.search.compiled import Compiled
from keras_transformer.search.generator import check_steps, rules_of, special_ids_of
from keras_transformer.search.sampling import sample_tokens
from keras_transformer.search.tokens import (
    Constraints,
    DecodingResult,
    as_rows,
    check_constraints,
    check_texts,
)


class LanguageSampler:
    """Samples continuations of texts.

    Args:
        model: A `LanguageModel`; or any Keras model that maps ids (B, T) to logits
            (B, T, V), where no position sees a later one. Ids 0 to 3 are padding,
            start, end and unknown. It computes all positions again for each token.
        top_k: Number of most probable tokens to draw from; default all.
        top_p: Probability to draw from, in (0, 1]; default all.
        min_output_length: Shortest text (tokens, prompt and end token counted), at
            least 1.
        no_repeat_ngram_size: Size of n-grams that are never repeated; 0 allows all.
    Call arguments:
        prompts: Integer array (B, P), the first tokens of the texts without a start
            token, each row padded at its end; (B, 0) for none.
        length: Longest text (tokens, prompt and end token counted).
        temperature: Divisor of the logits, from 0 (greedy) to infinity (uniform).
        seed: Row i uses the seed `seed` + i, whatever its batch.
    Returns:
        A `DecodingResult` with one text per prompt: `ids` (B, 1, `length`) begin with
        the prompt. Log-probabilities are the model's and include the prompt.
    Raises:
        TypeError: If `model` is not such a model.
        ValueError: If an argument is out of range, there are fewer learned positions
            than `length`, a position sees a later one, or a model with your own classes
            decodes otherwise than it is trained.

    Example:
        >>> sampler = LanguageSampler(model, top_k=40)
        >>> result = sampler(np.array([[5, 9]]), length=20, temperature=0.8, seed=1)
        >>> result.ids[0, 0]  # 20 tokens, beginning with 5 and 9
    """

    def __init__(
        self,
        model: keras.Model,
        top_k: int | None = None,
        top_p: float | None = None,
        min_output_length: int = 1,
        no_repeat_ngram_size: int = 0,
    ) -> None:
        check_constraints(Constraints(min_output_length, no_repeat_ngram_size))
        columns = {}  # Padding would make each step of a user's model slower.
        if isinstance(model, LanguageModel):
            longest = model.config.max_positions
            columns = {0: longest, 1: longest}
            check_steps(model, longest)
        elif not isinstance(model, OwnLanguageModel):
            model = OwnLanguageModel(model)
        self.model = model
        self.config = DecodingConfig(
            top_k=top_k,
            top_p=top_p,
            min_output_length=min_output_length,
            no_repeat_ngram_size=no_repeat_ngram_size,
            length_penalty=0.0,
        )
        self._drawn = Compiled(self._draw, model, columns, cut={2: 1})

    def __call__(
        self,
        prompts: Sequence[Sequence[int]],
        length: int,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> DecodingResult:
        prompts = np.asarray(as_rows("prompts", prompts), "int32")
        if prompts.ndim != 2:
            raise ValueError(
                "`prompts` must have one row a text, shape (B, P). Received: shape "
                f"{prompts.shape}"
            )
        check_number("length", length, int, minimum=1)
        if length < prompts.shape[1]:
            raise ValueError(
                "`length` must be at least that of the prompts. Received: "
                f"length={length}, prompts of {prompts.shape[1]} tokens"
            )
        check_number("temperature", temperature, finite=False, minimum=0)
        check_number("seed", seed, int, minimum=0)
        sizes = self.model.config
        check_texts("prompts", prompts, special_ids_of(sizes), sizes.vocabulary_size)
        self.model.config.check_positions(length, "`length`")
        batch = len(prompts)
        uniforms = np.empty((batch, length), "float32")
        for i in range(batch):
            uniforms[i] = np.random.default_rng(seed + i).random(length)
        temperatures = np.full(batch, temperature, "float32")
        lengths = np.full(batch, length, "int32")
        # A graph of any length would compare every token of an n-gram that is too long.
        size = self.config.no_repeat_ngram_size
        size = size if size < length else 0
        return self._drawn(
            prompts, uniforms, temperatures, lengths, no_repeat_ngram_size=size
        )

    def _draw(self, prompts, uniforms, temperature, lengths, no_repeat_ngram_size=0):
        batch, length = ops.shape(uniforms)
        config = self.config.replace(no_repeat_ngram_size=no_repeat_ngram_size)
        weights = self.model.decoding_weights()
        return sample_tokens(
            step=functools.partial(self.model.decode_step, weights=weights),
            state=self.model.start_decoding(batch, length),
            uniforms=uniforms,
            temperature=temperature,
            max_lengths=lengths,
            limit=length,
            top_k=config.top_k,
            top_p=config.top_p,
            **rules_of(self.model, config, length, prompts),
        )
