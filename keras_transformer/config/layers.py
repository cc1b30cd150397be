"""Sizes of the Transformer's layers, which its encoder, decoder and relatives share."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_transformer.config.options import (
    MOST_LAYERS,
    MOST_UNITS,
    Config,
    documented,
    option,
)


@documented
@dataclasses.dataclass(frozen=True)
class LayerConfig(Config):
    """Sizes of a layer of attention and feed-forward; the defaults are the paper's."""

    d_model: int = option(512, "width of the model", minimum=1, maximum=MOST_UNITS)
    d_ff: int = option(
        2048, "width of the feed-forward layer", minimum=1, maximum=MOST_UNITS
    )
    num_heads: int = option(8, "attention heads, H", minimum=1, maximum=MOST_UNITS)
    key_dim: int | None = option(
        None,
        "width of a head's query and key; default d_model / num_heads",
        minimum=1,
        maximum=MOST_UNITS,
    )
    value_dim: int | None = option(
        None, "width of a head's value; default key_dim", minimum=1, maximum=MOST_UNITS
    )
    activation: str = option("relu", "feed-forward activation, a Keras name")
    norm_first: bool = option(False, "normalise before each sub-layer (pre-norm)")
    layer_norm_epsilon: float = option(
        1e-6, "what layer normalisation adds to the variance", above=0.0
    )
    use_bias: bool = option(False, "add biases to the attention projections")
    dropout_rate: float = option(
        0.1, "dropout of sub-layer outputs and embeddings", minimum=0.0, below=1.0
    )
    attention_dropout_rate: float = option(
        0.1, "dropout of attention weights", minimum=0.0, below=1.0
    )
    activation_dropout_rate: float = option(
        0.1, "dropout inside the feed-forward network", minimum=0.0, below=1.0
    )

    def __post_init__(self):
        super().__post_init__()
        if self.key_dim is None and self.d_model % self.num_heads:
            raise ValueError(
                "`d_model` must be a multiple of `num_heads` unless `key_dim` is "
                f"given. Received: d_model={self.d_model}, num_heads={self.num_heads}"
            )

    def layer_options(self) -> dict[str, Any]:
        """Returns the arguments of `EncoderLayer`, `DecoderLayer` and `CausalLayer`.

        They take all of these options but `d_model`: it is the width of their input.
        """
        names = [field.name for field in dataclasses.fields(LayerConfig)]
        return {name: getattr(self, name) for name in names if name != "d_model"}


@documented
@dataclasses.dataclass(frozen=True)
class EncoderConfig(LayerConfig):
    """Sizes of a stack of encoder layers; the defaults are the paper's base model."""

    num_layers: int = option(6, "encoder layers", minimum=1, maximum=MOST_LAYERS)
