"""The Transformer: its ties, gradients by hand, sizes, and states of decoding."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import MaskedCrossentropy, Transformer, TransformerConfig
from tests.layers.reference_weights import assert_close
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


def test_a_source_of_padding_decodes_alike_with_and_without_cache(rng):
    model = random_model(rng)
    source = np.zeros_like(SOURCE)
    expected = logits_of(model, source, TARGET_IN)
    state = model.start_decoding(source, LENGTH)
    for position in range(LENGTH):
        ids = ops.convert_to_tensor(TARGET_IN[:, position])
        logits, state = model.decode_step(ids, np.zeros((2, 1), "int32"), state)
        assert_close(logits, expected[:, position])


@pytest.mark.parametrize(
    "name, d_model, d_ff, total",
    (("base", 512, 2048, 63_045_632), ("big", 1024, 4096, 214_171_648)),
)
def test_parameters_agree_with_a_count_by_hand(name, d_model, d_ff, total):
    """Table 3: 65 and 213 million; one matrix of 37000 pieces, no attention biases."""
    attention = 4 * d_model**2  # W^Q, W^K, W^V and W^O of all heads
    feed_forward = (d_model * d_ff + d_ff) + (d_ff * d_model + d_model)
    encoder_layer = attention + feed_forward + 2 * 2 * d_model
    decoder_layer = 2 * attention + feed_forward + 3 * 2 * d_model
    assert 37000 * d_model + 6 * encoder_layer + 6 * decoder_layer == total
    config = TransformerConfig.preset(name)
    assert (config.num_encoder_layers, config.num_decoder_layers) == (6, 6)
    # One layer each is built: all six of the big one would take a gigabyte.
    model = Transformer(config.replace(num_encoder_layers=1, num_decoder_layers=1))
    assert model.count_params() == 37000 * d_model + encoder_layer + decoder_layer
