"""The laws of the models and attentions of the examples."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.masks import causal_mask
from keras_transformer.testing import assert_padding_invariant, assert_serializable
from tests.layers.reference_weights import (
    assert_close,
    randomise,
    weights_of,
)
from tests.models.encoder_cases import CONFIG, array
from tests.reference import numpy_attention, numpy_transformer
from tests.test_examples import load

pytest.importorskip("sklearn")
numpy = ops.convert_to_numpy

graphs = load("classify_graphs")
nodes = load("classify_nodes")
captions = load("caption_images")
speech = load("speech")
conformer = load("conformer")
Linformer = load("linformer_attention").LinformerAttention
LSH = load("lsh_attention").LSHAttention

_RNG = np.random.default_rng(5)
# Two rows of five patches of 3 x 3 pixels.
SHAPE, PATCH_SIZE = (6, 15, 2), 3
IMAGES = _RNG.random((2, *SHAPE)).astype("float32")
# The second graph has five nodes and two of padding; edges lead to padding, too.
IS_NODE = np.arange(7) < np.array([[7], [5]])
FEATURES = (_RNG.standard_normal((2, 7, 5)) * IS_NODE[..., None]).astype("float32")
EDGES = _RNG.random((2, 7, 7)) < 0.5
FRAMES = _RNG.standard_normal((2, 7, speech.BANDS)).astype("float32")
FRAMES[1, 4:] = 0.0
IS_FRAME = np.arange(7) < np.array([[7], [4]])


@pytest.mark.parametrize("pooling", ["mean", "class_token"])
def test_renumbering_the_nodes_and_edges_to_padding_change_nothing(pooling, rng):
    model = randomise(graphs.make_model(5, pooling, CONFIG), rng)
    order = rng.permutation(7)
    expected = numpy(model((FEATURES, EDGES)))
    renumbered = FEATURES[:, order], EDGES[:, order][:, :, order]
    assert_close(model(renumbered), expected)
    other = EDGES.copy()
    other[1, :, 5:] = ~other[1, :, 5:]
    assert_close(model((FEATURES, other)), expected)
    other[0, 2, 3] = ~other[0, 2, 3]
    assert np.abs(numpy(model((FEATURES, other))) - expected)[0].max() > 1e-3


def test_a_node_without_edges_is_seen_by_itself_alone(rng):
    """Its features move no other node; those of the others do not move it."""
    model = randomise(nodes.make_model(5, 3, CONFIG, rate=0.1), rng)
    edges = np.ones((2, 7, 7), bool)
    edges[:, 3], edges[:, :, 3] = False, False
    before, features = numpy(model((FEATURES, edges))), FEATURES.copy()
    features[:, 3] += 1.0
    moved = np.abs(numpy(model((features, edges))) - before).max(axis=-1) > 1e-5
    np.testing.assert_array_equal(moved, np.tile(np.arange(7) == 3, (2, 1)))


@pytest.mark.parametrize("per_frame", [True, False])
def test_more_padding_of_frames_changes_nothing(per_frame, rng):
    model = randomise(speech.make_model(CONFIG, 4, per_frame=per_frame), rng)
    longer = np.pad(FRAMES, ((0, 0), (0, 4), (0, 0)))
    found, expected = numpy(model(longer)), numpy(model(FRAMES))
    if per_frame:
        found, expected = found[:, :7][IS_FRAME], expected[IS_FRAME]
    assert_close(found, expected)


def test_a_caption_has_the_score_that_the_model_gives_it(rng):
    """The search reads all words again at each step."""
    model = randomise(captions.make_model(SHAPE, PATCH_SIZE, 7, CONFIG), rng)
    result = captions.captioner(model, most=3, beam_size=20)(IMAGES)
    ids, is_token = numpy(result.ids)[:, 0], numpy(result.ids)[:, 0] != 0
    inputs = np.pad(ids[:, :-1], ((0, 0), (1, 0)), constant_values=1)
    scores = numpy_transformer.log_softmax(numpy(model((IMAGES, inputs))))
    scores = np.take_along_axis(scores, ids[..., None], axis=-1)[..., 0] * is_token
    totals = scores.sum(axis=1) / ((5 + is_token.sum(axis=1)) / 6) ** 0.6
    np.testing.assert_allclose(numpy(result.scores)[:, 0], totals, rtol=1e-4)


def test_padding_changes_nothing_in_a_conformer():
    assert_padding_invariant(conformer.ConformerBlock(2, 8), mask_names=("mask",))
    assert_padding_invariant(conformer.ConvolutionModule(), mask_names=("mask",))


def test_padding_is_no_part_of_the_batch_statistics():
    """The moving mean after one step is that of the frames that are not padding."""
    module, found = conformer.ConvolutionModule(), []
    inputs = FRAMES[..., :4].copy()
    for fill in (0.0, 100.0):
        inputs[~IS_FRAME] = fill
        if not module.built:
            module.build(inputs.shape)
        module.batch_norm.moving_mean.assign(np.zeros(4))
        module(inputs, mask=IS_FRAME, training=True)
        found.append(numpy(module.batch_norm.moving_mean))
    assert np.abs(found[0]).max() > 0
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_block_is_half_attention_convolution_half_and_a_norm():
    """Equation 1 of Gulati et al., 2020, part by part."""
    block, inputs = conformer.ConformerBlock(2, 8), FRAMES[..., :4]
    found = block(inputs)
    before, attention, convolution, after = block.parts
    norms, mask = block.norms, np.ones((2, 7), bool)
    states = inputs + 0.5 * before(norms[0](inputs))
    states = states + attention(norms[1](states))
    states = states + convolution(norms[2](states), mask=mask)
    expected = norms[4](states + 0.5 * after(norms[3](states)))
    np.testing.assert_allclose(*map(np.asarray, (found, expected)), atol=1e-6)


# Attentions.

LENGTH = 23
ATTENTIONS = {
    "linformer": (Linformer, {"max_length": 29, "projected_length": 4}),
    "lsh": (LSH, {"num_buckets": 4, "chunk_size": 4, "num_rounds": 2, "seed": 1}),
}


def attention(name, **options):
    """With random weights of three heads; the vectors to hash with stay as drawn."""
    kind, sizes = ATTENTIONS[name]
    layer = kind(3, 5, **{"value_dim": 7} | sizes | options)
    layer.build((2, LENGTH, 11))
    drawn = [numpy(layer.hash_vectors)] if kind is LSH else None
    randomise(layer, np.random.default_rng(3))
    if drawn:
        layer.hash_vectors.assign(drawn[0])
    return layer


@pytest.fixture
def states(rng):
    return rng.standard_normal((2, LENGTH, 11)).astype("float32")


def test_mixtures_of_one_position_each_give_full_attention(states):
    layer = attention("linformer", projected_length=LENGTH, max_length=LENGTH)
    for mixture in (layer.key_mixture, layer.value_mixture):
        mixture.assign(np.eye(LENGTH))
    expected, _ = numpy_transformer.multi_head_attention(
        states, states, states, weights_of(layer, "attention"), 3
    )
    assert_close(layer(states), expected)


@pytest.mark.one_case
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("num_rounds", [3, 1])
@pytest.mark.parametrize("chunk_size", [5, 2, 23])
def test_lsh_agrees_with_the_reference(states, chunk_size, num_rounds, masked):
    layer = attention("lsh", chunk_size=chunk_size, num_rounds=num_rounds)
    mask = np.arange(LENGTH) < np.array([[LENGTH], [9]]) if masked else None
    weights = weights_of(layer, "attention")
    weights["hash_vectors"] = array(layer.hash_vectors)
    expected, is_seen = numpy_attention.lsh_attention(
        states, weights, 3, chunk_size, mask
    )
    # Neither everything nor nothing is seen, and some see themselves alone.
    assert 0.02 < is_seen.mean() < 0.9
    assert_close(layer(states, mask=mask), expected, tolerance=1e-4)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_laws_of_an_attention(name, states):
    layer = attention(name, use_bias=False)
    assert_padding_invariant(layer, states)
    assert_serializable(attention(name, dropout=0.5), states, aliases=("options",))
    # A row of padding alone gives zeros, a length need not be known beforehand.
    mask = np.arange(LENGTH) < np.array([[LENGTH], [0]])
    assert not numpy(layer(states, mask=mask))[1].any()
    query = keras.Input((None, 11))
    model = keras.Model(query, layer(query))
    assert_close(model.predict(states, verbose=0), numpy(layer(states)))
    for options in ({"mask": causal_mask(LENGTH)}, {"use_causal_mask": True}):
        with pytest.raises(ValueError, match="`mask` must be the same for all"):
            layer(states, **options)
    with pytest.raises(ValueError, match="has no attention weights"):
        layer(states, return_attention_scores=True)
