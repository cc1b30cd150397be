"""The language model against NumPy; its laws, its cache, its file, its training."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import (
    LanguageModel,
    LanguageModelConfig,
    MaskedCrossentropy,
    Perplexity,
)
from keras_transformer.testing import (
    assert_cached_equals_uncached,
    assert_causal,
    assert_padding_invariant,
)
from tests.layers.reference_weights import (
    assert_close,
    layer_weights_of,
    randomise,
    self_attention_of,
    weights_of,
)
from tests.models.transformer_cases import hash_to_two_buckets
from tests.reference import numpy_transformer as reference

# Every size another prime, so that no two axes can be taken for each other.
SIZES = {
    "vocabulary_size": 29,
    "num_layers": 3,
    "d_model": 17,
    "d_ff": 23,
    "num_heads": 3,
    "key_dim": 5,
    "value_dim": 7,
    "max_positions": 19,
}
VARIANTS = {
    "post-norm, tied": {},
    "pre-norm, tied": {"norm_first": True},
    "biases, learned positions, untied": {
        "use_bias": True,
        "positions": "learned",
        "tied_embeddings": False,
    },
    "local, rotary, one head of keys": {
        "attention": "local",
        "attention_window": 2,
        "positions": "rotary",
        "key_dim": 6,
        "num_key_value_heads": 1,
    },
    "ReLU, ALiBi": {"attention": "relu", "positions": "alibi", "norm_first": True},
    "linear": {"attention": "linear", "attention_dropout_rate": 0.0},
    "additive": {"attention": "additive"},
    "random features": {"attention": "performer", "attention_dropout_rate": 0.0},
    "hashing": {"attention": "lsh", "attention_dropout_rate": 0.0},
}
IDS_IN = np.array([[1, 14, 7, 22, 10, 5], [1, 19, 27, 0, 0, 0]], "int32")
IDS_OUT = np.array([[14, 7, 22, 10, 5, 2], [19, 27, 2, 0, 0, 0]], "int32")
LENGTH = IDS_IN.shape[1]


def random_model(rng, **options):
    model = randomise(LanguageModel(LanguageModelConfig(**(SIZES | options))), rng)
    hash_to_two_buckets(model)
    return model


@pytest.fixture(params=list(VARIANTS))
def model(request, rng):
    return random_model(rng, **VARIANTS[request.param])


def own_places(beam_size):
    """Parents (2, k) of hypotheses that all keep their place."""
    return ops.tile(ops.arange(beam_size, dtype="int32")[None], (2, 1))


def logits_of(model, ids, **options):
    return ops.convert_to_numpy(model(ids, **options))


def reference_logits(model, ids):
    """Section 3.1 of the paper, the decoder without its attention to a source."""
    config = model.config

    def array(variable):
        return ops.convert_to_numpy(variable).astype("float64")

    positions = None
    if config.positions == "learned":
        positions = array(model.embedding.position_embeddings)
    elif config.positions in ("rotary", "alibi"):
        positions = np.zeros((ids.shape[1], config.d_model))
    embeddings = array(model.embedding.embeddings)
    states = reference.positional_embedding(ids, embeddings, positions)
    mask = reference.causal_mask(ids.shape[1]) & reference.padding_mask(ids)
    for layer in model.decoder_layers:
        weights = layer_weights_of(layer)
        weights["self_attention"] |= self_attention_of(config)
        states = reference.encoder_layer(
            states, weights, config.num_heads, mask, config.norm_first
        )
    if config.norm_first:
        states = reference.layer_norm(states, weights_of(model.norm, "norm"))
    tied = config.tied_embeddings
    return states @ (embeddings.T if tied else array(model.output_kernel))


def test_logits_agree_with_the_reference(model):
    logits = logits_of(model, IDS_IN)
    assert logits.shape == (2, LENGTH, 29)
    real = IDS_IN != 0
    assert_close(logits[real], reference_logits(model, IDS_IN)[real])


@pytest.mark.one_case
def test_loss_and_perplexity_agree_with_the_reference(model):
    model.compile("sgd", MaskedCrossentropy(), metrics=[Perplexity()])
    results = model.evaluate(IDS_IN, IDS_OUT, batch_size=1, verbose=0, return_dict=True)
    logits = reference_logits(model, IDS_IN)
    expected = reference.perplexity(logits, IDS_OUT)
    np.testing.assert_allclose(results["perplexity"], expected, rtol=1e-5)
    np.testing.assert_allclose(results["loss"], np.log(expected), rtol=1e-5)


@pytest.mark.one_case
def test_later_token_cannot_change_an_earlier_logit(model):
    assert_causal(model, IDS_IN, ids_below=29, tolerance=0)


@pytest.mark.one_case
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_later_token_cannot_change_an_earlier_logit_in_training(variant):
    changed = IDS_IN.copy()
    changed[:, 2:] = 13

    def logits(ids):
        keras.utils.set_random_seed(7)  # The same weights and the same dropout.
        config = LanguageModelConfig(**(SIZES | VARIANTS[variant]))
        return logits_of(LanguageModel(config), ids, training=True)

    before, after = logits(IDS_IN), logits(changed)
    np.testing.assert_array_equal(before[:, :2], after[:, :2])
    assert (before[:, 2] != after[:, 2]).any()


@pytest.mark.one_case
def test_padding_and_other_rows_change_nothing(model):
    assert_padding_invariant(model, IDS_IN)


@pytest.mark.one_case
@pytest.mark.parametrize("beam_size", [1, 3])
def test_cached_decoding_equals_uncached(model, beam_size):
    assert_cached_equals_uncached(model, beam_size=beam_size)


def test_hypotheses_may_change_places_and_rows_may_end(rng):
    """Each hypothesis finds its own past, with fewer rows and more room too."""
    model = random_model(rng)
    ids = rng.integers(4, 29, size=(4, LENGTH)).astype("int32")
    parents = own_places(2)
    state = model.start_decoding(2, 3, beam_size=2)
    for position in range(2):
        column = ops.convert_to_tensor(ids[:, position])
        _, state = model.decode_step(column, parents, state)
    state = model.resize_decoding(state, ops.convert_to_tensor([1]), LENGTH)
    column = ops.convert_to_tensor(ids[2:, 2])
    copied = ops.convert_to_tensor([[1, 1]], "int32")
    logits, _ = model.decode_step(column, copied, state)
    moved = np.concatenate([ids[[3, 3], :2], ids[2:, 2:3]], axis=1)
    assert_close(logits, logits_of(model, moved)[:, 2])


def test_fit_learns_and_holds_no_logits(rng):
    """The exact training step works, from the states and the tied matrix."""
    config = LanguageModelConfig(**(SIZES | {"norm_first": True}))
    model = LanguageModel(config)
    assert tuple(model.output_rows().shape) == (29, 17)
    model.compile(keras.optimizers.Adam(0.01), MaskedCrossentropy())
    ids_out = np.tile(np.array([[5, 6, 7, 8, 9, 2]], "int32"), (8, 1))
    ids_in = np.pad(ids_out[:, :-1], ((0, 0), (1, 0)), constant_values=1)
    history = model.fit(ids_in, ids_out, batch_size=4, epochs=12, verbose=0).history
    assert history["loss"][-1] < 0.3 * history["loss"][0]


def test_one_step_moves_the_output_matrix_by_the_gradient_of_the_reference(rng):
    rates = ("dropout_rate", "attention_dropout_rate", "activation_dropout_rate")
    options = dict.fromkeys(rates, 0.0)
    model = random_model(rng, tied_embeddings=False, **options)
    states = ops.convert_to_numpy(model(IDS_IN, return_states=True))
    gradient = reference.label_smoothed_cross_entropy_gradient(
        logits_of(model, IDS_IN), IDS_OUT, 0.0
    )
    before = ops.convert_to_numpy(model.output_kernel).copy()
    model.compile(keras.optimizers.SGD(0.5), MaskedCrossentropy())
    model.train_on_batch(IDS_IN, IDS_OUT)
    expected = before - 0.5 * np.einsum("btd,btv->dv", states, gradient)
    assert_close(model.output_kernel, expected)


def test_parameters_agree_with_a_count_by_hand():
    """4 layers of width 128: embeddings once, four projections, feed-forward, norms."""
    config = LanguageModelConfig(
        vocabulary_size=69, num_layers=4, d_model=128, d_ff=512, num_heads=4,
        norm_first=True,
    )  # fmt: skip
    layer = 4 * 128 * 128 + 2 * 128 * 512 + 512 + 128 + 2 * 2 * 128
    assert LanguageModel(config).count_params() == 69 * 128 + 4 * layer + 2 * 128


@pytest.mark.one_case
def test_file_gives_the_same_model(model, tmp_path):
    model.compile("adam", MaskedCrossentropy())
    model.train_on_batch(IDS_IN, IDS_OUT)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.config == model.config
    np.testing.assert_array_equal(logits_of(loaded, IDS_IN), logits_of(model, IDS_IN))
    assert isinstance(loaded.loss, MaskedCrossentropy)


def test_saved_model_gives_the_same_logits(rng, tmp_path):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("a SavedModel is written with the TensorFlow backend")
    import tensorflow as tf

    model = random_model(rng, norm_first=True)
    model.export(tmp_path / "1", verbose=False)
    served = tf.saved_model.load(tmp_path / "1")
    assert_close(served.serve(IDS_IN).numpy(), logits_of(model, IDS_IN))


def test_layers_are_made_in_a_method_to_override(rng):
    class Wide(LanguageModel):
        def make_layer(self, name):
            layer = super().make_layer(name)
            config = layer.get_config() | {"d_ff": 41}
            return type(layer).from_config(config)

    model = Wide(LanguageModelConfig(**SIZES))
    assert [layer.feed_forward.d_ff for layer in model.decoder_layers] == [41] * 3
    assert logits_of(model, IDS_IN).shape == (2, LENGTH, 29)


def test_wrong_arguments_are_refused(rng):
    with pytest.raises(
        TypeError, match="`config` must be of the class `LanguageModelConfig`"
    ):
        LanguageModel({"d_model": 16})
    with pytest.raises(ValueError, match="three different ids below `vocabulary_size`"):
        LanguageModelConfig(**(SIZES | {"end_id": 1}))
    with pytest.raises(ValueError, match="three different ids .* vocabulary_size=2"):
        LanguageModelConfig(**(SIZES | {"vocabulary_size": 2}))
    with pytest.raises(ValueError, match="`d_model` must be a multiple"):
        LanguageModelConfig(**(SIZES | {"key_dim": None}))
    model = random_model(rng, positions="learned")
    with pytest.raises(ValueError, match="length=20, max_positions=19"):
        model.start_decoding(1, 20)
