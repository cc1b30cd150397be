"""The option `flash_attention`, with the fused kernel of each backend made to run."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.kernels.fused_attention import fused_attention
from keras_transformer.layers import (
    LocalAttention,
    MultiHeadAttention,
    ReluAttention,
)
from keras_transformer.layers.attention import recorded_attention
from tests.layers.reference_weights import assert_close, randomise
from tests.layers.test_multi_head_attention import (
    ARGUMENTS,
    CALLS,
    CROSS,
    QUERY,
    mask,
    shapes_of,
)

PACKAGE = "keras_transformer.layers"
KERNEL = "keras_transformer.kernels.fused_attention"
ON_JAX, ON_TORCH = (keras.backend.backend() == name for name in ("jax", "torch"))
# Calls that ask for no weights; JAX takes values of the keys' width alone.
FUSED = [
    name
    for name, (options, _, arguments) in CALLS.items()
    if "return_attention_scores" not in arguments
    and not (ON_JAX and "value_dim" in options)
]


@pytest.fixture
def kernel(monkeypatch):
    """Lets the backend use its kernel here too; whether each call says it must."""
    calls = []

    def counted(*tensors_and_must):
        *tensors, must = tensors_and_must
        calls.append(must)
        return fused_attention(*tensors)

    monkeypatch.setattr(f"{PACKAGE}.attention.obstacle", lambda *_: None)
    monkeypatch.setattr(f"{PACKAGE}.attention.fused_attention", counted)
    return calls


def two_layers(rng, *shapes, **options):
    """A layer that chooses by itself, and one that never does, of equal weights."""
    options = ARGUMENTS | options
    layers = [MultiHeadAttention(**options, flash_attention=f) for f in (None, False)]
    for layer in layers:
        layer.build(*shapes)
    randomise(layers[0], rng)
    layers[1].set_weights(layers[0].get_weights())
    return layers


@pytest.mark.one_case
@pytest.mark.parametrize("name", FUSED)
def test_every_call_gives_the_same_by_a_kernel(rng, kernel, name):
    options, inputs, arguments = CALLS[name]
    fused, general = two_layers(rng, *shapes_of(inputs, arguments), **options)
    expected = ops.convert_to_numpy(general(*inputs, **arguments))
    assert not kernel
    assert_close(fused(*inputs, **arguments), expected)
    assert len(kernel) == 1


@pytest.mark.parametrize("positions", ("rotary", "alibi"))
@pytest.mark.parametrize("heads", (4, 2, 1))
def test_positions_and_shared_heads(rng, kernel, positions, heads):
    options = {"num_heads": 4, "positions": positions, "num_key_value_heads": heads}
    fused, general = two_layers(rng, QUERY.shape, **options)
    allowed = mask(2, 5)
    arguments = {"mask": allowed, "use_causal_mask": True}
    expected = ops.convert_to_numpy(general(QUERY, **arguments))
    assert_close(fused(QUERY, **arguments), expected)
    assert len(kernel) == 1


def test_weights_are_never_a_kernels(rng, kernel):
    """They are asked for, recorded or dropped; a step of training without is fused."""
    layer, _ = two_layers(rng, *shapes_of(CROSS, {}), dropout=0.5)
    _, weights = layer(*CROSS, return_attention_scores=True)
    assert_close(np.sum(ops.convert_to_numpy(weights), axis=-1), np.ones((2, 3, 5)))
    with recorded_attention() as record:
        layer(*CROSS)
    assert len(record[layer]) == 1
    layer(*CROSS, training=True)
    assert not kernel
    layer(*CROSS, training=False)
    layer, _ = two_layers(rng, *shapes_of(CROSS, {}))
    layer(*CROSS, training=True)
    assert len(kernel) == 2


def test_other_functions_than_softmax_and_blocks_are_not_fused(kernel):
    ReluAttention(**ARGUMENTS)(QUERY)
    LocalAttention(**ARGUMENTS, window=2)(QUERY)
    assert not kernel


def test_keras_switches_it_off_for_layers_that_choose(kernel):
    keras.config.disable_flash_attention()
    try:
        MultiHeadAttention(**ARGUMENTS)(QUERY)
        assert not kernel
        MultiHeadAttention(**ARGUMENTS, flash_attention=True)(QUERY)
    finally:
        keras.config.enable_flash_attention()
    assert kernel == [True]


REFUSED = "`flash_attention` must be None or False"


@pytest.mark.skipif(ON_TORCH, reason="PyTorch has a kernel everywhere")
def test_true_is_refused_where_there_is_no_kernel(monkeypatch):
    monkeypatch.setattr(f"{KERNEL}.has_gpu", lambda: False)
    layer = MultiHeadAttention(**ARGUMENTS, flash_attention=True)
    assert MultiHeadAttention.from_config(layer.get_config()).flash_attention is True
    with pytest.raises(ValueError, match=f"{REFUSED} .*(has none|without a GPU)"):
        layer(QUERY)


def test_true_is_refused_where_weights_are_wanted(kernel):
    layer = MultiHeadAttention(**ARGUMENTS, flash_attention=True)
    message = f"{REFUSED} .* it returns no attention weights"
    with pytest.raises(ValueError, match=message):
        layer(QUERY, return_attention_scores=True)
    with recorded_attention(), pytest.raises(ValueError, match=message):
        layer(QUERY)
