"""The image classifier against NumPy, and its laws."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.models.image_classifier import ImageClassifier
from tests.layers.reference_weights import assert_close, randomise
from tests.models.encoder_battery import EncoderModelBattery
from tests.models.encoder_cases import (
    CONFIG,
    array,
    linear_weights_of,
    stack_output,
)
from tests.reference import numpy_encoders

# Two rows of five patches of 3 x 3 pixels.
SHAPE, PATCH_SIZE, NUM_CLASSES = (6, 15, 2), 3, 11
IMAGES = np.random.default_rng(5).random((2, *SHAPE)).astype("float32")


class TestBatteryOfTheClassToken(EncoderModelBattery):
    model_class = ImageClassifier
    inputs = IMAGES
    targets = np.array([3, 10], "int32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    pooling = "class_token"

    def model(self, **options):
        sizes = (SHAPE, PATCH_SIZE, NUM_CLASSES, self.pooling)
        return ImageClassifier(CONFIG, *sizes, **options)


@pytest.mark.slow
class TestBatteryOfTheMean(TestBatteryOfTheClassToken):
    pooling = "mean"


def random_model(rng, pooling, config=CONFIG):
    model = ImageClassifier(config, SHAPE, PATCH_SIZE, NUM_CLASSES, pooling)
    return randomise(model, rng)


@pytest.fixture(params=["class_token", "mean"])
def model(request, rng):
    return random_model(rng, request.param)


def reference_tokens(model, images):
    patches = numpy_encoders.image_patches(images, PATCH_SIZE)
    weights = linear_weights_of(model.patch_embedding.patch_map)
    tokens = numpy_encoders.linear(patches, weights)
    if model.pooling == "class_token":
        token = array(model.class_token.token)
        tokens = numpy_encoders.with_class_token(tokens, token)
    return tokens + array(model.positions.position_embeddings)


def test_tokens_are_the_patches_row_by_row(model):
    tokens = ops.convert_to_numpy(model.tokens(IMAGES))
    assert tokens.shape == (2, 10 + (model.pooling == "class_token"), 13)
    assert_close(tokens, reference_tokens(model, IMAGES))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("pooling", ["class_token", "mean"])
def test_logits_agree_with_the_reference(rng, pooling, norm_first):
    model = random_model(rng, pooling, CONFIG.replace(norm_first=norm_first))
    states = stack_output(model.stack, reference_tokens(model, IMAGES))
    state = states[:, 0] if pooling == "class_token" else states.mean(axis=1)
    expected = numpy_encoders.linear(state, linear_weights_of(model.output_map))
    assert_close(model(IMAGES), expected)


def test_a_pixel_changes_the_token_of_its_patch_alone(model):
    changed = IMAGES.copy()
    changed[0, 4, 7, 1] += 1.0  # Row 1, column 2 of the patches.
    before, after = (ops.convert_to_numpy(model.tokens(x)) for x in (IMAGES, changed))
    moved = np.argwhere((before != after).any(axis=-1))
    place = 1 * 5 + 2 + (model.pooling == "class_token")
    np.testing.assert_array_equal(moved, [[0, place]])


def permuted(images, rng):
    """The same patches in another order."""
    cut = images.reshape(2, 2, 3, 5, 3, 2).transpose(1, 3, 0, 2, 4, 5)
    shuffled = rng.permutation(cut.reshape(10, 2, 3, 3, 2)).reshape(cut.shape)
    return shuffled.transpose(2, 0, 3, 1, 4, 5).reshape(images.shape)


def test_order_of_the_patches_is_known_by_the_positions_alone(model, rng):
    other = permuted(IMAGES, rng)
    difference = ops.convert_to_numpy(model(other)) - ops.convert_to_numpy(
        model(IMAGES)
    )
    assert np.abs(difference).max() > 1e-2
    table = model.positions.position_embeddings
    table.assign(np.zeros(table.shape, "float32"))
    assert_close(model(other), ops.convert_to_numpy(model(IMAGES)))


def test_one_image_equals_a_row_of_a_batch(model):
    assert_close(model(IMAGES[1:]), ops.convert_to_numpy(model(IMAGES))[1:])


def test_attention_is_a_distribution_over_the_tokens(model):
    weights = ops.convert_to_numpy(model.attention(IMAGES, layer=0))
    size = model.num_positions
    assert weights.shape == (2, 3, size, size)
    assert_close(weights.sum(axis=-1), np.ones((2, 3, size)))


@pytest.mark.parametrize("shape", [(2, 6, 12, 2), (2, 3, 30, 2), (2, 6, 15, 1)])
def test_images_of_another_size_are_refused(shape):
    model = ImageClassifier(CONFIG, SHAPE, 3, 11)
    for compute in (model, model.predict):
        with pytest.raises(ValueError, match="Images must have the shape"):
            compute(np.zeros(shape, "float32"))


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="`patch_size` must divide the height and"):
        ImageClassifier(CONFIG, (6, 16, 2), 3, 11)
    with pytest.raises(ValueError, match=r"must be \(height, width, channels\)"):
        ImageClassifier(CONFIG, (6, 15), 3, 11)
    with pytest.raises(ValueError, match="`image_shape` must be a positive integer"):
        ImageClassifier(CONFIG, (6, 15, 0), 3, 11)
    with pytest.raises(ValueError, match="`patch_size` must be a positive integer"):
        ImageClassifier(CONFIG, SHAPE, 0, 11)
    with pytest.raises(ValueError, match="`num_classes` must be a positive integer"):
        ImageClassifier(CONFIG, SHAPE, 3, 0)
    with pytest.raises(ValueError, match="`pooling` must be 'mean' or 'class_token'"):
        ImageClassifier(CONFIG, SHAPE, 3, 11, pooling="max")
    with pytest.raises(
        TypeError, match="`config` must be of the class `EncoderConfig`"
    ):
        ImageClassifier({}, SHAPE, 3, 11)
