"""Attention as grids of squares, with tokens on both axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from keras import ops
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keras_transformer.apps.plots.curves import panels
from keras_transformer.config.options import check_choice, check_number
from keras_transformer.models.transformer import Transformer
from keras_transformer.nn.layers.attention import recorded_attention
from keras_transformer.search.generator import Generator
from keras_transformer.types import TensorLike

if TYPE_CHECKING:  # It loads TensorFlow.
    from keras_transformer.search.translator import Translator

# Inches: a token's square, the space of labels and colour bar, the largest figure.
_SQUARE = 0.25
_MARGIN = 1.3
_LARGEST = 24.0
_SIGNS = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥"})
_NAMES = {"<s>": "(start)", "</s>": "(end)"}


def attention(
    weights: TensorLike,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    head: int | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draws what each query attends to: a row per query, a column per key.

    Args:
        weights: Attention weights (T, S), or (H, T, S) of several heads; or a mask.
        queries: T tokens, down the left side, or `None` for positions.
        keys: S tokens, along the top, or `None` for positions.
        head: Head to draw, counted from 0; -1 is the last; `None` for the mean of all.
        title: Text above the picture.
        ax: Axes to draw on, or `None` for a new figure.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If the shapes do not fit each other, or there is no such head.

    Example:
        >>> figure = plots.attention(np.eye(2), ["Guten", "Tag"], ["Good", "day"])
        >>> figure.savefig("attention.png")
    """
    heads = _heads(weights)
    if head is None:
        weights = heads.mean(axis=0)
    else:
        last = len(heads) - 1
        check_number("head", head, int, minimum=-len(heads), maximum=last)
        weights = heads[head]
    if ax is None:
        _, (ax,) = panels(1, _size(*weights.shape))
    image = _grid(ax, weights, queries, keys, title)
    figure = ax.get_figure(root=True)
    figure.colorbar(image, ax=ax, shrink=0.7, pad=0.02)
    return figure


def attention_heads(
    weights: TensorLike,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    title: str | None = None,
) -> Figure:
    """Draws the attention of every head side by side, on one colour scale.

    Args:
        weights: Attention weights (H, T, S).
        queries: T tokens, down the left side, or `None` for positions.
        keys: S tokens, along the top, or `None` for positions.
        title: Text above the picture.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If the shapes do not fit each other.

    Example:
        >>> figure = plots.attention_heads(np.full((4, 2, 3), 1 / 3))
    """
    heads = _heads(weights)
    size = _size(*heads.shape[1:])
    # The whole picture about as high as wide.
    columns = max(1, round(math.sqrt(len(heads) * size[1] / size[0])))
    figure, axes = panels(len(heads), size, columns)
    largest = heads.max()
    for head, (ax, one) in enumerate(zip(axes, heads, strict=True)):
        image = _grid(ax, one, queries, keys, f"head {head}", largest)
    figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02)
    if title is not None:
        figure.suptitle(title, parse_math=False)
    return figure


def _heads(weights):
    """Weights as a NumPy array (H, T, S) of float64; H is 1 of weights (T, S)."""
    array = np.asarray(ops.convert_to_numpy(weights))
    if array.ndim not in (2, 3) or not array.size:
        raise ValueError(
            "`weights` must have 2 or 3 axes and not be empty. Received: shape "
            f"{array.shape}"
        )
    return array.reshape(-1, *array.shape[-2:]).astype("float64")


def _size(rows, columns):
    """Width and height of a picture of T rows and S columns (inches)."""
    sides = (columns * _SQUARE + _MARGIN, rows * _SQUARE + _MARGIN)
    return tuple(min(_LARGEST, max(3.0, side)) for side in sides)


