"""Options that layers, models and flags share."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, ClassVar, Literal

from keras_transformer.config.options import (
    LAYERS,
    RATE,
    UNITS,
    Config,
    documented,
    option,
)

Sinusoids = Literal["sinusoidal", "sinusoidal-halves", "sinusoidal-marian"]
# Positions inside self-attention, in place of vectors added to its input.
PositionsInside = Literal["rotary", "alibi"]
RELATIVE_POSITIONS = typing.get_args(PositionsInside)
# Positions whose vectors are two halves, or rotate pairs of units.
IN_PAIRS = ("sinusoidal-halves", "sinusoidal-marian", "rotary")


def check_groups(num_heads, num_key_value_heads):
    """Returns the heads of keys and values; `ValueError` for a wrong number."""
    groups = num_key_value_heads or num_heads
    if num_heads % groups:
        raise ValueError(
            "`num_heads` must be a multiple of `num_key_value_heads`. Received: "
            f"num_heads={num_heads}, num_key_value_heads={num_key_value_heads}"
        )
    return groups


def head_width(d_model, num_heads, key_dim):
    """Returns `key_dim` or its default; `ValueError` if the width has none."""
    if key_dim is None and d_model % num_heads:
        raise ValueError(
            "`d_model` must be a multiple of `num_heads` unless `key_dim` is "
            f"given. Received: d_model={d_model}, num_heads={num_heads}"
        )
    return key_dim or d_model // num_heads


def check_even(name, width, positions):
    """Raises `ValueError` for an odd width of vectors whose units come in pairs."""
    if positions in IN_PAIRS and width % 2:
        raise ValueError(
            f"`{name}` must be even with {positions} positions. Received: "
            f"{name}={width}"
        )


# Self-attention of causal layers.
CausalKind = Literal["dot-product", "ssru"]
CAUSAL_KINDS = typing.get_args(CausalKind)


def check_ssru(name, kind, positions):
    """Raises `ValueError` for positions inside an SSRU, named by an option."""
    if kind == "ssru" and positions is not None:
        raise ValueError(
            "`positions` must be vectors added to the input of an SSRU. Received: "
            f"{name}='ssru', positions={positions!r}"
        )


def _dropout_rate(default):
    """Returns the option `dropout_rate`."""
    return option(
        default,
        "dropout of sub-layers and embeddings; also of attention weights and in the "
        "feed-forward, unless theirs is given",
        **RATE,
    )


@documented
@dataclasses.dataclass(frozen=True)
class SublayerConfig(Config):
    """Options of one encoder or decoder layer, which drops nothing by default."""

    num_heads: int = option(8, "attention heads, h in the paper", **UNITS)
    d_ff: int = option(2048, "width of the feed-forward layer", **UNITS)
    key_dim: int | None = option(
        None, "width of a head's query and key; default d_model / num_heads", **UNITS
    )
    value_dim: int | None = option(None, "width of a value; default key_dim", **UNITS)
    activation: str = option("relu", "feed-forward activation, a Keras name")
    norm_first: bool = option(False, "normalise before each sub-layer (pre-norm)")
    layer_norm_epsilon: float = option(
        1e-6, "constant added to the variance in layer normalisation", above=0.0
    )
    use_bias: bool = option(False, "add biases to the attention projections")
    num_key_value_heads: int | None = option(
        None, "heads of keys and values, a divisor of num_heads; default all", **UNITS
    )
    dropout_rate: float = _dropout_rate(0.0)
    attention_dropout_rate: float | None = option(
        None, "dropout of attention weights; default dropout_rate", **RATE
    )
    activation_dropout_rate: float | None = option(
        None, "dropout in the feed-forward; default dropout_rate", **RATE
    )

    def __post_init__(self):
        super().__post_init__()
        check_groups(self.num_heads, self.num_key_value_heads)

    def rate(self, own: float | None) -> float:
        """Returns the rate of a part: its own, or `dropout_rate` in place of `None`."""
        return self.dropout_rate if own is None else own


@documented
@dataclasses.dataclass(frozen=True)
class LayerConfig(SublayerConfig):
    """Sizes of a layer of attention and feed-forward; the defaults are the paper's."""

    dropout_rate: float = _dropout_rate(0.1)
    d_model: int = option(512, "width of the model", **UNITS)

    positions: ClassVar[str | None]  # an option of every subclass

    def __post_init__(self):
        super().__post_init__()
        key_dim = head_width(self.d_model, self.num_heads, self.key_dim)
        check_even("key_dim", key_dim, self.relative_positions)

    @property
    def relative_positions(self) -> PositionsInside | None:
        """`positions` if self-attention itself uses them, else `None`."""
        return self.positions if self.positions in RELATIVE_POSITIONS else None

    def layer_options(self) -> dict[str, Any]:
        """Returns the arguments of an encoder or decoder layer."""
        fields = dataclasses.fields(SublayerConfig)
        options = {field.name: getattr(self, field.name) for field in fields}
        return options | {"positions": self.relative_positions}


@documented
@dataclasses.dataclass(frozen=True)
class EncoderConfig(LayerConfig):
    """Sizes of a stack of encoder layers; the defaults are the paper's base model."""

    num_layers: int = option(6, "encoder layers", **LAYERS)
    positions: PositionsInside | None = option(
        None,
        "positions inside self-attention; default none",
        choices=RELATIVE_POSITIONS,
    )
