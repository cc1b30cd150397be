"""Images to text: against NumPy, step by step, searched, trained."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import (
    DecodingConfig,
    Generator,
    MaskedCrossentropy,
    TransformerConfig,
)
from keras_transformer.models.image_captioner import ImageCaptioner
from keras_transformer.testing import assert_cached_equals_uncached
from tests.layers.reference_weights import (
    assert_close,
    model_weights_of,
    randomise,
    weights_of,
)
from tests.models.encoder_battery import EncoderModelBattery
from tests.models.encoder_cases import array, linear_weights_of
from tests.models.transformer_cases import SIZES, TARGET_IN, TARGET_OUT
from tests.reference import numpy_encoders

SHAPE, PATCH_SIZE = (4, 6, 3), 2
IMAGES = np.random.default_rng(7).standard_normal((2, *SHAPE)).astype("float32")
VARIANTS = {
    "post-norm, two-way": {"tied_embeddings": "two-way"},
    "pre-norm, learned positions, untied": {
        "norm_first": True,
        "use_bias": True,
        "positions": "learned",
        "tied_embeddings": "none",
    },
    "normalised embeddings, SSRU, output bias": {
        "tied_embeddings": "two-way",
        "normalize_embeddings": True,
        "decoder_self_attention": "ssru",
        "output_bias": True,
    },
}


def captioner(tied_embeddings="two-way", sizes=None, **options):
    model_options = {
        name: options.pop(name) for name in ("name", "dtype") if name in options
    }
    sizes = SIZES | {"tied_embeddings": tied_embeddings} | options
    config = TransformerConfig(**sizes)
    return ImageCaptioner(config, SHAPE, PATCH_SIZE, **model_options)


class TestBattery(EncoderModelBattery):
    model_class = ImageCaptioner
    inputs = (IMAGES, TARGET_IN)
    targets = TARGET_OUT
    loss = MaskedCrossentropy()

    def model(self, **options):
        return captioner(**options)


@pytest.fixture(params=list(VARIANTS))
def model(request, rng):
    return randomise(captioner(**VARIANTS[request.param]), rng)


def reference_weights_of(model):
    """The weights of a captioner as `numpy_encoders.image_captioner` wants them."""
    embedding = model.source_embedding
    weights = model_weights_of(model, sides=("target",)) | {
        "patches": linear_weights_of(embedding.patch_map),
        "source_positions": array(embedding.position_layer.position_embeddings),
    }
    if model.config.normalize_embeddings:
        norm = weights_of(model.source_embedding_norm, "norm")
        epsilon = model.config.layer_norm_epsilon
        weights["source_embedding_norm"] = norm | {"epsilon": epsilon}
    return weights


def test_logits_agree_with_the_reference(model):
    expected = numpy_encoders.image_captioner(
        IMAGES, TARGET_IN, reference_weights_of(model), SIZES["num_heads"], PATCH_SIZE,
        model.config.norm_first,
    )  # fmt: skip
    logits = ops.convert_to_numpy(model((IMAGES, TARGET_IN)))
    real = TARGET_IN != 0
    assert_close(logits[real], expected[real])


@pytest.mark.one_case
def test_decoding_step_by_step_equals_a_call(model):
    assert_cached_equals_uncached(model, IMAGES)


def test_every_patch_counts_and_only_for_its_own_image(model):
    before = ops.convert_to_numpy(model((IMAGES, TARGET_IN)))
    for row, column in np.ndindex(2, 3):
        images = IMAGES.copy()
        patch = images[0, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        patch += 1.0
        moved = np.abs(ops.convert_to_numpy(model((images, TARGET_IN))) - before)
        assert moved[0].max() > 1e-4
        assert moved[1].max() < 1e-5


def test_attention_is_over_the_patches(model):
    weights = Generator(model, DecodingConfig(max_output_length=9)).attention(
        IMAGES, TARGET_OUT
    )
    assert weights.shape == (2, 3, 5, 6)
    total = np.broadcast_to((TARGET_OUT != 0)[:, None], (2, 3, 5))
    assert_close(ops.sum(weights, axis=-1), total.astype("float32"))


def test_a_wide_beam_finds_the_best_of_all_captions(rng):
    """All captions of up to three tokens, the end counted, each scored as a whole."""
    sizes = {"target_vocabulary_size": 7, "source_vocabulary_size": 7}
    model = randomise(captioner(**sizes), rng)
    config = DecodingConfig(beam_size=20, max_output_length=3, length_penalty=0.0)
    generator = Generator(model, config)
    tokens = [3, 4, 5, 6]
    captions = [[2, 0, 0], *([t, 2, 0] for t in tokens)]
    captions += [[t, u, v] for t in tokens for u in tokens for v in (2, *tokens)]
    captions = np.array(captions, "int32")
    images = np.repeat(IMAGES[:1], len(captions), axis=0)
    scores = ops.convert_to_numpy(generator.score(images, captions)).sum(axis=1)
    result = generator.search(IMAGES[:1], n_best=3)
    best = np.argsort(-scores)[:3]
    np.testing.assert_array_equal(result.ids[0], captions[best])
    assert_close(result.scores[0], scores[best])


@pytest.mark.slow
def test_it_learns_captions_and_the_search_returns_them():
    keras.utils.set_random_seed(1)
    images = np.random.default_rng(2).standard_normal((4, *SHAPE)).astype("float32")
    target_out = np.array([[5, 6, 2, 0], [6, 2, 0, 0], [7, 5, 6, 2], [2, 0, 0, 0]])
    target_in = np.array([[1, 5, 6, 2], [1, 6, 2, 0], [1, 7, 5, 6], [1, 2, 0, 0]])
    model = captioner(num_encoder_layers=1, num_decoder_layers=1, dropout_rate=0.0)
    model.compile(keras.optimizers.Adam(0.01), MaskedCrossentropy(), jit_compile=False)
    model.fit((images, target_in), target_out, epochs=60, verbose=0)
    for beam_size in (1, 4):
        config = DecodingConfig(beam_size=beam_size, max_output_length=6)
        ids = ops.convert_to_numpy(Generator(model, config).search(images).ids)[:, 0]
        np.testing.assert_array_equal(ids[:, :4], target_out)
        assert (ids[:, 4:] == 0).all()


def test_bad_arguments_are_refused(model):
    config = TransformerConfig(**SIZES)
    with pytest.raises(ValueError, match="`tied_embeddings` must be 'two-way' or"):
        ImageCaptioner(config, SHAPE, PATCH_SIZE)
    config = config.replace(tied_embeddings="none")
    with pytest.raises(ValueError, match="`source_end` must be True"):
        ImageCaptioner(config.replace(source_end=False), SHAPE, PATCH_SIZE)
    with pytest.raises(ValueError, match="patches of an image have no order"):
        ImageCaptioner(config.replace(positions="alibi"), SHAPE, PATCH_SIZE)
    with pytest.raises(ValueError, match="`patch_size` must divide the height"):
        ImageCaptioner(config, SHAPE, 4)
    with pytest.raises(TypeError, match="`config` must be of the class"):
        ImageCaptioner(None, SHAPE, PATCH_SIZE)
    with pytest.raises(ValueError, match=r"\(4, 6, 3\) each. Received: shape \(2, 4,"):
        model((IMAGES[:, :, :4], TARGET_IN))
    with pytest.raises(ValueError, match=r"`images` must have the shape \(B, height"):
        model((TARGET_IN, TARGET_IN))
    with pytest.raises(ValueError, match="must have as many rows"):
        model((IMAGES[:1], TARGET_IN))
