"""The whole model against NumPy, its weights, its file, its training."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import (
    MaskedAccuracy,
    MaskedCrossentropy,
    Perplexity,
    Transformer,
    TransformerConfig,
)
from tests.layers.reference_weights import assert_close, model_weights_of
from tests.models.transformer_cases import (
    SIZES,
    SOURCE,
    TARGET_IN,
    TARGET_OUT,
    VARIANTS,
    random_model,
)
from tests.reference import numpy_transformer as reference

REAL = TARGET_IN != 0


FIRST, *OTHERS = VARIANTS


@pytest.fixture(params=list(VARIANTS))
def model(request, rng):
    return random_model(rng, **VARIANTS[request.param])


def reference_logits(model, source, target):
    return reference.transformer(
        source, target, model_weights_of(model), SIZES["num_heads"],
        model.config.norm_first, model.config.pad_id,
    )  # fmt: skip


def test_without_its_end_a_source_is_as_one_that_is_padded(rng):
    options = {"norm_first": True, "tied_embeddings": "two-way"}
    model = random_model(rng, **options, source_end=False)
    other = random_model(rng, **options)
    other.set_weights(model.get_weights())
    found = ops.convert_to_numpy(model((SOURCE, TARGET_IN)))
    without = np.where(SOURCE == 2, 0, SOURCE)
    expected = ops.convert_to_numpy(other((without, TARGET_IN)))
    # The embedding of the end, at a place that is masked, counts for nothing.
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(found - ops.convert_to_numpy(other((SOURCE, TARGET_IN)))).max() > 0.01
    mask = ops.convert_to_numpy(model.encode(SOURCE)[1])
    np.testing.assert_array_equal(mask[:, 0], without != 0)


@pytest.mark.one_case
def test_logits_agree_with_the_reference(model):
    logits = ops.convert_to_numpy(model((SOURCE, TARGET_IN)))
    assert logits.shape == (2, 5, 29)
    assert logits.dtype == np.float32
    expected = reference_logits(model, SOURCE, TARGET_IN)
    assert_close(logits[REAL], expected[REAL])


def test_encoder_output_agrees_with_the_reference(rng):
    model = random_model(rng)
    weights = model_weights_of(model)
    expected = reference.positional_embedding(SOURCE, weights["source_embeddings"])
    mask = reference.padding_mask(SOURCE)
    for layer in weights["encoder_layers"]:
        expected = reference.encoder_layer(expected, layer, SIZES["num_heads"], mask)
    encoder_output, source_mask = model.encode(SOURCE)
    assert_close(encoder_output, expected)
    np.testing.assert_array_equal(ops.convert_to_numpy(source_mask), mask)


def test_other_padding_id(rng):
    """Padding is what the config says, not zero."""
    model = random_model(rng, pad_id=3, unknown_id=0)
    source, target = (np.where(x == 0, 3, x) for x in (SOURCE, TARGET_IN))
    expected = reference_logits(model, source, target)
    assert_close(model((source, target))[:, :3], expected[:, :3])


@pytest.mark.one_case
def test_loss_and_metrics_agree_with_the_reference(model):
    logits = reference_logits(model, SOURCE, TARGET_IN)
    model.compile(
        optimizer="sgd",
        loss=MaskedCrossentropy(label_smoothing=0.1),
        metrics=[MaskedAccuracy(), Perplexity()],
    )
    results = model.evaluate(
        (SOURCE, TARGET_IN), TARGET_OUT, batch_size=2, verbose=0, return_dict=True
    )
    expected = {
        "loss": reference.label_smoothed_cross_entropy(logits, TARGET_OUT, 0.1),
        "accuracy": reference.masked_accuracy(logits, TARGET_OUT),
        "perplexity": reference.perplexity(logits, TARGET_OUT),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(results[name], value, rtol=1e-5, err_msg=name)


def test_output_matrix_moves_by_the_gradient_of_the_reference(rng):
    """One SGD step: dL/dW = states^T (softmax - smoothed target) / tokens."""
    model = random_model(
        rng, tied_embeddings="none", dropout_rate=0.0, attention_dropout_rate=0.0,
        activation_dropout_rate=0.0,
    )  # fmt: skip
    states = ops.convert_to_numpy(_last_states(model, SOURCE, TARGET_IN))
    logits = ops.convert_to_numpy(model((SOURCE, TARGET_IN)))
    before = ops.convert_to_numpy(model.output_kernel).copy()
    gradient = reference.label_smoothed_cross_entropy_gradient(logits, TARGET_OUT, 0.1)
    expected = before - 0.5 * np.einsum("btd,btv->dv", states, gradient)
    model.compile(
        optimizer=keras.optimizers.SGD(0.5),
        loss=MaskedCrossentropy(label_smoothing=0.1),
    )
    model.train_on_batch((SOURCE, TARGET_IN), TARGET_OUT)
    assert_close(model.output_kernel, expected)


def _last_states(model, source, target):
    """The decoder's states before the output matrix, (B, T, D)."""
    encoder_output, source_mask = model.encode(source)
    states = model.target_embedding(target)
    for layer in model.decoder_layers:
        states = layer(states, encoder_output, encoder_output_mask=source_mask)
    return states


