"""The embedding of an image's patches against NumPy, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from keras_transformer.layers.patch_embedding import PatchEmbedding
from tests.layers.layer_battery import LayerBattery
from tests.layers.reference_weights import assert_close, randomise
from tests.models.encoder_cases import array, linear_weights_of
from tests.reference import numpy_encoders

SHAPE, PATCH_SIZE, D_MODEL = (4, 6, 3), 2, 11
IMAGES = np.random.default_rng(7).standard_normal((5, *SHAPE)).astype("float32")


class TestBattery(LayerBattery):
    layer_class = PatchEmbedding
    options = {
        "image_shape": [*SHAPE],
        "patch_size": PATCH_SIZE,
        "d_model": D_MODEL,
        "positions": "learned",
        "dropout_rate": 0.5,
    }
    exact_options = {"dropout_rate": 0.0}
    input_shapes = (IMAGES.shape,)
    output_shape = (5, 6, D_MODEL)

    def kept(self, layer, name):
        kept = super().kept(layer, name)
        return [*kept] if name == "image_shape" else kept


@pytest.mark.parametrize("positions", [None, "learned"])
def test_agrees_with_the_reference(rng, positions):
    layer = PatchEmbedding(SHAPE, PATCH_SIZE, D_MODEL, positions=positions)
    layer.build()
    randomise(layer, rng)
    patches = numpy_encoders.image_patches(IMAGES, PATCH_SIZE)
    expected = numpy_encoders.linear(patches, linear_weights_of(layer.patch_map))
    if positions is not None:
        expected = expected + array(layer.position_layer.position_embeddings)
    assert_close(layer(IMAGES), expected)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="`patch_size` must divide the height"):
        PatchEmbedding((4, 6, 1), 4, 8)
    with pytest.raises(ValueError, match=r"`image_shape` must be \(height, width"):
        PatchEmbedding((4, 6), 2, 8)
    with pytest.raises(ValueError, match="`positions` must be 'learned' or None"):
        PatchEmbedding(SHAPE, 2, 8, positions="sinusoidal")
    with pytest.raises(ValueError, match="'learned' with a `dropout_rate`"):
        PatchEmbedding(SHAPE, 2, 8, dropout_rate=0.1)
    layer = PatchEmbedding(SHAPE, 2, 8)
    for images in (IMAGES[0], IMAGES[:, :, :4]):
        with pytest.raises(ValueError, match="is incompatible with the layer"):
            layer(images)
