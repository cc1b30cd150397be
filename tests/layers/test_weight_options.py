"""Initializers, regularizers and constraints reach the weights that they are for."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import (
    DecoderLayer,
    EncoderLayer,
    FeatureEmbedding,
    FeedForward,
    LinearAttention,
    LinformerAttention,
    LSHAttention,
    PerformerAttention,
    PositionalEmbedding,
)

LAYERS = {
    "feed-forward": (FeedForward, {"d_ff": 5}, ((None, None, 6),)),
    "encoder": (
        EncoderLayer,
        {"num_heads": 2, "d_ff": 5, "use_bias": True},
        ((None, None, 6),),
    ),
    "decoder": (
        DecoderLayer,
        {"num_heads": 2, "d_ff": 5, "use_bias": True},
        ((None, None, 6), (None, None, 7)),
    ),
    "linear": (LinearAttention, {"num_heads": 2, "key_dim": 3}, ((None, None, 6),)),
    "performer": (
        PerformerAttention,
        {"num_heads": 2, "key_dim": 3},
        ((None, None, 6),),
    ),
    "linformer": (
        LinformerAttention,
        {"num_heads": 2, "key_dim": 3, "max_length": 5, "projected_length": 2},
        ((None, None, 6),),
    ),
    "hashing": (LSHAttention, {"num_heads": 2, "key_dim": 3}, ((None, None, 6),)),
}


@pytest.fixture(params=LAYERS)
def make(request):
    """A function of options that makes a built layer."""
    layer_class, options, shapes = LAYERS[request.param]

    def made(**more):
        layer = layer_class(**options, **more)
        layer.build(*shapes)
        return layer

    return made


def of_kind(layer, kind):
    """Matrices over positions are kernels too."""
    ends = (f"_{kind}", "_mixture") if kind == "kernel" else (f"_{kind}",)
    return [weight for weight in layer.weights if weight.name.endswith(ends)]


@pytest.mark.parametrize("kind", ("kernel", "bias"))
def test_they_reach_every_weight_of_their_kind_alone(make, kind):
    regularizer, constraint = keras.regularizers.L2(0.5), keras.constraints.MaxNorm(3)
    options = {
        f"{kind}_initializer": keras.initializers.Constant(0.25),
        f"{kind}_regularizer": regularizer,
        f"{kind}_constraint": constraint,
    }
    layer = make(**options)
    chosen = of_kind(layer, kind)
    others = [w for w in layer.weights if not any(w is one for one in chosen)]
    assert len(chosen) > 1
    for weight in chosen:
        assert (ops.convert_to_numpy(weight) == 0.25).all(), weight.path
        assert (weight.regularizer, weight.constraint) == (regularizer, constraint)
    for weight in others:
        assert weight.regularizer is None and weight.constraint is None, weight.path
    size = sum(int(np.prod(weight.shape)) for weight in chosen)
    loss = sum(float(loss) for loss in layer.losses)
    assert loss == pytest.approx(0.5 * 0.25**2 * size)
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()


def test_an_initializer_draws_other_numbers_for_every_weight():
    layer = EncoderLayer(2, 6, kernel_initializer=keras.initializers.GlorotUniform())
    layer.build((None, None, 6))
    kernels = [ops.convert_to_numpy(weight) for weight in of_kind(layer, "kernel")]
    assert len(kernels) == len({kernel.tobytes() for kernel in kernels}) == 6


@pytest.mark.parametrize("name", ("encoder", "decoder"))
def test_epsilon_reaches_the_norms(name):
    layer_class, options, shapes = LAYERS[name]
    for epsilon, more in ((1e-6, {}), (0.5, {"layer_norm_epsilon": 0.5})):
        layer = layer_class(**options, **more)
        layer.build(*shapes)
        norms = [n for n in vars(layer) if n.endswith("_norm")]
        assert len(norms) == (3 if name == "decoder" else 2)
        assert {getattr(layer, norm).epsilon for norm in norms} == {epsilon}


@pytest.mark.parametrize("layer_class", (PositionalEmbedding, FeatureEmbedding))
def test_they_reach_the_table_of_tokens_alone(layer_class):
    layer = layer_class(
        11, 6, positions="learned", max_length=5,
        embeddings_initializer=keras.initializers.Constant(0.25),
        embeddings_regularizer=keras.regularizers.L2(0.5),
        embeddings_constraint=keras.constraints.MaxNorm(3),
    )  # fmt: skip
    layer.build((None, None, 3) if layer_class is FeatureEmbedding else (None, None))
    assert (ops.convert_to_numpy(layer.embeddings) == 0.25).all()
    assert layer.embeddings.constraint is layer.token_embedding.embeddings_constraint
    assert layer.position_embeddings.constraint is None
    assert [float(loss) for loss in layer.losses] == pytest.approx([0.5 * 0.0625 * 66])
    again = layer_class.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()


def test_a_constraint_and_an_adapter_exclude_each_other():
    layer = FeedForward(5, kernel_constraint=keras.constraints.NonNeg())
    layer.build((None, None, 6))
    with pytest.raises(ValueError, match="constraint on hidden_kernel, output_kernel"):
        layer.enable_lora(2)
    layer = EncoderLayer(2, 5, bias_constraint=keras.constraints.NonNeg())
    layer.build((None, None, 6))
    layer.enable_lora(2)


def test_a_regularizer_of_a_matrix_is_one_of_its_adapters():
    regularizer = keras.regularizers.L2(0.5)
    layer = FeedForward(5, kernel_regularizer=regularizer)
    layer.build((None, None, 6))
    layer.enable_lora(2)
    adapters = [w for w in layer.trainable_weights if w.name.startswith("lora_")]
    assert len(adapters) == 4
    assert all(weight.regularizer is regularizer for weight in adapters)
