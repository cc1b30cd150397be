"""The conformer of the examples: padding, order and learning."""

import keras
import numpy as np
import pytest

from keras_transformer import EncoderConfig, Tagger
from keras_transformer.testing import assert_padding_invariant
from tests.test_encoder_examples import tone
from tests.test_examples import EXAMPLES, load

pytest.importorskip("sklearn")


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)  # It imports speech.py.
    return load("conformer")


def test_padding_changes_nothing_in_a_conformer(example):
    assert_padding_invariant(example.ConformerBlock(2, 8), mask_names=("mask",))
    assert_padding_invariant(example.ConvolutionModule(), mask_names=("mask",))


def test_padding_is_no_part_of_the_batch_statistics(example):
    """The moving mean after one step is that of the frames that are not padding."""
    module = example.ConvolutionModule()
    inputs = np.random.default_rng(1).normal(size=(2, 7, 4)).astype("float32")
    mask = np.arange(7) < np.array([[7], [3]])
    found = []
    for fill in (0.0, 100.0):
        inputs[~mask] = fill
        if not module.built:
            module.build(inputs.shape)
        module.batch_norm.moving_mean.assign(np.zeros(4))
        module(inputs, mask=mask, training=True)
        found.append(keras.ops.convert_to_numpy(module.batch_norm.moving_mean))
    assert np.abs(found[0]).max() > 0
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_block_is_half_attention_convolution_half_and_a_norm(example):
    """Equation 1 of Gulati et al., 2020, part by part."""
    block = example.ConformerBlock(2, 8)
    inputs = np.random.default_rng(1).normal(size=(2, 7, 4)).astype("float32")
    found = block(inputs)
    first, attention, convolution, second = block.parts
    norms, mask = block.norms, np.ones((2, 7), bool)
    states = inputs + 0.5 * first(norms[0](inputs))
    states = states + attention(norms[1](states))
    states = states + convolution(norms[2](states), mask=mask)
    expected = norms[4](states + 0.5 * second(norms[3](states)))
    np.testing.assert_allclose(*map(np.asarray, (found, expected)), atol=1e-6)


@pytest.mark.slow
def test_frames_are_labelled_by_a_conformer(example):
    found = example.main(["--recordings", "8", "--epochs", "1"], speak=tone)
    assert len(found) == 2 and all(0 <= share <= 1 for share in found)


def test_a_conformer_stands_where_an_encoder_does(example):
    config = EncoderConfig(num_layers=2, d_model=8, d_ff=16, num_heads=2)
    model = Tagger(example.Conformer(config, 5, None), 3)
    assert model(np.ones((2, 7, 5), "float32")).shape == (2, 7, 3)
    kinds = {type(layer).__name__ for layer in model.stack.encoder_layers}
    assert kinds == {"ConformerBlock"}


def test_without_espeak_the_conformer_says_what_to_install(example, monkeypatch):
    monkeypatch.setattr(example.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="espeak-ng must be installed"):
        example.main([])
