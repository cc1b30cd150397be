"""The verb `plot` of the command line: options to a picture in a file."""

from __future__ import annotations

import itertools

import numpy as np
from matplotlib.backend_bases import FigureCanvasBase

from keras_transformer.files import replacing
from keras_transformer.layers.positional_embedding import sinusoidal_encoding
from keras_transformer.masks import causal_mask, valid_length_mask
from keras_transformer.plots.curves import learning_rate, training_curves
from keras_transformer.plots.fonts import add_font
from keras_transformer.plots.heat_maps import attention, attention_heads, mask
from keras_transformer.plots.positions import (
    position_dimensions,
    position_similarity,
    positional_encoding,
)
from keras_transformer.plots.sentences import sentence_attention
from keras_transformer.schedules import TransformerSchedule

_DOTS_PER_INCH = 150


def plot(options, translator=None):
    """Draws what the options say and writes it, whole or not at all.

    Args:
        options: What the parser's verb `plot` gives: `kind`, `output`, `font` and the
            options of the kind.
        translator: The `Translator` of a run, for the kind "attention".

    Raises:
        ValueError: If an option is out of range or the file's ending names no kind of
            picture.
    """
    ending = options.output.suffix.lstrip(".").lower()
    known = FigureCanvasBase.get_supported_filetypes()
    if ending not in known:
        raise ValueError(
            "`--output` must end with the name of a kind of picture, such as .png, "
            f".svg or .pdf. Received: --output {options.output}"
        )
    if options.font is not None:
        add_font(options.font)
    if options.kind == "attention":
        figure = _attention(options, translator)
    else:
        figure = _KINDS[options.kind](options)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with replacing(options.output) as temporary:
        figure.savefig(temporary, format=ending, dpi=_DOTS_PER_INCH)


def _attention(options, translator):
    seen = sentence_attention(translator, options.text, options.translation)
    weights, queries, keys = seen.of(options.of, options.layer)
    number = range(len(getattr(seen, options.of)))[options.layer]
    title = f"{options.of} attention, layer {number}"
    if options.head is None:
        return attention_heads(weights, queries, keys, title=title)
    return attention(
        weights, queries, keys, head=options.head, title=f"{title}, head {options.head}"
    )


def _mask(options):
    _check_positive(options, "length")
    allowed = causal_mask(options.length)
    if options.valid_length is not None:
        if not 0 <= options.valid_length <= options.length:
            raise ValueError(
                "`--valid-length` must be from 0 to `--length`. Received: "
                f"--valid-length {options.valid_length}, --length {options.length}"
            )
        lengths = np.array([options.valid_length], "int32")
        allowed = allowed & valid_length_mask(lengths, options.length)
    return mask(allowed)


def _positions(options):
    _check_positive(options, "length", "d_model")
    vectors = sinusoidal_encoding(np.arange(options.length), options.d_model)
    if options.view == "dimensions":
        return position_dimensions(vectors, options.dimensions)
    views = {"matrix": positional_encoding, "similarity": position_similarity}
    return views[options.view](vectors)


def _learning_rate(options):
    pairs = itertools.product(options.d_model, options.warmup_steps)
    schedules = [TransformerSchedule(*pair, scale=options.scale) for pair in pairs]
    return learning_rate(schedules, options.steps)


def _training(options):
    return training_curves(options.log, options.metrics)


_KINDS = {
    "mask": _mask,
    "positions": _positions,
    "learning-rate": _learning_rate,
    "training": _training,
}


def _check_positive(options, *names):
    for name in names:
        value = getattr(options, name)
        if value < 1:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"`{flag}` must be at least 1. Received: {flag} {value}")
