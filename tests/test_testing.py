"""The public checks: they pass what is right, and say where a broken layer is wrong."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer import testing

PAIR = ((2, 5, 8), (2, 7, 6))
ENCODER = kt.EncoderConfig(num_layers=1, d_model=8, d_ff=8, num_heads=2)
MASKS = ("mask", "encoder_output_mask")
EMBEDDING = kt.PositionalEmbedding(13, 8, pad_id=3)


def transformer(model_class=kt.Transformer):
    sizes = {"d_model": 8, "source_vocabulary_size": 13, "target_vocabulary_size": 13}
    sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 1, "num_heads": 2}
    return model_class(kt.TransformerConfig(**sizes, d_ff=8))


# What is wrong.


class Peeking(keras.layers.Layer):
    """Adds to each position of each row the position `ahead` of it."""

    def __init__(self, ahead, rows=slice(None), **kwargs):
        super().__init__(**kwargs)
        self.ahead, self.rows = ahead, rows

    def call(self, inputs):
        moved = ops.roll(inputs, -self.ahead, axis=1)
        is_row = np.zeros((inputs.shape[0], 1, 1), "float32")
        is_row[self.rows] = 1
        return inputs + moved * ops.convert_to_tensor(is_row)


def with_a(value):
    """Position 3 is a number that is none."""

    def partly(inputs):
        return ops.where(np.arange(7)[:, None] == 3, value, inputs)

    return partly


def mixing(inputs):
    return inputs + ops.sum(inputs, axis=1, keepdims=True)


def mixing_sources(inputs, source):
    return inputs + ops.sum(source, axis=1, keepdims=True)


def mixing_rows(inputs):
    return inputs + ops.mean(inputs[:, :1], axis=0, keepdims=True)


def doubled(inputs):
    return ops.concatenate([inputs, inputs], axis=1)


def mean_of_ids():
    return keras.Sequential(
        [keras.layers.Embedding(13, 4), keras.layers.GlobalAveragePooling1D()]
    )


class StuckPositions(kt.Transformer):
    """Its cached steps all take the token for the first one."""

    def decode_step(self, ids, parents, state, weights=None):
        logits, after = super().decode_step(ids, parents, state, weights)
        return logits, after | {"index": state["index"]}


class ForgetfulHypotheses(kt.Transformer):
    """Its cached steps forget who continues whom."""

    def decode_step(self, ids, parents, state, weights=None):
        places = ops.broadcast_to(ops.arange(parents.shape[1]), ops.shape(parents))
        return super().decode_step(ids, places, state, weights)


class WrongSentences(kt.Transformer):
    """It keeps other sentences than it is asked to."""

    def resize_decoding(self, state, sentences, length):
        return super().resize_decoding(state, sentences - 1, length)


@keras.saving.register_keras_serializable(package="tests")
class Scaled(keras.layers.Layer):
    """Right: an argument, a weight of its first value, and both come back."""

    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[-1:], initializer="ones")

    def call(self, inputs):
        return inputs * self.scale * self.factor

    def get_config(self):
        return super().get_config() | {"factor": self.factor}


@keras.saving.register_keras_serializable(package="tests")
class Forgetful(Scaled):
    def get_config(self):
        return {k: v for k, v in super().get_config().items() if k != "factor"}


@keras.saving.register_keras_serializable(package="tests")
class Doubling(Scaled):
    """Its configuration says something else than it was made with."""

    def get_config(self):
        return super().get_config() | {"factor": 2 * self.factor}


@keras.saving.register_keras_serializable(package="tests")
class Silent(Scaled):
    """What it computes with is not what its configuration says."""

    def get_config(self):
        return super().get_config() | {"factor": 1.0}


@keras.saving.register_keras_serializable(package="tests")
class Unsaved(Scaled):
    """Its weight is left out of files."""

    def save_own_variables(self, store):
        pass

    def load_own_variables(self, store):
        pass


class Local(keras.layers.Layer):
    def call(self, inputs):
        return inputs


def encoder():
    return keras.Sequential([EMBEDDING, kt.EncoderStack(ENCODER)])


def classifier():
    ids = keras.Input((None,), dtype="int32")
    embedding = kt.PositionalEmbedding(13, ENCODER.d_model, pad_id=0)
    states = kt.EncoderStack(ENCODER)(embedding(ids))
    return keras.Model(ids, keras.layers.GlobalAveragePooling1D()(states))


RIGHT = (
    "assert_causal(kt.CausalLayer(num_heads=2, d_ff=8))",
    "assert_causal(kt.DecoderLayer(num_heads=2, d_ff=8), shape=PAIR)",
    "assert_causal(kt.PositionalEmbedding(13, 8), ids_below=13)",
    "assert_causal(with_a(-np.inf))",  # An impossible logit.
    "assert_padding_invariant(kt.EncoderLayer(num_heads=2, d_ff=8))",
    "assert_padding_invariant(kt.DecoderLayer(2, 8), shape=PAIR, mask_names=MASKS)",
    "assert_padding_invariant(kt.DecoderLayer(2, 8), shape=PAIR)",
    # It has no positions.
    "assert_padding_invariant(classifier(), ids_below=13)",
    "assert_padding_invariant(encoder(), ids_below=13, pad_id=3)",
    "assert_cached_equals_uncached(transformer(), np.array([[5, 6, 2]]), beam_size=1)",
    "assert_cached_equals_uncached(transformer(ForgetfulHypotheses), beam_size=1)",
    "assert_serializable(Scaled(2.0))",
    "assert_serializable(kt.DecoderLayer(num_heads=2, d_ff=8), shape=PAIR)",
    "assert_serializable(transformer(), shape=((2, 5), (2, 7)), ids_below=13)",
    "assert_serializable(Forgetful(), aliases=['factor'])",
)
# The error names the layer, what is wrong, and the place. The inputs that cannot show
# anything are a `ValueError`.
WRONG = {
    # Position 0 of row 1 sees position 2; the wrap-around is of later positions.
    "assert_causal(Peeking(2, rows=[1]), shape=(2, 5, 8))":
        r"Peeking is not causal: a change of the input at position 2 changes an ear.*"
        r"largest difference, [\d.]+, is at row 1, position 0, unit \d: .* in place",
    "assert_causal(kt.EncoderLayer(2, 8))": "EncoderLayer is not causal",
    "assert_causal(with_a(np.nan))": "difference, inf, is at row 0, position 3",
    "assert_causal(lambda x, y: y, shape=((2, 5, 8), (2, 5, 8)))":
        "does not depend on its first inp",
    "assert_causal(kt.CausalLayer(2, 8), shape=(2, 1, 8))":
        (ValueError, r"2 positions or more.*\(2, 1, 8\)"),
    "assert_causal(lambda x: ops.mean(x, axis=1))":
        (ValueError, "rows and positions of the first input"),
    "assert_causal(kt.CausalLayer(2, 8), np.ones((1, 3, 8)), shape=(1, 3, 8))":
        (ValueError, "`inputs` or `shape`, not both"),
    "assert_causal(kt.CausalLayer(2, 8), np.ones(3))":
        (ValueError, r"\(B, T, ...\). Received: shape \(3,\)"),
    "assert_causal(kt.PositionalEmbedding(2, 8), ids_below=2)":
        (ValueError, "`ids_below` must be at least 3.*ids_below=2"),
    "assert_padding_invariant(mean_of_ids(), ids_below=13)":
        r"Sequential depends on padding: 3 more padded positions.* at row [01], unit",
    "assert_padding_invariant(mixing, shape=(3, 7, 4))":
        r"mixing depends on padding: other vectors.*is at row [12], position \d, un",
    # The first row has no padding, and so only more of it shows.
    "assert_padding_invariant(mixing, shape=(1, 7, 4))":
        "mixing depends on padding: 3 more padded positions of input 0.*row 0",
    "assert_padding_invariant(mixing_sources, (np.ones((1, 3, 4), 'float32'), "
    "np.ones((1, 2, 4), 'float32')))": "more padded positions of input 1",
    "assert_padding_invariant(mixing_rows)":
        "row 0 by itself, cut to its length, has another output.*row 0, position",
    "assert_padding_invariant(encoder(), ids_below=13, pad_id=4)":
        "depends on padding",
    "assert_padding_invariant(kt.DecoderLayer(2, 8), shape=PAIR, mask_names=['mask'])":
        (ValueError, "one argument for each input.* for 2 inputs"),
    "assert_padding_invariant(doubled)":
        (ValueError, r"\(2, 14, 8\) for 7 positions, and \(2, 20"),
    "assert_cached_equals_uncached(transformer(StuckPositions))":
        "StuckPositions decodes otherwise .* is at row [0-5], position 1, unit",
    "assert_cached_equals_uncached(transformer(ForgetfulHypotheses))":
        "position [12]",
    "assert_cached_equals_uncached(transformer(WrongSentences))":
        "row [345], position 3",
    "assert_serializable(Forgetful(2.0))": "`get_config` of Forgetful .*: factor$",
    # Without it the layer computes something else.
    "assert_serializable(Forgetful(2.0), aliases=['factor'])":
        r"Forgetful made again,.* another output.* is at row \d, position \d, unit",
    "assert_serializable(Silent(2.0))": "another output",
    "assert_serializable(Doubling(2.0))": "another configuration: factor 8.0 for 4.0",
    "assert_serializable(Unsaved())": "loaded from a .keras file has another",
    "assert_serializable(Local())": "register_keras_serializable",
}  # fmt: skip


@pytest.mark.parametrize("call", RIGHT)
def test_what_is_right_passes(call):
    eval(call, globals() | vars(testing))


@pytest.mark.parametrize("call", WRONG)
def test_what_is_wrong_is_named_with_the_place(call):
    given = WRONG[call]
    error, words = given if isinstance(given, tuple) else (AssertionError, given)
    with pytest.raises(error, match=words):
        eval(call, globals() | vars(testing))


PAGE = Path(__file__).parents[1] / "docs" / "layers.md"


def test_the_page_quotes_the_errors():
    """`tests/models/test_other_backends.py` runs it on the others."""
    text = PAGE.read_text("utf-8").split("## Checks for your layers\n")[1]
    (block,) = re.findall(r"```python\n(.*?)```", text.split("\n## ")[0], re.DOTALL)
    exec(block, namespace := {})
    errors = namespace["errors"]
    quoted = re.findall(r"^- `+ ?(.*?)`+$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(errors) == len(quoted) == 3
    for error, quote in zip(errors, quoted, strict=True):
        assert error.startswith(quote.removesuffix("..."))
