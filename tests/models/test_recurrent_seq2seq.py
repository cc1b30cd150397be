"""The recurrent model against NumPy, its weights, its file, its training."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import MaskedAccuracy, MaskedCrossentropy, Perplexity
from keras_transformer.config import RecurrentConfig, TransformerConfig
from keras_transformer.exact_training.loss import loss_and_scores
from keras_transformer.kernels.crossentropy import TokenScores
from keras_transformer.models.families import make_model
from keras_transformer.models.recurrent_seq2seq import RecurrentSeq2Seq
from keras_transformer.testing import (
    assert_cached_equals_uncached,
    assert_causal,
    assert_padding_invariant,
)
from tests.layers.reference_weights import assert_close
from tests.models.recurrent_cases import SIZES, VARIANTS, random_model, weights_of
from tests.models.transformer_cases import SOURCE, TARGET_IN, TARGET_OUT
from tests.reference import numpy_recurrent as reference
from tests.reference import numpy_transformer

REAL = TARGET_IN != 0
LENGTH = TARGET_IN.shape[1]


@pytest.fixture(params=list(VARIANTS))
def model(request, rng):
    return random_model(rng, **VARIANTS[request.param])


def logits_of(model, source=SOURCE, target=TARGET_IN, **options):
    return ops.convert_to_numpy(model((source, target), **options))


def own_places(sentences, beam_size):
    """Parents (B, k) of hypotheses that all keep their place."""
    return np.tile(np.arange(beam_size, dtype="int32"), (sentences, 1))


@pytest.mark.one_case
def test_logits_and_attention_agree_with_the_reference(model):
    expected, attention = reference.recurrent(SOURCE, TARGET_IN, weights_of(model))
    logits = logits_of(model)
    assert logits.shape == (2, 5, 29)
    assert logits.dtype == np.float32
    assert_close(logits[REAL], expected[REAL])
    weights = ops.convert_to_numpy(model.attention(TARGET_IN, *model.encode(SOURCE)))
    assert weights.shape == (2, 1, 5, 7)
    assert_close(weights[:, 0][REAL], attention[REAL])


@pytest.mark.one_case
def test_encoder_output_agrees_with_the_reference(model):
    states, mask = model.encode(SOURCE)
    np.testing.assert_array_equal(ops.convert_to_numpy(mask)[:, 0], SOURCE != 0)
    for row, length in enumerate((SOURCE != 0).sum(axis=1)):
        expected = reference.encode(SOURCE[row, :length], weights_of(model))
        assert_close(states[row, :length], expected)


def test_other_padding_id(rng):
    model = random_model(rng, pad_id=3, unknown_id=0)
    source, target = (np.where(x == 0, 3, x) for x in (SOURCE, TARGET_IN))
    expected, _ = reference.recurrent(source, target, weights_of(model), pad_id=3)
    assert_close(logits_of(model, source, target)[REAL], expected[REAL])


@pytest.mark.one_case
def test_later_token_cannot_change_an_earlier_logit(model):
    def scores(target, source):
        return model((source, target))

    assert_causal(scores, (TARGET_IN, SOURCE), ids_below=29, tolerance=0)


@pytest.mark.one_case
def test_padding_and_other_rows_change_nothing(model):
    def scores(target, source):
        return model((source, target))

    assert_padding_invariant(scores, (TARGET_IN, SOURCE))


@pytest.mark.one_case
def test_hypotheses_move_and_leave_with_their_states(model):
    assert_cached_equals_uncached(model, SOURCE)


@pytest.mark.one_case
@pytest.mark.parametrize("beam_size", [1, 3])
def test_cached_decoding_equals_teacher_forcing(model, rng, beam_size):
    target = rng.integers(4, 29, size=(2 * beam_size, LENGTH))
    target[:, 0] = 1
    source = np.repeat(SOURCE, beam_size, axis=0)
    expected = logits_of(model, source, target)
    state = model.start_decoding(SOURCE, LENGTH, beam_size, coverage=True)
    for position in range(LENGTH):
        ids = ops.convert_to_tensor(target[:, position])
        logits, state = model.decode_step(ids, own_places(2, beam_size), state)
        assert_close(logits, expected[:, position])
    attention = ops.convert_to_numpy(model.attention(target, *model.encode(source)))
    summed = attention[:, 0].sum(axis=1).reshape(2, beam_size, -1)
    coverage, is_token = model.coverage(state)
    assert_close(coverage, summed)
    np.testing.assert_array_equal(ops.convert_to_numpy(is_token)[:, 0], SOURCE != 0)


def test_hypotheses_may_change_places_and_sentences_leave(rng):
    model = random_model(rng)
    target = rng.integers(4, 29, size=(4, 3))
    parents = own_places(2, 2)
    state = model.start_decoding(SOURCE, 2, beam_size=2, coverage=True)
    for position in range(2):
        _, state = model.decode_step(target[:, position], parents, state)
    state = model.resize_decoding(state, np.array([1], "int32"), LENGTH)
    moved = np.array([[1, 1]], "int32")
    logits, state = model.decode_step(target[2:, 2], moved, state)
    target[2, :2] = target[3, :2]
    source = np.repeat(SOURCE[1:], 2, axis=0)
    assert_close(logits, logits_of(model, source, target[2:])[:, 2])
    attention = ops.convert_to_numpy(model.attention(target[2:], *model.encode(source)))
    assert_close(state["coverage"][0], attention[:, 0].sum(axis=1))


@pytest.mark.one_case
def test_a_source_of_padding_decodes_alike_with_and_without_cache(model):
    source = np.zeros_like(SOURCE)
    expected = logits_of(model, source)
    assert np.isfinite(expected).all()
    state = model.start_decoding(source, LENGTH)
    for position in range(LENGTH):
        logits, state = model.decode_step(
            TARGET_IN[:, position], own_places(2, 1), state
        )
        assert_close(logits, expected[:, position])


@pytest.mark.one_case
def test_loss_and_metrics_agree_with_the_reference(model):
    logits, _ = reference.recurrent(SOURCE, TARGET_IN, weights_of(model))
    model.compile(
        "sgd", MaskedCrossentropy(0.1), metrics=[MaskedAccuracy(), Perplexity()]
    )
    results = model.evaluate(
        (SOURCE, TARGET_IN), TARGET_OUT, batch_size=2, verbose=0, return_dict=True
    )
    loss = numpy_transformer.label_smoothed_cross_entropy(logits, TARGET_OUT, 0.1)
    np.testing.assert_allclose(results["loss"], loss, rtol=1e-5)
    accuracy = numpy_transformer.masked_accuracy(logits, TARGET_OUT)
    np.testing.assert_allclose(results["accuracy"], accuracy, rtol=1e-5)
    perplexity = numpy_transformer.perplexity(logits, TARGET_OUT)
    np.testing.assert_allclose(results["perplexity"], perplexity, rtol=1e-5)


@pytest.mark.one_case
def test_gradient_reaches_every_weight_without_the_logits(model):
    before = [ops.convert_to_numpy(weight).copy() for weight in model.weights]
    model.compile(keras.optimizers.SGD(1.0), MaskedCrossentropy())
    inputs = [ops.convert_to_tensor(x) for x in (SOURCE, TARGET_IN)]
    _, y_pred = loss_and_scores(
        model, inputs, ops.convert_to_tensor(TARGET_OUT), None, False
    )
    assert isinstance(y_pred, TokenScores)
    model.train_on_batch((SOURCE, TARGET_IN), TARGET_OUT)
    for weight, old in zip(model.weights, before, strict=True):
        moved = np.abs(ops.convert_to_numpy(weight) - old).max()
        assert moved > 1e-7, weight.path


@pytest.mark.slow
def test_accumulated_batches_give_the_gradient_of_one(rng):
    exact = {"dropout_rate": 0.0}
    whole, parts = (random_model(np.random.default_rng(3), **exact) for _ in range(2))
    whole.compile(keras.optimizers.SGD(2.0), MaskedCrossentropy(0.1))
    whole.fit((SOURCE, TARGET_IN), TARGET_OUT, batch_size=2, verbose=0)
    parts.compile(
        keras.optimizers.SGD(2.0),
        MaskedCrossentropy(0.1),
        gradient_accumulation_steps=2,
    )
    parts.fit((SOURCE, TARGET_IN), TARGET_OUT, batch_size=1, shuffle=False, verbose=0)
    for ours, theirs in zip(parts.weights, whole.weights, strict=True):
        assert_close(ours, ops.convert_to_numpy(theirs))


def test_it_learns_to_reverse():
    model = RecurrentSeq2Seq(RecurrentConfig(**SIZES, dropout_rate=0.0))
    model.compile(keras.optimizers.Adam(0.03), MaskedCrossentropy())
    history = model.fit(
        (SOURCE, TARGET_IN), TARGET_OUT, epochs=30, batch_size=2, verbose=0
    )
    assert history.history["loss"][-1] < 0.05 < 3.0 < history.history["loss"][0]


def test_dropout_acts_in_training_only(rng):
    model = random_model(rng, dropout_rate=0.5)
    np.testing.assert_array_equal(logits_of(model), logits_of(model))
    assert np.abs(logits_of(model, training=True) - logits_of(model)).max() > 1e-2


def test_dropout_acts_on_what_goes_from_layer_to_layer(rng):
    model = random_model(rng, num_decoder_layers=3, dropout_rate=0.5)
    model.embedding_dropout = model.readout_dropout = lambda x, training=None: x
    assert np.abs(logits_of(model, training=True) - logits_of(model)).max() > 1e-2
    factors = ops.convert_to_numpy(model._dropped(np.ones((7, 5, 17)), True))
    assert factors.shape == (7, 5, 2 * 11)
    assert set(np.unique(factors)) == {0.0, 2.0}
    assert len(np.unique(factors.reshape(-1, 11), axis=0)) > 60
    # The middle layer gets nothing, as from weights of 0, and the last one half.
    weights = weights_of(model)
    weights["cells"][1]["kernel"] *= 0.0
    weights["cells"][2]["kernel"] *= 0.5
    expected, _ = reference.recurrent(SOURCE, TARGET_IN, weights)
    fixed = np.repeat([0.0, 0.5], 11) * np.ones((2, 5, 1))
    model._dropped = lambda tokens, training: ops.convert_to_tensor(fixed, "float32")
    assert_close(logits_of(model, training=True)[REAL], expected[REAL])


def test_dropout_acts_between_encoder_layers(rng):
    model = random_model(rng, num_encoder_layers=2, dropout_rate=0.5)
    model.embedding_dropout = model.readout_dropout = lambda x, training=None: x
    assert np.abs(logits_of(model, training=True) - logits_of(model)).max() > 1e-2
    assert not hasattr(random_model(rng), "layer_dropout")


def test_an_own_layer_and_cell_take_the_places_of_ours(rng):
    class Own(RecurrentSeq2Seq):
        def make_encoder_layer(self, name):
            cell = keras.layers.SimpleRNNCell(self.config.units)
            return keras.layers.RNN(cell, return_sequences=True, name=name)

        def make_decoder_cell(self, name):
            if name == "decoder_cell":
                return keras.layers.LSTMCell(self.config.units)
            return keras.layers.GRUCell(self.config.units)

    model = Own(RecurrentConfig(**SIZES, num_decoder_layers=2))
    assert model.start_decoding(SOURCE, LENGTH)["hidden"].shape == (2, 1, 3 * 11)
    assert_cached_equals_uncached(model, SOURCE)
    assert_padding_invariant(lambda t, s: model((s, t)), (TARGET_IN, SOURCE))


@pytest.mark.one_case
def test_saved_file_gives_identical_outputs(model, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is RecurrentSeq2Seq
    assert loaded.config == model.config
    assert len(loaded.weights) == len(model.weights)
    np.testing.assert_array_equal(logits_of(loaded), logits_of(model))


def test_config_round_trip():
    config = RecurrentConfig(**SIZES, bidirectional=False)
    model = RecurrentSeq2Seq(config, name="named", dtype="mixed_bfloat16")
    again = RecurrentSeq2Seq.from_config(model.get_config())
    assert again.get_config() == model.get_config()
    assert again.config == config
    assert (again.name, again.dtype_policy.name) == ("named", "mixed_bfloat16")


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
def test_half_precision_stays_close(rng, dtype):
    exact = random_model(rng)
    if dtype == "bfloat16":
        half = exact.with_dtype(dtype)
    else:
        half = RecurrentSeq2Seq(exact.config, dtype=dtype)
        half.set_weights(exact.get_weights())
    kept = "bfloat16" if dtype == "bfloat16" else "float32"
    assert {weight.dtype for weight in half.weights} == {kept}
    logits = ops.cast(half((SOURCE, TARGET_IN)), "float32")
    assert_close(logits, logits_of(exact), tolerance=0.2)
    state = half.start_decoding(SOURCE, LENGTH)
    step, _ = half.decode_step(TARGET_IN[:, 0], own_places(2, 1), state)
    assert_close(ops.cast(step, "float32"), logits_of(exact)[:, 0], tolerance=0.2)


def test_predict_equals_call(rng):
    model = random_model(rng)
    assert_close(model.predict((SOURCE, TARGET_IN), verbose=0), logits_of(model))


def test_the_paper_model_has_its_size():
    """A.2.3: 1000 units, embeddings of 620, here shared with the output."""
    config = RecurrentConfig.preset(
        "base", source_vocabulary_size=11, target_vocabulary_size=11
    )
    assert (config.d_model, config.units, config.attention_units) == (620, 1000, None)
    gru = 3 * 1000 * (620 + 1000 + 2)
    cell = 3 * 1000 * (620 + 2000 + 1000 + 2)
    attention = 1000 * 1000 + 2000 * 1000 + 1000
    initial, readout = 1000 * 1000 + 1000, (1000 + 620 + 2000) * 620 + 620
    total = 11 * 620 + 2 * gru + cell + attention + initial + readout
    assert RecurrentSeq2Seq(config).count_params() == total


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_config_counts_the_matrices(variant):
    model = RecurrentSeq2Seq(RecurrentConfig(**(SIZES | VARIANTS[variant])))
    matrices = [w.shape for w in model.weights if "bias" not in w.name]
    attention = model.cross_attention.score_kernel.shape
    assert model.config.fewest_weights() == sum(
        np.prod(shape) for shape in matrices if shape != attention
    )


def test_config_of_another_family_is_refused():
    with pytest.raises(
        TypeError, match="`config` must be of the class `RecurrentConfig`"
    ):
        RecurrentSeq2Seq(TransformerConfig())


def test_a_config_makes_the_model_of_its_family():
    model = make_model(RecurrentConfig(**SIZES), name="made")
    assert (type(model), model.name) == (RecurrentSeq2Seq, "made")
