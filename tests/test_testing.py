"""The public checks: they pass what is right, and say where a broken layer is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import (
    CausalLayer,
    DecoderLayer,
    Encoder,
    EncoderConfig,
    EncoderLayer,
    LanguageModel,
    LanguageModelConfig,
    MultiHeadAttention,
    PositionalEmbedding,
    TextClassifier,
    Transformer,
    TransformerConfig,
)
from keras_transformer.testing import (
    assert_cached_equals_uncached,
    assert_causal,
    assert_padding_invariant,
    assert_serializable,
)
from tests.models.test_backends import run_python

PAIR = ((2, 5, 8), (2, 7, 6))
SIZES = {"d_model": 8, "source_vocabulary_size": 13, "target_vocabulary_size": 13}


def transformer(model_class=Transformer, **options):
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "num_heads": 2}
    return model_class(TransformerConfig(**SIZES, **sizes, d_ff=8, **options))


def language_model(**options):
    sizes = {"vocabulary_size": 13, "d_model": 8, "num_layers": 1, "num_heads": 2}
    return LanguageModel(LanguageModelConfig(**sizes, d_ff=8, **options))


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


# 1. Causal.


def test_causal_layers_pass():
    assert_causal(CausalLayer(num_heads=2, d_ff=8))
    assert_causal(DecoderLayer(num_heads=2, d_ff=8), shape=PAIR)
    assert_causal(PositionalEmbedding(13, 8), ids_below=13)
    assert_causal(language_model(), np.array([[1, 5, 7, 3]]), ids_below=13)
    source = np.array([[5, 6, 2]])
    model, target_in = transformer(), np.array([[1, 5, 7, 3]])
    assert_causal(lambda target, source: model((source, target)), (target_in, source))
    attention = MultiHeadAttention(2, 4)
    inputs = np.random.default_rng(0).standard_normal((1, 6, 8)).astype("float32")
    assert_causal(lambda x: attention(x, x, use_causal_mask=True), inputs)


def test_a_layer_that_sees_the_future_is_named_with_the_place():
    """Position 0 of row 1 sees position 2; the wrap-around is of later positions."""
    claim = r"Peeking is not causal: a change of the input at position 2 changes an ear"
    place = r"largest difference, [\d.]+, is at row 1, position 0, unit \d: .* in place"
    with pytest.raises(AssertionError, match=f"{claim}.*{place}"):
        assert_causal(Peeking(2, rows=[1]), shape=(2, 5, 8))
    with pytest.raises(AssertionError, match="EncoderLayer is not causal"):
        assert_causal(EncoderLayer(num_heads=2, d_ff=8))


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_nan_is_refused_and_an_impossible_logit_is_not(bad):
    def partly(inputs):
        is_bad = np.array([False] * 3 + [True] + [False] * 3)[:, None]
        return ops.where(is_bad, bad, inputs)

    if bad == -np.inf:
        assert_causal(partly)
        return
    with pytest.raises(
        AssertionError, match="difference, inf, is at row 0, position 3"
    ):
        assert_causal(partly)


def test_what_depends_on_nothing_proves_nothing():
    with pytest.raises(AssertionError, match="does not depend on its first inp"):
        assert_causal(lambda x, y: y, shape=((2, 5, 8), (2, 5, 8)))


def test_inputs_that_cannot_show_it_are_refused():
    layer = CausalLayer(num_heads=2, d_ff=8)
    with pytest.raises(ValueError, match=r"2 positions or more.*\(2, 1, 8\)"):
        assert_causal(layer, shape=(2, 1, 8))
    with pytest.raises(ValueError, match="rows and positions of the first input"):
        assert_causal(lambda x: ops.mean(x, axis=1))
    with pytest.raises(ValueError, match="`inputs` or `shape`, not both"):
        assert_causal(layer, np.ones((1, 3, 8)), shape=(1, 3, 8))
    with pytest.raises(ValueError, match=r"\(B, T, ...\). Received: shape \(3,\)"):
        assert_causal(layer, np.ones(3))
    with pytest.raises(ValueError, match="`ids_below` must be at least 3.*ids_below=2"):
        assert_causal(PositionalEmbedding(2, 8), ids_below=2)


# 2. Padding.


def test_layers_that_honour_padding_pass():
    assert_padding_invariant(EncoderLayer(num_heads=2, d_ff=8))
    names = ("mask", "encoder_output_mask")
    assert_padding_invariant(DecoderLayer(2, 8), shape=PAIR, mask_names=names)
    assert_padding_invariant(DecoderLayer(2, 8), shape=PAIR)
    model = transformer()
    target_in = np.array([[1, 5, 7, 3], [1, 4, 0, 0]])
    source = np.array([[5, 6, 2], [4, 0, 0]])
    assert_padding_invariant(
        lambda target, source: model((source, target)), (target_in, source)
    )


def test_a_classifier_has_no_positions():
    config = EncoderConfig(num_layers=1, d_model=8, d_ff=8, num_heads=2)
    model = TextClassifier(Encoder(config, 13), num_classes=3)
    assert_padding_invariant(model, ids_below=13)
    mean = keras.Sequential(
        [keras.layers.Embedding(13, 4), keras.layers.GlobalAveragePooling1D()]
    )
    found = (
        "Sequential depends on padding: 3 more padded positions.* is at row [01], unit"
    )
    with pytest.raises(AssertionError, match=found):
        assert_padding_invariant(mean, ids_below=13)


def test_a_layer_that_ignores_its_mask_is_named_with_the_place():
    def mixing(inputs):
        return inputs + ops.sum(inputs, axis=1, keepdims=True)

    found = r"mixing depends on padding: other vectors.*is at row [12], position \d, un"
    with pytest.raises(AssertionError, match=found):
        assert_padding_invariant(mixing, shape=(3, 7, 4))
    # The first row has no padding, and so only more of it shows.
    found = r"mixing depends on padding: 3 more padded positions of input 0.*row 0"
    with pytest.raises(AssertionError, match=found):
        assert_padding_invariant(mixing, shape=(1, 7, 4))


def test_padding_of_the_second_input_counts():
    def mixing(inputs, source):
        return inputs + ops.sum(source, axis=1, keepdims=True)

    ones = np.ones((1, 3, 4), "float32"), np.ones((1, 2, 4), "float32")
    with pytest.raises(AssertionError, match="more padded positions of input 1"):
        assert_padding_invariant(mixing, ones)


def test_rows_that_see_each_other_are_found():
    def mixing(inputs):
        return inputs + ops.mean(inputs[:, :1], axis=0, keepdims=True)

    found = "row 0 by itself, cut to its length, has another output.*row 0, position"
    with pytest.raises(AssertionError, match=found):
        assert_padding_invariant(mixing)


def test_ids_of_another_padding():
    config = EncoderConfig(num_layers=1, d_model=8, d_ff=8, num_heads=2)
    encoder = Encoder(config, PositionalEmbedding(13, 8, pad_id=3))
    assert_padding_invariant(encoder, ids_below=13, pad_id=3)
    with pytest.raises(AssertionError, match="depends on padding"):
        assert_padding_invariant(encoder, ids_below=13, pad_id=4)


def test_wrong_masks_and_outputs_are_refused():
    with pytest.raises(ValueError, match="one argument for each input.* for 2 inputs"):
        assert_padding_invariant(DecoderLayer(2, 8), shape=PAIR, mask_names=["mask"])
    with pytest.raises(ValueError, match=r"\(2, 14, 8\) for 7 positions, and \(2, 20"):
        assert_padding_invariant(lambda x: ops.concatenate([x, x], axis=1))


# 3. Cached decoding.


def test_models_decode_alike_with_and_without_cache():
    assert_cached_equals_uncached(transformer())
    assert_cached_equals_uncached(transformer(decoder_self_attention="ssru"))
    assert_cached_equals_uncached(language_model(norm_first=True))
    assert_cached_equals_uncached(transformer(), np.array([[5, 6, 2]]), beam_size=1)


class StuckPositions(Transformer):
    """Its cached steps all take the token for the first one."""

    def decode_step(self, ids, parents, state, weights=None):
        logits, after = super().decode_step(ids, parents, state, weights)
        return logits, after | {"index": state["index"]}


class ForgetfulHypotheses(Transformer):
    """Its cached steps forget who continues whom."""

    def decode_step(self, ids, parents, state, weights=None):
        places = ops.broadcast_to(ops.arange(parents.shape[1]), ops.shape(parents))
        return super().decode_step(ids, places, state, weights)


class WrongSentences(Transformer):
    """It keeps other sentences than it is asked to."""

    def resize_decoding(self, state, sentences, length):
        return super().resize_decoding(state, sentences - 1, length)


def test_a_step_that_differs_is_named_with_the_place():
    found = "StuckPositions decodes otherwise .* is at row [0-5], position 1, unit"
    with pytest.raises(AssertionError, match=found):
        assert_cached_equals_uncached(transformer(StuckPositions))
    with pytest.raises(AssertionError, match="position [12]"):
        assert_cached_equals_uncached(transformer(ForgetfulHypotheses))
    assert_cached_equals_uncached(transformer(ForgetfulHypotheses), beam_size=1)
    with pytest.raises(AssertionError, match="row [345], position 3"):
        assert_cached_equals_uncached(transformer(WrongSentences))


# 4. Configuration and file.


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
class Rounding(Scaled):
    """Its configuration says something else than it was made with."""

    def __init__(self, factor=1.0, **kwargs):
        super().__init__(int(factor), **kwargs)


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


def test_layers_and_models_that_come_back_pass():
    assert_serializable(Scaled(2.0))
    assert_serializable(DecoderLayer(num_heads=2, d_ff=8), shape=PAIR)
    assert_serializable(PositionalEmbedding(13, 8), ids_below=13)
    assert_serializable(transformer(), shape=((2, 5), (2, 7)), ids_below=13)
    config = EncoderConfig(num_layers=1, d_model=8, d_ff=8, num_heads=2)
    assert_serializable(Encoder(config, 13), ids_below=13)


def test_an_argument_that_is_not_in_the_configuration_is_named():
    with pytest.raises(AssertionError, match="`get_config` of Forgetful .*: factor$"):
        assert_serializable(Forgetful(2.0))
    # Without it the layer computes something else.
    found = r"Forgetful made again .* another output.* is at row \d, position \d, unit"
    with pytest.raises(AssertionError, match=found):
        assert_serializable(Forgetful(2.0), aliases=["factor"])
    assert_serializable(Forgetful(), aliases=["factor"])


def test_a_configuration_that_says_something_else_is_refused():
    with pytest.raises(AssertionError, match="another output"):
        assert_serializable(Silent(2.0))
    layer = Rounding(2.0)
    layer.factor = 2.5
    with pytest.raises(AssertionError, match="another configuration: factor 2 for 2.5"):
        assert_serializable(layer)


def test_a_weight_that_is_not_saved_shows():
    with pytest.raises(AssertionError, match="loaded from a .keras file has another"):
        assert_serializable(Unsaved())


def test_a_class_that_keras_does_not_know_is_refused():
    class Local(keras.layers.Layer):
        def call(self, inputs):
            return inputs

    with pytest.raises(AssertionError, match="register_keras_serializable"):
        assert_serializable(Local())


# 5. The page and the backends.

PAGE = Path(__file__).parents[1] / "docs" / "layers.md"


@pytest.mark.parametrize(
    "backend",
    (
        "tensorflow",
        pytest.param("jax", marks=pytest.mark.slow),
        pytest.param("torch", marks=pytest.mark.slow),
    ),
)
def test_the_page_runs_on_every_backend_and_quotes_the_errors(backend, tmp_path):
    text = PAGE.read_text("utf-8").split("## Checks for your layers\n")[1]
    blocks = re.findall(r"```python\n(.*?)```", text.split("\n## ")[0], re.DOTALL)
    assert len(blocks) == 1
    ending = f"\nopen({str(tmp_path / 'errors')!r}, 'w').write('\\n'.join(errors))\n"
    run_python(backend, "-c", "\n".join(blocks) + ending)
    errors = (tmp_path / "errors").read_text("utf-8").splitlines()
    quoted = re.findall(r"^- `+ ?(.*?)`+$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(errors) == len(quoted) == 3
    for error, quote in zip(errors, quoted, strict=True):
        assert error.startswith(quote.removesuffix("..."))
