"""The kinds of self-attention that options name, and what each of them takes.

Configurations and layers check by the same table, and it needs no Keras. A new kind is
an entry here, a word in `AttentionName` and a function in `layers.self_attention`,
which makes the layer.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

AttentionName: TypeAlias = Literal[
    "dot-product", "local", "relu", "additive", "linear", "performer", "lsh"
]

# Positions that enter self-attention itself, in place of vectors added before it.
RELATIVE_POSITIONS = ("rotary", "alibi")


class AttentionKind(NamedTuple):
    """What a kind of self-attention takes, beside heads, widths and biases.

    Attributes:
        needs_window: Whether it needs an `attention_window`; others take none.
        positions: Those of `RELATIVE_POSITIONS` that can enter it.
        takes_fewer_keys: Whether keys and values may have fewer heads than queries.
        drops_weights: Whether it has attention weights to drop in training.
        takes_any_mask: Whether its mask may differ between queries.
    """

    needs_window: bool = False
    positions: tuple[str, ...] = RELATIVE_POSITIONS
    takes_fewer_keys: bool = True
    drops_weights: bool = True
    takes_any_mask: bool = True


# Of features, with no score of a query and a key.
_SUMS = AttentionKind(
    positions=(), takes_fewer_keys=False, drops_weights=False, takes_any_mask=False
)
ATTENTION_KINDS: dict[str, AttentionKind] = {
    "dot-product": AttentionKind(),
    "local": AttentionKind(needs_window=True, takes_any_mask=False),
    "relu": AttentionKind(),
    "additive": AttentionKind(positions=("alibi",)),
    "linear": _SUMS,
    "performer": _SUMS,
    "lsh": _SUMS._replace(drops_weights=True),
}


def check_attention(
    attention: str, *, num_heads: int, attention_window: int | None,
    num_key_value_heads: int | None, positions: Any, attention_dropout_rate: float,
) -> None:  # fmt: skip
    """Checks that options of a layer's attention go together.

    Args:
        attention: A key of `ATTENTION_KINDS`.
        num_heads: Heads of queries.
        attention_window: Positions to each side that a query sees, or `None`.
        num_key_value_heads: Heads of keys and values, or `None` for `num_heads`.
        positions: What enters self-attention itself, or `None`.
        attention_dropout_rate: Share of the attention weights dropped in training.

    Raises:
        ValueError: If there is no such attention, or it lacks what another option asks
            for.
    """
    if attention not in ATTENTION_KINDS:
        raise ValueError(
            f"`attention` must be one of {', '.join(map(repr, ATTENTION_KINDS))}. "
            f"Received: attention={attention!r}"
        )
    kind, received = ATTENTION_KINDS[attention], f"Received: attention={attention!r}"
    if kind.needs_window != (attention_window is not None):
        raise ValueError(
            "`attention_window`, the positions to each side that one sees, must be "
            "given with attention='local', and with no other. "
            f"{received}, attention_window={attention_window}"
        )
    is_name = isinstance(positions, str)
    takes = positions in kind.positions if is_name else bool(kind.positions)
    if positions is not None and not takes:
        others = "".join(f", or {name!r}" for name in kind.positions)
        raise ValueError(
            f"`positions` must be added as vectors to the input of {attention} "
            f"attention{others}: no others can enter it. {received}, "
            f"positions={positions!r}"
        )
    if num_heads % (num_key_value_heads or num_heads):
        raise ValueError(
            "`num_heads` must be a multiple of `num_key_value_heads`. Received: "
            f"num_heads={num_heads}, num_key_value_heads={num_key_value_heads}"
        )
    if num_key_value_heads not in (None, num_heads) and not kind.takes_fewer_keys:
        raise ValueError(
            f"`num_key_value_heads` must be None with attention={attention!r}, whose "
            "heads have keys of their own. "
            f"{received}, num_key_value_heads={num_key_value_heads}"
        )
    if attention_dropout_rate and not kind.drops_weights:
        raise ValueError(
            f"`attention_dropout_rate` must be 0 with attention={attention!r}, which "
            f"has no weights to drop. {received}, "
            f"attention_dropout_rate={attention_dropout_rate}"
        )
