"""Attention as grids of squares, with tokens on both axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from keras import ops
from matplotlib.figure import Figure

from keras_transformer.apps.plots.curves import panels
from keras_transformer.config.options import check_choice
from keras_transformer.nn.layers.attention import recorded_attention
from keras_transformer.types import TensorLike

if TYPE_CHECKING:  # It loads TensorFlow.
    from keras_transformer.search.translator import Translator


def attention(
    weights: TensorLike,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    title: str | None = None,
) -> Figure:
    """Draws what each query attends to: a row per query, a column per key.

    Several heads are drawn side by side, on one colour scale.

    Args:
        weights: Attention weights (T, S), or (H, T, S) of several heads; or a mask.
        queries: T tokens, down the left side, or `None` for positions.
        keys: S tokens, along the top, or `None` for positions.
        title: Text above the picture.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If the shapes do not fit each other.

    Example:
        >>> figure = plots.attention(np.eye(2), ["Guten", "Tag"], ["Good", "day"])
        >>> figure.savefig("attention.png")
    """
    array = np.asarray(ops.convert_to_numpy(weights))
    if array.ndim not in (2, 3):
        raise ValueError(f"`weights` must have 2 or 3 axes. Received: {array.shape}")
    heads = array.reshape(-1, *array.shape[-2:]).astype("float64")
    # Inches: 0.25 for a token, and space for labels and the colour bar.
    height, width = np.clip(np.multiply(heads.shape[1:], 0.25) + 1.3, 3, 24)
    figure, axes = panels(len(heads), width, height)
    for head, ax in enumerate(axes):
        image = ax.imshow(
            heads[head], cmap="Blues", aspect="auto", vmin=0.0, vmax=heads.max()
        )
        ax.xaxis.tick_top()
        ax.tick_params(length=0, labelsize="small")
        _write_tokens(ax.yaxis, queries, heads.shape[1], rotation=0)
        _write_tokens(ax.xaxis, keys, heads.shape[2], rotation=90)
        if array.ndim == 3:
            ax.set_title(f"head {head}", fontsize="medium")
    figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02)
    if title is not None:
        figure.suptitle(title, fontsize="medium", parse_math=False)
    return figure


def _write_tokens(axis, tokens, count, rotation):
    """Writes a token, or its position, at each row or column of a grid."""
    if tokens is None:
        axis.get_major_locator().set_params(integer=True)
        return
    # Without SentencePiece's mark of a word's start.
    labels = [token.lstrip("▁") or "␣" for token in tokens]
    # A dollar sign is a token, not the start of a formula.
    axis.set_ticks(range(count), labels, rotation=rotation, parse_math=False)


def sentence_attention(
    translator: Translator,
    text: str,
    translation: str | None = None,
    *,
    kind: str = "cross",
) -> tuple[np.ndarray, list[str], list[str]]:
    """Returns what every layer and head attends to, in a sentence and its translation.

    Args:
        translator: A `Translator` of a `Transformer`.
        text: A sentence.
        translation: Its translation; by default that of the translator.
        kind: "cross", of the decoder to the source, or "encoder" or "decoder", of
            either to itself.

    Returns:
        Weights (L, H, T, S) of L layers, the T tokens of the queries and the S tokens
        of the keys. Row t of "cross" is the attention with which token t of the
        translation is chosen; row t of "decoder" is that of the token before it.

    Raises:
        ValueError: If there are no such weights, as linear attention and an SSRU have
            none.

    Example:
        >>> weights, *tokens = plots.sentence_attention(load("runs/en-de"), "A man.")
        >>> figure = plots.attention(weights[-1], *tokens)
    """
    model = translator.model
    tokenizers = translator.tokenizers
    check_choice("kind", kind, ("cross", "encoder", "decoder"))
    if translation is None:
        (translation,) = translator([text])
    source = _ids_of(tokenizers.source, text)
    target = _ids_of(tokenizers.target, translation)
    target_in = np.array([model.config.start_id, *target[:-1]], "int32")
    with recorded_attention() as record:
        model((source[None], target_in[None]), training=False)
    keys = tokenizers.source.pieces(source)
    if kind == "cross":
        queries = tokenizers.target.pieces(target)
        attentions = [layer.cross_attention for layer in model.decoder_layers]
    elif kind == "encoder":
        queries = keys
        attentions = [layer.self_attention for layer in model.encoder_layers]
    else:
        queries = keys = tokenizers.target.pieces(target_in)
        attentions = [layer.self_attention for layer in model.decoder_layers]
    if not record.keys() >= {*attentions}:
        raise ValueError(
            f"The attention of kind={kind!r} records no weights to show: it makes no "
            "T x S matrix, is an SSRU, or is a layer of your own that does not call "
            "`record_attention`."
        )
    weights = [ops.convert_to_numpy(record[layer][0])[0] for layer in attentions]
    return np.stack(weights).astype("float32"), queries, keys


def _ids_of(tokenizer, text):
    """A sentence as ids (S,), the end token included."""
    ids = tokenizer.tokenize([text])[0].numpy()
    return np.append(ids, np.int32(tokenizer.end_id))
