"""A check that decoding step by step equals a call."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops

from keras_transformer.config.options import check_number
from keras_transformer.testing.calls import (
    as_array,
    check_close,
    drawn,
    generator_of,
    name_of,
)
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
    """Checks that decoding step by step returns the logits of a call.

    It decodes random tokens with `model.start_decoding` and `model.decode_step`.
    Hypotheses change places at every step; half way all sentences but the last leave,
    by `model.resize_decoding`.

    Args:
        model: A `Transformer`, a `LanguageModel`, or a model with their methods.
        source: Source ids (B, S); default two rows of `length` ids, the second with
            padding. A language model has none.
        length: Positions to decode, T.
        beam_size: Hypotheses per sentence, N.
        seed: Seed of the random ids and moves.
        tolerance: Largest difference, as a share of the largest logit.

    Raises:
        AssertionError: If logits differ; its row is one of the B * N hypotheses.
        ValueError: If `length` is below 2.

    Example:
        >>> sizes = {"source_vocabulary_size": 50, "target_vocabulary_size": 50}
        >>> config = TransformerConfig.preset("tiny", **sizes)
        >>> assert_cached_equals_uncached(Transformer(config))
    """
    check_number("length", length, int, minimum=2)
    check_number("beam_size", beam_size, int, minimum=1)
    rng = generator_of(seed, tolerance)
    config = model.config
    if hasattr(model, "encode"):
        if source is None:
            size = config.source_vocabulary_size
            source = drawn((2, length), size, config.pad_id, rng)
            source[1, (length + 1) // 2 :] = config.pad_id
        source = start = as_array(source)
        sentences = len(source)
        classes = config.target_vocabulary_size
    else:
        source = None
        start = 2
        sentences = 2
        classes = config.vocabulary_size
    tokens = drawn((length, sentences, beam_size), classes, config.pad_id, rng)
    tokens[0] = config.start_id
    parents = rng.integers(beam_size, size=tokens.shape).astype("int32")
    parents[0] = np.arange(beam_size)
    kept = np.arange(sentences, dtype="int32")
    paths = np.zeros((sentences, beam_size, 0), "int32")
    weights = model.decoding_weights()
    state = model.start_decoding(start, length // 2, beam_size)
    for t in range(length):
        if t == length // 2:
            kept = kept[-1:]
            paths = paths[-1:]
            state = model.resize_decoding(state, ops.convert_to_tensor(kept), length)
        moved = np.take_along_axis(paths, parents[t, kept][..., None], axis=1)
        paths = np.concatenate([moved, tokens[t, kept][..., None]], axis=-1)
        ids = ops.convert_to_tensor(tokens[t, kept].reshape(-1))
        places = ops.convert_to_tensor(parents[t, kept])
        logits, state = model.decode_step(ids, places, state, weights)
        # One length is compiled once.
        targets = np.full((len(kept) * beam_size, length), config.pad_id, "int32")
        targets[:, : t + 1] = paths.reshape(-1, t + 1)
        inputs = ops.convert_to_tensor(targets)
        if source is not None:
            rows = np.repeat(source[kept], beam_size, axis=0)
            inputs = (ops.convert_to_tensor(rows), inputs)
        whole = model(inputs)
        check_close(
            as_array(logits)[:, None],
            as_array(whole)[:, t : t + 1],
            tolerance,
            f"{name_of(model)} decodes otherwise step by step than at once",
            first=(int(kept[0]) * beam_size, t),
        )