def test_one_matrix_serves_source_target_and_output_when_tied_three_ways(rng):
    """Proven by changing it: row 13 is in no target, so only the tied ends move."""
    model = random_model(rng)
    with_13 = np.where(SOURCE == 9, 13, SOURCE)
    effects = _effects_of_changing_target_row_13(model, with_13)
    assert effects == {"source": True, "target": True, "output": True}
    assert _matrices_of_the_vocabulary(model) == 1


def test_target_and_output_share_a_matrix_when_tied_two_ways(rng):
    model = random_model(rng, tied_embeddings="two-way")
    with_13 = np.where(SOURCE == 9, 13, SOURCE)
    effects = _effects_of_changing_target_row_13(model, with_13)
    assert effects == {"source": False, "target": True, "output": True}
    assert _matrices_of_the_vocabulary(model) == 2


def test_no_matrix_is_shared_when_untied(rng):
    model = random_model(rng, tied_embeddings="none")
    with_13 = np.where(SOURCE == 9, 13, SOURCE)
    effects = _effects_of_changing_target_row_13(model, with_13)
    assert effects == {"source": False, "target": True, "output": False}
    assert _matrices_of_the_vocabulary(model) == 3


def _matrices_of_the_vocabulary(model):
    vocabulary_size = SIZES["target_vocabulary_size"]
    return sum(vocabulary_size in weight.shape for weight in model.weights)


def _effects_of_changing_target_row_13(model, source_with_13):
    """Which of the three uses of an embedding row see a change of the target's."""
    target_with_13 = np.where(TARGET_IN == 14, 13, TARGET_IN)

    def observe():
        outputs = {
            "source": model.encode(source_with_13)[0],
            "target": model.target_embedding(target_with_13),
            # No 13 goes in here; only the output matrix can tell.
            "output": model((SOURCE, TARGET_IN)),
        }
        return {name: ops.convert_to_numpy(x).copy() for name, x in outputs.items()}

    before = observe()
    embeddings = ops.convert_to_numpy(model.target_embedding.embeddings).copy()
    embeddings[13] += 1.0
    model.target_embedding.embeddings.assign(embeddings)
    after = observe()
    changed = before["output"] != after["output"]
    assert not np.delete(changed, 13, axis=-1).any()
    return {name: bool((before[name] != after[name]).any()) for name in before}


def test_parameters_of_base_agree_with_a_count_by_hand():
    """Table 3, base: N 6, d_model 512, d_ff 2048, h 8, d_k = d_v = 64; 65 million.

    One matrix of 37000 joint pieces; no attention biases.
    """
    embeddings = 37000 * 512
    attention = 4 * 512 * (8 * 64)  # W^Q, W^K, W^V and W^O of all heads
    feed_forward = (512 * 2048 + 2048) + (2048 * 512 + 512)
    norm = 2 * 512
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    assert (encoder_layer, decoder_layer) == (3_150_336, 4_199_936)
    total = embeddings + 6 * encoder_layer + 6 * decoder_layer
    assert total == 63_045_632
    model = Transformer(TransformerConfig.preset("base"))
    assert model.count_params() == total


