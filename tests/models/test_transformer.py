"""The Transformer: its ties, gradients by hand, sizes, and states of decoding."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import MaskedCrossentropy, Transformer, TransformerConfig
from tests.layers.reference_weights import assert_close, model_weights_of
from tests.models.transformer_cases import (
    NO_DROPOUT,
    SIZES,
    SOURCE,
    TARGET_IN,
    TARGET_OUT,
    logits_expected,
    random_model,
)
from tests.reference import numpy_transformer as reference

LENGTH = TARGET_IN.shape[1]
numpy = ops.convert_to_numpy


def logits_of(model, source, target):
    return numpy(model((source, target)))


def own_places(sentences, beam_size):
    """Parents (B, N) of hypotheses that all keep their place."""
    return np.tile(np.arange(beam_size, dtype="int32"), (sentences, 1))


def test_encoder_output_agrees_with_the_reference(rng):
    model = random_model(rng)
    weights = model_weights_of(model)
    expected = reference.positional_embedding(SOURCE, weights["source_embeddings"])
    mask = reference.padding_mask(SOURCE)
    for layer in weights["encoder_layers"]:
        expected = reference.encoder_layer(expected, layer, SIZES["num_heads"], mask)
    encoder_output, source_mask = model.encode(SOURCE)
    assert_close(encoder_output, expected)
    np.testing.assert_array_equal(numpy(source_mask), mask)


def test_other_padding_id(rng):
    """Padding is what the config says, not zero."""
    model = random_model(rng, pad_id=3, unknown_id=0)
    source, target = (np.where(x == 0, 3, x) for x in (SOURCE, TARGET_IN))
    expected = logits_expected(model, (source, target))
    assert_close(model((source, target))[:, :3], expected[:, :3])


def test_output_matrix_moves_by_the_gradient_of_the_reference(rng):
    """One SGD step: dL/dW = states^T (softmax - smoothed target) / tokens."""
    model = random_model(rng, tied_embeddings="none", **NO_DROPOUT)
    states = numpy(model((SOURCE, TARGET_IN), return_states=True))
    logits = logits_of(model, SOURCE, TARGET_IN)
    before = numpy(model.output_dense.kernel).copy()
    gradient = reference.label_smoothed_cross_entropy_gradient(logits, TARGET_OUT, 0.1)
    expected = before - 0.5 * np.einsum("btd,btv->dv", states, gradient)
    model.compile(keras.optimizers.SGD(0.5), MaskedCrossentropy(0.1))
    model.train_on_batch((SOURCE, TARGET_IN), TARGET_OUT)
    assert_close(model.output_dense.kernel, expected)


TIES = {
    "three-way": ({"source", "target", "output"}, 1),
    "two-way": ({"target", "output"}, 2),
    "none": ({"target"}, 3),
}


@pytest.mark.parametrize("tied", TIES)
def test_matrices_are_shared_as_tied(rng, tied, tmp_path):
    """Proven by changing one: row 13 is in no target, so only the tied ends move."""
    model = random_model(rng, tied_embeddings=tied)
    model.save(tmp_path / "model.keras")
    changed, count = TIES[tied]
    for one in (model, keras.saving.load_model(tmp_path / "model.keras")):
        assert uses_that_change(one) == changed
        size = SIZES["target_vocabulary_size"]
        assert sum(size in weight.shape for weight in one.weights) == count


def uses_that_change(model):
    """Which of the three uses of an embedding row see a change of the target's."""
    source = np.where(SOURCE == 9, 13, SOURCE)
    target = np.where(TARGET_IN == 14, 13, TARGET_IN)

    def observe():
        outputs = {
            "source": model.encode(source)[0],
            "target": model.target_embedding(target),
            # No 13 goes in here; only the output matrix can tell.
            "output": model((SOURCE, TARGET_IN)),
        }
        return {name: numpy(x).copy() for name, x in outputs.items()}

    before = observe()
    embeddings = numpy(model.target_embedding.embeddings).copy()
    embeddings[13] += 1.0
    model.target_embedding.embeddings.assign(embeddings)
    after = observe()
    changed = before["output"] != after["output"]
    assert not np.delete(changed, 13, axis=-1).any()
    return {name for name in before if (before[name] != after[name]).any()}


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


def test_order_of_the_source_matters(rng):
    """Without positions the encoder could not tell a sentence from its reverse."""
    model = random_model(rng)
    reversed_source = SOURCE[:1, ::-1].copy()
    before = logits_of(model, SOURCE[:1], TARGET_IN[:1])
    after = logits_of(model, reversed_source, TARGET_IN[:1])
    assert np.abs(before - after).max() > 1e-3


def test_hypotheses_may_change_places_between_steps(rng):
    """Each hypothesis must find its own past in the caches, and only it."""
    model = random_model(rng)
    target = rng.integers(4, 29, size=(4, LENGTH))
    source = np.repeat(SOURCE, 2, axis=0)
    order = np.array([1, 0, 2, 2])  # Swap in sentence 0, copy in sentence 1.
    parents = own_places(2, 2)
    state = model.start_decoding(SOURCE, LENGTH, beam_size=2)
    for position in range(2):
        ids = ops.convert_to_tensor(target[:, position])
        _, state = model.decode_step(ids, parents, state)
    ids = ops.convert_to_tensor(target[:, 2])
    moved_parents = np.array([[1, 0], [0, 0]], "int32")
    logits, state = model.decode_step(ids, moved_parents, state)
    moved = np.concatenate([target[order, :2], target[:, 2:]], axis=1)
    assert_close(logits, logits_of(model, source, moved)[:, 2])
    # What follows goes on from there.
    ids = ops.convert_to_tensor(target[:, 3])
    logits, _ = model.decode_step(ids, parents, state)
    assert_close(logits, logits_of(model, source, moved)[:, 3])


def test_a_resized_state_goes_on_as_before(rng):
    """Fewer sentences and more room change nothing for the sentences that stay."""
    model = random_model(rng)
    target = rng.integers(4, 29, size=(4, LENGTH))
    state = model.start_decoding(SOURCE, 2, beam_size=2)
    parents = own_places(2, 2)
    for position in range(2):
        ids = ops.convert_to_tensor(target[:, position])
        _, state = model.decode_step(ids, parents, state)
    state = model.resize_decoding(state, np.array([1], "int32"), LENGTH)
    source = np.repeat(SOURCE[1:], 2, axis=0)
    expected = logits_of(model, source, target[2:])
    for position in range(2, LENGTH):
        ids = ops.convert_to_tensor(target[2:, position])
        logits, state = model.decode_step(ids, parents[:1], state)
        assert_close(logits, expected[:, position])


def test_a_source_of_padding_decodes_alike_with_and_without_cache(rng):
    model = random_model(rng)
    source = np.zeros_like(SOURCE)
    expected = logits_of(model, source, TARGET_IN)
    state = model.start_decoding(source, LENGTH)
    for position in range(LENGTH):
        ids = ops.convert_to_tensor(TARGET_IN[:, position])
        logits, state = model.decode_step(ids, own_places(2, 1), state)
        assert_close(logits, expected[:, position])


def test_sinusoidal_model_reads_sentences_longer_than_any_setting(rng):
    model = random_model(rng)
    length = 3 * SIZES["max_positions"]
    source = rng.integers(4, 29, size=(1, length))
    assert np.isfinite(logits_of(model, source, TARGET_IN[:1])).all()
