"""Whether decoding step by step computes what a call on whole sequences does."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops

from keras_transformer.testing.inputs import as_array, drawn
from keras_transformer.testing.outputs import check_close, name_of
from keras_transformer.types import TensorLike


def assert_cached_equals_uncached(
    model: Any,
    source: TensorLike | None = None,
    *,
    length: int = 6,
    beam_size: int = 3,
    seed: int = 0,
    tolerance: float = 1e-5,
) -> None:
    """Checks that decoding step by step gives the logits of a call on whole sequences.

    Random tokens are decoded with `model.start_decoding` and `model.decode_step`, by
    hypotheses that change places and split at every step; half way all sentences but
    the last leave and the state gets more room, with `model.resize_decoding`.

    Args:
        model: A `Transformer`, a `LanguageModel`, a subclass of one, or what has their
            `config` and methods.
        source: Ids of the sources (B, S); by default two, the second with padding. A
            language model has none.
        length: Positions that are decoded, T.
        beam_size: Hypotheses of a sentence, N.
        seed: Of the random ids and moves.
        tolerance: Largest difference allowed, as a share of the largest logit.

    Raises:
        AssertionError: If a step's logits are others. Its row is that of the B * N
            hypotheses, those of a sentence side by side.
        ValueError: If `length` is below 2.

    Example:
        >>> sizes = {"source_vocabulary_size": 50, "target_vocabulary_size": 50}
        >>> config = TransformerConfig.preset("tiny", **sizes)
        >>> assert_cached_equals_uncached(Transformer(config))
    """
    if length < 2:
        raise ValueError(f"`length` must be at least 2. Received: length={length}")
    search = _RandomSearch(model, source, length, beam_size, seed)
    for t in range(length):
        if t == length // 2:
            search.let_leave(length)
        logits, expected = search.step(t)
        check_close(
            logits,
            expected,
            tolerance,
            f"{name_of(model)} decodes otherwise step by step than at once",
            first=(int(search.kept[0]) * beam_size, t),
        )


class _RandomSearch:
    """Hypotheses that take random tokens and places, with a cache and without.

    Attributes:
        kept: Integers (B,), which sentences are still there.
    """

    def __init__(self, model, source, length, beam_size, seed):
        rng, config = np.random.default_rng(seed), model.config
        self.model, self.source, sentences = model, None, 2
        if hasattr(model, "encode"):
            self.source = _sources(config, rng) if source is None else as_array(source)
            sentences = len(self.source)
            start, classes = self.source, config.target_vocabulary_size
        else:
            start, classes = sentences, config.vocabulary_size
        shape, self.pad_id = (length, sentences, beam_size), config.pad_id
        self.tokens = drawn(shape, classes, self.pad_id, rng)
        self.tokens[0] = config.start_id
        self.parents = rng.integers(beam_size, size=shape).astype("int32")
        self.parents[0] = np.arange(beam_size)
        self.kept = np.arange(sentences)
        self.paths = np.zeros((sentences, beam_size, 0), "int32")
        self.weights = model.decoding_weights()
        self.state = model.start_decoding(start, length // 2, beam_size)

    def let_leave(self, length):
        """Keeps the last sentence, with room for `length` positions."""
        last = ops.convert_to_tensor(self.kept[-1:].astype("int32"))
        self.state = self.model.resize_decoding(self.state, last, length)
        self.kept, self.paths = self.kept[-1:], self.paths[-1:]

    def step(self, t):
        """Returns the logits (B * N, 1, V) of step t with the cache and without."""
        parents, tokens = self.parents[t, self.kept], self.tokens[t, self.kept]
        moved = np.take_along_axis(self.paths, parents[..., None], axis=1)
        self.paths = np.concatenate([moved, tokens[..., None]], axis=-1)
        ids, places = map(ops.convert_to_tensor, (tokens.reshape(-1), parents))
        logits, self.state = self.model.decode_step(
            ids, places, self.state, self.weights
        )
        # One length for all, which is compiled once.
        future = ((0, 0), (0, len(self.tokens) - t - 1))
        targets = np.pad(
            self.paths.reshape(-1, t + 1), future, constant_values=self.pad_id
        )
        targets = ops.convert_to_tensor(targets)
        if self.source is None:
            whole = self.model(targets)
        else:
            rows = np.repeat(self.source[self.kept], self.paths.shape[1], axis=0)
            whole = self.model((ops.convert_to_tensor(rows), targets))
        return as_array(logits)[:, None], as_array(whole)[:, t : t + 1]


def _sources(config, rng):
    source = drawn((2, 5), config.source_vocabulary_size, config.pad_id, rng)
    source[1, 3:] = config.pad_id
    return source