def test_parameters_of_big_agree_with_a_count_by_hand():
    """Table 3, big: N 6, d_model 1024, d_ff 4096, h 16, d_k = d_v = 64; 213 million."""
    embeddings = 37000 * 1024
    attention = 4 * 1024 * (16 * 64)
    feed_forward = (1024 * 4096 + 4096) + (4096 * 1024 + 1024)
    norm = 2 * 1024
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    assert (encoder_layer, decoder_layer) == (12_592_128, 16_788_480)
    total = embeddings + 6 * encoder_layer + 6 * decoder_layer
    assert total == 214_171_648
    # One layer each is built, and each layer counted: all six would take a gigabyte.
    model = Transformer(
        TransformerConfig.preset("big", num_encoder_layers=1, num_decoder_layers=1)
    )
    assert model.encoder_layers[0].count_params() == encoder_layer
    assert model.decoder_layers[0].count_params() == decoder_layer
    assert model.count_params() == embeddings + encoder_layer + decoder_layer
    config = TransformerConfig.preset("big")
    assert (config.num_encoder_layers, config.num_decoder_layers) == (6, 6)


@pytest.mark.one_case
def test_saved_file_gives_identical_outputs(model, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(loaded, Transformer)
    assert loaded.config == model.config
    np.testing.assert_array_equal(
        ops.convert_to_numpy(loaded((SOURCE, TARGET_IN))),
        ops.convert_to_numpy(model((SOURCE, TARGET_IN))),
    )


def test_saved_file_keeps_the_tie(rng, tmp_path):
    random_model(rng).save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    with_13 = np.where(SOURCE == 9, 13, SOURCE)
    assert all(_effects_of_changing_target_row_13(loaded, with_13).values())


def test_config_round_trip():
    config = TransformerConfig(**SIZES, norm_first=True)
    model = Transformer(config, name="named", dtype="mixed_bfloat16")
    again = Transformer.from_config(model.get_config())
    assert again.get_config() == model.get_config()
    assert again.config == config
    assert again.name == "named"
    assert again.dtype_policy.name == "mixed_bfloat16"


def test_mixed_precision_stays_close_and_keeps_float32_weights(rng):
    exact = random_model(rng)
    mixed = Transformer(exact.config, dtype="mixed_bfloat16")
    mixed.set_weights(exact.get_weights())
    assert {weight.dtype for weight in mixed.weights} == {"float32"}
    logits = ops.cast(mixed((SOURCE, TARGET_IN)), "float32")
    expected = ops.convert_to_numpy(exact((SOURCE, TARGET_IN)))
    assert_close(logits, expected, tolerance=0.2)


@pytest.mark.parametrize(
    "model",
    [
        FIRST,
        *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS),
    ],
    indirect=True,
)
def test_gradient_reaches_every_weight(model):
    before = [ops.convert_to_numpy(weight).copy() for weight in model.weights]
    model.compile(optimizer=keras.optimizers.SGD(1.0), loss=MaskedCrossentropy())
    model.train_on_batch((SOURCE, TARGET_IN), TARGET_OUT)
    for weight, old in zip(model.weights, before, strict=True):
        moved = np.abs(ops.convert_to_numpy(weight) - old).max()
        # A key's bias adds one number to all scores of a query: softmax removes it.
        if weight.name != "key_bias":
            assert moved > 1e-7, weight.path


def test_predict_equals_call(rng):
    model = random_model(rng)
    expected = ops.convert_to_numpy(model((SOURCE, TARGET_IN)))
    assert_close(model.predict((SOURCE, TARGET_IN), verbose=0), expected)


def test_config_of_another_type_is_refused():
    with pytest.raises(
        TypeError, match="`config` must be of the class `TransformerConfig`"
    ):
        Transformer(SIZES)


def test_saved_model_gives_the_same_logits(rng, tmp_path):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("a SavedModel is written with the TensorFlow backend")
    import tensorflow as tf

    model = random_model(rng)
    model.export(tmp_path / "1", verbose=False)
    served = tf.saved_model.load(tmp_path / "1")
    logits = served.serve((SOURCE, TARGET_IN)).numpy()
    assert_close(logits, ops.convert_to_numpy(model((SOURCE, TARGET_IN))))
