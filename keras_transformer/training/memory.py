"""How much memory a training step needs, estimated before it runs."""

from __future__ import annotations

import math
from typing import NamedTuple

from keras_transformer.config import TransformerConfig
from keras_transformer.kernels.crossentropy import chunk_tokens
from keras_transformer.models.seq2seq import Seq2Seq

# Numbers that a sub-layer keeps for its gradient, for each token: of each head's
# scores (the weights, those after dropout and what dropout left), of the model's width
# (inputs, projections, outputs, norms) and of the hidden layer. They were fitted to
# XLA's reports of steps compiled in float32: within 3 % for seven sizes of layers. An
# SSRU's, of the model's width, is fitted to two sizes.
_OF_SCORES, _OF_ATTENTION, _OF_FEED_FORWARD, _OF_HIDDEN = 3.0, 11.0, 6.0, 2.25
_OF_SSRU = 12.0
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


def training_memory(model: Seq2Seq, rows: int, length: int) -> TrainingMemory | None:
    """Estimates the memory of a training step as XLA compiles it.

    Args:
        model: The model, compiled, with the optimizer's variables built.
        rows: Sentences of a batch, B.
        length: Tokens of its sources and of its targets.

    Returns:
        The estimate, or `None` for a model other than a Transformer.
    """
    if not isinstance(model.config, TransformerConfig):
        return None
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
    attentions = config.num_encoder_layers + 2 * config.num_decoder_layers
    networks = config.num_encoder_layers + config.num_decoder_layers
    ssrus = 0
    if config.decoder_self_attention == "ssru":
        ssrus = config.num_decoder_layers
    attentions -= ssrus
    scores = config.num_heads * length
    numbers = attentions * (_OF_SCORES * scores + _OF_ATTENTION * config.d_model)
    numbers += ssrus * _OF_SSRU * config.d_model
    numbers += networks * (_OF_FEED_FORWARD * config.d_model + _OF_HIDDEN * config.d_ff)
    size = 4 if model.compute_dtype == "float32" else 2
    classes = config.target_vocabulary_size
    rows = min(tokens, chunk_tokens(classes)) + config.d_model
    return round(tokens * numbers * size + _OF_LOGITS * 4 * classes * rows)


def _bytes(variables):
    return sum(4 * math.prod(v.shape) for v in variables)
