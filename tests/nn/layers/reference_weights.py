"""Reads and writes the weights of layers as `numpy_transformer` names them."""

import numpy as np
from keras import ops

from keras_transformer.nn.layers.attention import prepare_mask
from tests.reference import numpy_transformer as reference
from tests.reference.numpy_attention import kind_of_self_attention

NAMES = {
    "attention": (
        "query_kernel",
        "key_kernel",
        "value_kernel",
        "output_kernel",
        "query_bias",
        "key_bias",
        "value_bias",
        "output_bias",
        "score_kernel",
        "random_features",
    ),
    "ssru": ("input_kernel", "forget_kernel", "forget_bias"),
    "feed_forward": ("hidden_kernel", "hidden_bias", "output_kernel", "output_bias"),
    "norm": ("gamma", "beta"),
}
PARTS = {
    "self_attention": "attention",
    "cross_attention": "attention",
    "feed_forward": "feed_forward",
}


def variable_of(layer, name):
    """The weight of a layer that the reference calls `query_kernel`, or `None`."""
    dense, _, part = name.rpartition("_")
    dense = getattr(layer, f"{dense}_dense", None)
    return getattr(layer, name, None) if dense is None else getattr(dense, part, None)


def randomise(layer, rng):
    """Gives every weight, biases and norms too, a random value of order 1.

    Random features stay as they were drawn.
    """
    for weight in layer.weights:
        if weight.name == "random_features":
            continue
        values = rng.standard_normal(weight.shape)
        if weight.name == "gamma":
            values = 1 + 0.3 * values
        elif len(weight.shape) < 2:
            values = 0.3 * values
        elif "embeddings" in weight.name:
            values = values * weight.shape[1] ** -0.5
        else:
            values = values * weight.shape[0] ** -0.5
        weight.assign(values.astype("float32"))
    return layer


def weights_of(layer, kind):
    """Float64 weights of one attention, feed-forward network or norm."""
    found = {name: variable_of(layer, name) for name in NAMES[kind]}
    return {
        name: ops.convert_to_numpy(variable).astype(np.float64)
        for name, variable in found.items()
        if variable is not None
    }


def sublayers_of(layer):
    """The names of the sub-layers of an `EncoderLayer` or `DecoderLayer`."""
    return [n for n in PARTS if n != "cross_attention" or layer.attends_to_source]


def layer_weights_of(layer, epsilon=reference.EPSILON):
    """Float64 weights of an `EncoderLayer` or `DecoderLayer`, as nested dicts."""
    weights = {}
    for name in sublayers_of(layer):
        sublayer, kind = getattr(layer, name), PARTS[name]
        kind = "ssru" if hasattr(sublayer, "forget_dense") else kind
        weights[name] = weights_of(sublayer, kind)
        norm = weights_of(getattr(layer, f"{name}_residual").norm, "norm")
        weights[f"{name}_norm"] = norm | {"epsilon": epsilon}
    return weights


def self_attention_of(config):
    """What the reference is told of the self-attention that a config names."""
    kind = getattr(config, "attention", "dot-product")
    if kind == "dot-product" and config.positions not in ("rotary", "alibi"):
        return {}
    return {"function": kind_of_self_attention(kind, config.positions)}


def model_weights_of(model, sides=("source", "target")):
    """Float64 weights of a `Transformer`, as `numpy_transformer.transformer` wants.

    `sides` are those that have an embedding of ids.
    """

    def array(variable):
        return ops.convert_to_numpy(variable).astype(np.float64)

    def norm(layer):
        return weights_of(layer, "norm") | {"epsilon": config.layer_norm_epsilon}

    def layers(part):
        stack = getattr(model, f"{part}_layers")
        found = [layer_weights_of(layer, config.layer_norm_epsilon) for layer in stack]
        for weights in found:
            weights["self_attention"] |= self_attention_of(config)
        return found

    config = model.config
    weights = {f"{part}_layers": layers(part) for part in ("encoder", "decoder")}
    for side in sides:
        embedding = getattr(model, f"{side}_embedding")
        weights[f"{side}_embeddings"] = array(embedding.embeddings)
        if config.positions == "learned":
            weights[f"{side}_positions"] = array(embedding.position_embeddings)
        elif config.positions in ("rotary", "alibi"):
            weights[f"{side}_positions"] = np.zeros((99, config.d_model))
        elif config.positions != "sinusoidal":
            is_marian = config.positions == "sinusoidal-marian"
            positions = reference.halved_positions(99, config.d_model, is_marian)
            weights[f"{side}_positions"] = positions
        if config.normalize_embeddings:
            weights[f"{side}_embedding_norm"] = norm(model.embedding_norms[side])
    if config.tied_embeddings == "none":
        weights["output_embeddings"] = array(model.output_dense.kernel).T
    else:
        weights["output_embeddings"] = weights["target_embeddings"]
    if config.output_bias:
        weights["output_bias"] = array(model.output_bias)
    if config.norm_first:
        weights |= {
            "encoder_norm": norm(model.encoder_norm),
            "decoder_norm": norm(model.decoder_norm),
        }
    return weights


def set_weights(layer, values):
    """Assigns nested dicts of arrays to a built layer's weights."""
    for name, value in values.items():
        if not isinstance(value, dict):
            variable_of(layer, name).assign(value.astype("float32"))
        elif name.endswith("_norm"):
            around = getattr(layer, name.replace("norm", "residual"))
            set_weights(around.norm, value)
        else:
            set_weights(getattr(layer, name), value)


def assert_close(actual, expected, tolerance=1e-5):
    """Compares a tensor of any backend with an array."""
    actual = ops.convert_to_numpy(actual)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def past_mask(index, length, hypotheses=1):
    """The mask of a step for hypotheses that have all kept their place, prepared."""
    own = np.eye(hypotheses, dtype=bool)[:, None, :]  # (N, 1, N)
    past = own & (np.arange(length) <= index)[:, None]  # (N, L, N)
    mask = ops.convert_to_tensor(past.reshape(1, 1, hypotheses, -1))
    return prepare_mask(mask, "float32")
