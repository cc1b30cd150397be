"""Sizes of the models that have an encoder and no decoder."""

from __future__ import annotations

import dataclasses

from keras_transformer.layer_config import LayerConfig
from keras_transformer.options import MOST_LAYERS, option


@dataclasses.dataclass(frozen=True)
class EncoderConfig(LayerConfig):
    """Sizes of a stack of encoder layers; the defaults are the paper's base model."""

    num_layers: int = option(6, "encoder layers, N", minimum=1, maximum=MOST_LAYERS)
