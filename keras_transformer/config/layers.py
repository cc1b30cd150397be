"""Sizes of the Transformer's layers, which its encoder, decoder and relatives share."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from keras_transformer.attention_kinds import (
    ATTENTION_KINDS,
    RELATIVE_POSITIONS,
    check_attention,
)
from keras_transformer.config.options import (
    MOST_LAYERS,
    MOST_ROWS,
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
    attention: str = option(
        "dot-product",
        "self-attention of encoder and decoder: the paper's, that to a window around "
        "each position, with ReLU in place of softmax, with additive scores, linear in "
        "the length, by random features of the softmax, or to positions that hash "
        "alike",
        choices=tuple(ATTENTION_KINDS),
    )
    attention_window: int | None = option(
        None,
        "positions to each side that local attention sees",
        minimum=1,
        maximum=MOST_ROWS,
    )
    num_key_value_heads: int | None = option(
        None,
        "heads of keys and values, a divisor of num_heads; default num_heads",
        minimum=1,
        maximum=MOST_UNITS,
    )
    dropout_rate: float = option(
        0.1, "dropout of sub-layer outputs and embeddings", minimum=0.0, below=1.0
    )
    attention_dropout_rate: float = option(
        0.1, "dropout of attention weights", minimum=0.0, below=1.0
    )
    activation_dropout_rate: float = option(
        0.1, "dropout inside the feed-forward network", minimum=0.0, below=1.0
    )

    # An option of those that have any.
    positions: ClassVar[str | None] = None

    def __post_init__(self):
        super().__post_init__()
        if self.key_dim is None and self.d_model % self.num_heads:
            raise ValueError(
                "`d_model` must be a multiple of `num_heads` unless `key_dim` is "
                f"given. Received: d_model={self.d_model}, num_heads={self.num_heads}"
            )
        check_attention(
            self.attention,
            num_heads=self.num_heads,
            attention_window=self.attention_window,
            num_key_value_heads=self.num_key_value_heads,
            positions=self.relative_positions,
            attention_dropout_rate=self.attention_dropout_rate,
        )
        key_dim = self.key_dim or self.d_model // self.num_heads
        if self.positions == "rotary" and key_dim % 2:
            raise ValueError(
                "`key_dim`, by default d_model / num_heads, must be even for rotary "
                f"positions. Received: {key_dim}, positions='rotary'"
            )

    @property
    def relative_positions(self) -> str | None:
        """What of `positions` enters self-attention itself, or `None`: vectors do."""
        return self.positions if self.positions in RELATIVE_POSITIONS else None

    def layer_options(self) -> dict[str, Any]:
        """Returns the arguments of `EncoderLayer`, `DecoderLayer` and `CausalLayer`.

        They take all of these options but `d_model`: it is the width of their input.
        """
        names = [field.name for field in dataclasses.fields(LayerConfig)]
        options = {name: getattr(self, name) for name in names if name != "d_model"}
        return options | {"positions": self.relative_positions}


@documented
@dataclasses.dataclass(frozen=True)
class EncoderConfig(LayerConfig):
    """Sizes of a stack of encoder layers; the defaults are the paper's base model."""

    num_layers: int = option(6, "encoder layers", minimum=1, maximum=MOST_LAYERS)
    positions: str | None = option(
        None,
        "positions that enter self-attention itself; default none, as vectors may be "
        "added before",
        choices=RELATIVE_POSITIONS,
    )
