"""How much memory a training step needs, estimated before it runs."""

from __future__ import annotations

import math
from typing import NamedTuple

from keras_transformer.kernels.crossentropy import chunk_tokens
from keras_transformer.layers.linear_attention import PerformerAttention
from keras_transformer.layers.local_attention import SMALLEST_BLOCK
from keras_transformer.models.seq2seq import Seq2Seq

# Numbers that a sub-layer keeps for its gradient, for each token: of each head's
# scores (the weights, those after dropout and what dropout left), of the model's width
# (inputs, projections, outputs, norms) and of the hidden layer. They were fitted to
# XLA's reports of steps compiled in float32: within 3 % for seven sizes of layers. The
# rest are fitted to two sizes: an SSRU's and linear attention's, of the model's width;
# ReLU's of the scores; additive attention's of the units behind each score; a
# Performer's of the features and their sums; and for each number that keys and values
# of fewer heads lack.
_OF_SCORES, _OF_ATTENTION, _OF_FEED_FORWARD, _OF_HIDDEN = 3.0, 11.0, 6.0, 2.25
_OF_SSRU, _OF_LINEAR, _OF_RELU_SCORES, _OF_KEYS_AND_VALUES = 12.0, 9.4, 2.0, 1.25
_OF_ADDITIVE_UNITS, _OF_FEATURES, _OF_SUMS = 2.0, 3.0, 1.6
# Float32 numbers that the loss needs for each logit of a chunk and each of the output
# matrix.
_OF_LOGITS = 2.5


class TrainingMemory(NamedTuple):
    """What a training step keeps (bytes).

    Attributes:
        weights: The weights and what else a model holds.
        optimizer: Moments and other variables of the optimizer.
        gradients: One number for each trainable weight.
        activations: What the forward pass keeps for the backward pass, and the loss.
    """

    weights: int
    optimizer: int
    gradients: int
    activations: int

    @property
    def total(self) -> int:
        return sum(self)


def training_memory(model: Seq2Seq, rows: int, length: int) -> TrainingMemory:
    """Estimates the memory of a training step as XLA compiles it.

    Args:
        model: The model, compiled, with the optimizer's variables built.
        rows: Sentences of a batch, B.
        length: Tokens of its sources and of its targets.
    """
    trainable = _bytes(model.trainable_variables)
    return TrainingMemory(
        weights=_bytes(model.variables),
        optimizer=_bytes(model.optimizer.variables),
        gradients=trainable,
        activations=_activations(model, rows * length, length),
    )


def _activations(model, tokens, length):
    """Bytes of what the layers and the loss keep."""
    config = model.config
    networks = config.num_encoder_layers + config.num_decoder_layers
    projected = _OF_ATTENTION * config.d_model - _OF_KEYS_AND_VALUES * _lacking(config)
    across = projected + _OF_SCORES * config.num_heads * length
    back = projected + _of_self_attention(config, length, causal=True)
    if config.decoder_self_attention == "ssru":
        back = _OF_SSRU * config.d_model
    around = projected + _of_self_attention(config, length, causal=False)
    numbers = config.num_encoder_layers * around
    numbers += config.num_decoder_layers * (back + across)
    numbers += networks * (_OF_FEED_FORWARD * config.d_model + _OF_HIDDEN * config.d_ff)
    size = 4 if model.compute_dtype == "float32" else 2
    classes = config.target_vocabulary_size
    rows = min(tokens, chunk_tokens(classes)) + config.d_model
    return round(tokens * numbers * size + _OF_LOGITS * 4 * classes * rows)


def _key_dim(config):
    return config.key_dim or config.d_model // config.num_heads


def _head_widths(config):
    """Widths of a head's key and value together."""
    return _key_dim(config) + (config.value_dim or _key_dim(config))


def _lacking(config):
    """Numbers a token that keys and values of fewer heads have less."""
    groups = config.num_key_value_heads or config.num_heads
    return (config.num_heads - groups) * _head_widths(config)


def _of_self_attention(config, length, causal):
    """Numbers a token that a self-attention keeps beside its projections."""
    heads, window = config.num_heads, config.attention_window
    if config.attention == "linear":
        return _OF_LINEAR * config.d_model
    if config.attention == "performer":
        features = heads * PerformerAttention(heads, _key_dim(config)).feature_dim
        value_dim = _head_widths(config) - _key_dim(config)
        return features * (_OF_FEATURES + _OF_SUMS * (value_dim + 1) / length)
    if config.attention == "local":
        block = max(window, SMALLEST_BLOCK)
        keys = block + (window if causal else 2 * window)
        copies = (keys / block - 1) * heads * _head_widths(config)
        return _OF_SCORES * heads * keys + copies
    of_scores = _OF_RELU_SCORES if config.attention == "relu" else _OF_SCORES
    if config.attention == "additive":
        of_scores += _OF_ADDITIVE_UNITS * _key_dim(config)
    return of_scores * heads * length


def _bytes(variables):
    return sum(4 * math.prod(v.shape) for v in variables)