def _grid(ax, weights, queries, keys, title, largest=None):
    """Draws weights (T, S) with their tokens; returns the image."""
    look = {"aspect": "auto", "interpolation": "nearest", "cmap": "Blues"}
    image = ax.imshow(weights, vmin=0.0, vmax=largest, **look)
    ax.xaxis.tick_top()
    ax.tick_params(length=0, labelsize="small")
    for name, tokens, set_ticks, count in (
        ("keys", keys, ax.set_xticks, weights.shape[1]),
        ("queries", queries, ax.set_yticks, weights.shape[0]),
    ):
        if tokens is None:
            set_ticks(range(0, count, max(1, count // 10)))
            continue
        if len(tokens) != count:
            raise ValueError(
                f"`{name}` must be as many as in `weights`. "
                f"Received: {len(tokens)} tokens, {count} in the array"
            )
        labels = [_label(str(token)) for token in tokens]
        is_upright = name == "queries" or max(map(len, labels)) < 3
        # A dollar sign is a token, not the start of a formula.
        rotation = 0 if is_upright else 90
        set_ticks(range(count), labels, rotation=rotation, parse_math=False)
    ax.set_title(title or "", fontsize="medium", parse_math=False)
    return image


def _label(token):
    """Returns a token without SentencePiece's mark of a word's start, made visible."""
    text = token.replace("▁", " ").strip(" ") or " "
    return _NAMES.get(token, text.translate(_SIGNS))


class SentenceAttention(NamedTuple):
    """The attention weights of all layers (first axis, L) and heads, and the tokens.

    Row t of `decoder` and of `cross` is the attention with which the target's token t
    is chosen; it is computed at the token before, `decoder_tokens[t]`.
    """

    source_tokens: list[str]  # S pieces, the end token included
    target_tokens: list[str]  # T pieces, the end token included where it was reached
    decoder_tokens: list[str]  # T pieces, the target shifted right by the start token
    encoder: Any  # (L, H, S, S) float array; `None` of attention without weights
    decoder: Any  # (L, H, T, T), self-attention; or `None`
    cross: Any  # (L, H, T, S); or `None`

    def of(self, kind: str, layer: int = -1) -> tuple[np.ndarray, list[str], list[str]]:
        """Returns the weights of a layer with their tokens, as `plots` takes them.

        Args:
            kind: "encoder", "decoder" or "cross".
            layer: Layer, counted from 0; -1 is the last.

        Returns:
            Weights (H, T, S), tokens of the queries (T) and tokens of the keys (S).

        Raises:
            ValueError: If there is no such kind or layer, or its attention records no
                weights, as linear attention and an SSRU have none.

        Example:
            >>> seen = plots.sentence_attention(translator, "Two men are talking.")
            >>> figure = plots.attention_heads(*seen.of("cross", layer=-1))
        """
        tokens = {
            "encoder": (self.source_tokens, self.source_tokens),
            "decoder": (self.decoder_tokens, self.decoder_tokens),
            "cross": (self.target_tokens, self.source_tokens),
        }
        check_choice("kind", kind, tokens)
        weights = getattr(self, kind)
        if weights is None:
            raise ValueError(
                f"The attention of kind={kind!r} records no weights to show: it makes "
                "no T x S matrix, is an SSRU, or is a layer of your own that does not "
                "call `record_attention`."
            )
        last = len(weights) - 1
        check_number("layer", layer, int, minimum=-len(weights), maximum=last)
        return (weights[layer], *tokens[kind])


def sentence_attention(
    translator: Translator, text: str, translation: str | None = None
) -> SentenceAttention:
    """Returns what every layer and head attends to, in a sentence and its translation.

    Args:
        translator: A `Translator` of a `Transformer`.
        text: A sentence.
        translation: Its translation; by default what the translator finds.

    Returns:
        A `SentenceAttention`.

    Raises:
        ValueError: If the model is not a `Transformer`, or `text` is empty.

    Example:
        >>> seen = plots.sentence_attention(load("runs/en-de"), "A man.")
        >>> seen.cross.shape  # (L, H, T, S)
    """
    model = translator.model
    tokenizers = translator.tokenizers
    if not isinstance(model, Transformer):
        raise ValueError(
            "Only a `Transformer` has the three kinds of attention; "
            "`Translator.align` gives what any translator attends to. Received: a "
            f"`{type(model).__name__}`"
        )
    end_id = model.config.end_id
    source = [*tokenizers.source.tokenize([text])[0].numpy().tolist(), end_id]
    if len(source) < 2:
        raise ValueError(f"`text` must not be empty. Received: text={text!r}")
    if translation is None:
        result = Generator(model, translator.config).search(
            np.array([source], "int32"), np.array([len(source)], "int32")
        )
        length = max(1, int(ops.convert_to_numpy(result.lengths)[0, 0]))
        target_out = ops.convert_to_numpy(result.ids)[0, 0, :length].tolist()
    else:
        pieces = tokenizers.target.tokenize([translation])[0].numpy()
        target_out = [*pieces.tolist(), end_id]
    target_in = [model.config.start_id, *target_out[:-1]]
    inputs = tuple(np.array([ids], "int32") for ids in (source, target_in))
    with recorded_attention() as record:
        model(inputs, training=False)
    decoder = model.decoder_layers
    return SentenceAttention(
        source_tokens=tokenizers.source.pieces(source),
        target_tokens=tokenizers.target.pieces(target_out),
        decoder_tokens=tokenizers.target.pieces(target_in),
        encoder=_stacked(record, [one.self_attention for one in model.encoder_layers]),
        decoder=_stacked(record, [one.self_attention for one in decoder]),
        cross=_stacked(record, [one.cross_attention for one in decoder]),
    )


def _stacked(record, attentions):
    """Weights (L, H, T, S) of the one sentence; `None` if a layer records none."""
    if any(attention not in record for attention in attentions):
        return None
    return np.stack(
        [ops.convert_to_numpy(record[attention][0])[0] for attention in attentions]
    ).astype("float32")
