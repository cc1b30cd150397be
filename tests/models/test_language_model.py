"""The language model: its gradient by hand, size, states of decoding and errors."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import LanguageModel, LanguageModelConfig, MaskedCrossentropy
from tests.layers.reference_weights import assert_close
from tests.models.transformer_cases import (
    IDS_IN,
    IDS_OUT,
    LANGUAGE_SIZES,
    NO_DROPOUT,
    random_language_model,
)
from tests.reference import numpy_transformer as reference

LENGTH = IDS_IN.shape[1]


def logits_of(model, ids):
    return ops.convert_to_numpy(model(ids))


def test_hypotheses_may_change_places_and_rows_may_end(rng):
    """Each hypothesis finds its own past, with fewer rows and more room too."""
    model = random_language_model(rng)
    ids = rng.integers(4, 29, size=(4, LENGTH)).astype("int32")
    parents = ops.convert_to_tensor([[0, 1], [0, 1]], "int32")
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


def test_one_step_moves_the_output_matrix_by_the_gradient_of_the_reference(rng):
    model = random_language_model(rng, tied_embeddings=False, **NO_DROPOUT)
    states = ops.convert_to_numpy(model(IDS_IN, return_states=True))
    gradient = reference.label_smoothed_cross_entropy_gradient(
        logits_of(model, IDS_IN), IDS_OUT, 0.0
    )
    kernel = model.output_dense.kernel
    before = ops.convert_to_numpy(kernel).copy()
    model.compile(keras.optimizers.SGD(0.5), MaskedCrossentropy())
    model.train_on_batch(IDS_IN, IDS_OUT)
    expected = before - 0.5 * np.einsum("btd,btv->dv", states, gradient)
    assert_close(kernel, expected)


def test_parameters_agree_with_a_count_by_hand():
    """4 layers of width 128: embeddings once, four projections, feed-forward, norms."""
    config = LanguageModelConfig(
        vocabulary_size=69, num_layers=4, d_model=128, d_ff=512, num_heads=4,
        norm_first=True,
    )  # fmt: skip
    layer = 4 * 128 * 128 + 2 * 128 * 512 + 512 + 128 + 2 * 2 * 128
    assert LanguageModel(config).count_params() == 69 * 128 + 4 * layer + 2 * 128


def test_layers_are_made_in_a_method_to_override():
    class Wide(LanguageModel):
        def make_layer(self, name):
            layer = super().make_layer(name)
            return type(layer).from_config(layer.get_config() | {"d_ff": 41})

    model = Wide(LanguageModelConfig(**LANGUAGE_SIZES))
    assert [layer.feed_forward.d_ff for layer in model.decoder_layers] == [41] * 3
    assert logits_of(model, IDS_IN).shape == (2, LENGTH, 29)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"end_id": 1}, "three different ids below `vocabulary_size`"),
        ({"vocabulary_size": 2}, "three different ids .* vocabulary_size=2"),
        ({"key_dim": None}, "`d_model` must be a multiple"),
    ],
)
def test_wrong_sizes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LanguageModelConfig(**(LANGUAGE_SIZES | options))


def test_a_state_longer_than_learned_positions_is_refused(rng):
    model = random_language_model(rng, positions="learned")
    with pytest.raises(ValueError, match="length=20, max_positions=19"):
        model.start_decoding(1, 20)
