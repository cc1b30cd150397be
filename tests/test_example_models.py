"""The models and attentions of the examples, against NumPy, and their laws."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.masks import causal_mask
from keras_transformer.testing import assert_padding_invariant, assert_serializable
from tests.layers.reference_weights import (
    assert_close,
    layer_weights_of,
    randomise,
    weights_of,
)
from tests.models.encoder_cases import CONFIG, array, linear_weights_of, stack_output
from tests.reference import numpy_attention, numpy_encoders, numpy_transformer
from tests.test_examples import load

pytest.importorskip("sklearn")
numpy = ops.convert_to_numpy

images = load("classify_images")
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
WORDS = np.array([[1, 5, 4, 6], [1, 6, 0, 0]], "int32")
PRE_NORM = CONFIG.replace(norm_first=True)


def of(model, name):
    """The weights of the linear map to the logits, or of the first of a kind."""
    return linear_weights_of(model.get_layer(name))


def first(model, kind):
    return next(layer for layer in model.layers if isinstance(layer, kind))


def mapped(state, model):
    return numpy_encoders.linear(state, of(model, "logits"))


def of_images(model, pooling, config):
    patches = numpy_encoders.image_patches(IMAGES, PATCH_SIZE)
    patch_map = first(model, images.kt.PatchEmbedding).patch_map
    states = numpy_encoders.linear(patches, linear_weights_of(patch_map))
    if pooling == "class_token":
        token = array(model.get_layer("class_token").token)
        states = numpy_encoders.with_class_token(states, token)
    positions = first(model, images.kt.PositionalEncoding)
    states = states + array(positions.position_embeddings)
    states = stack_output(model.get_layer("stack"), states)
    return mapped(states[:, 0] if pooling == "class_token" else states.mean(1), model)


def of_graphs(model, pooling):
    edges = EDGES & IS_NODE[:, None]
    feature_map = linear_weights_of(first(model, keras.layers.Dense))
    states = numpy_encoders.linear(FEATURES, feature_map)
    stack = model.get_layer("stack")
    if pooling == "mean":
        states = stack_output(stack, states, edges)
        return mapped(numpy_encoders.masked_mean(states, IS_NODE), model)
    token = array(first(model, graphs.kt.ClassToken).token)
    states = numpy_encoders.with_class_token(states, token)
    # Edges between the class token and every node, both ways, and to itself.
    whole = np.ones((2, 8, 8), bool)
    whole[:, 1:, 1:] = edges
    whole[:, 0, 1:] = whole[:, 1:, 0] = IS_NODE
    return mapped(stack_output(stack, states, whole)[:, 0], model)


def of_nodes(model):
    feature_map = linear_weights_of(first(model, keras.layers.Dense))
    states = numpy_encoders.linear(FEATURES, feature_map)
    return mapped(stack_output(model.get_layer("stack"), states, EDGES), model)


def of_frames(model, per_frame):
    feature_map = linear_weights_of(first(model, keras.layers.Dense))
    states = numpy_encoders.linear(FRAMES, feature_map)
    states = states + numpy_transformer.sinusoidal_positions(7, CONFIG.d_model)
    states = stack_output(model.get_layer("stack"), states, IS_FRAME[:, None])
    return mapped(
        states if per_frame else numpy_encoders.masked_mean(states, IS_FRAME), model
    )


def of_captions(model, config):
    patches, output = model.get_layer("patches"), linear_weights_of(model.layers[-1])
    encoder = model.get_layer("encoder")
    decoders = [x for x in model.layers if isinstance(x, captions.kt.DecoderLayer)]
    weights = {
        "patches": linear_weights_of(patches.patch_map),
        "source_positions": array(model.get_layer("positions").position_embeddings),
        "encoder_layers": [layer_weights_of(x) for x in encoder.encoder_layers],
        "decoder_layers": [layer_weights_of(x) for x in decoders],
        "target_embeddings": array(model.get_layer("embedding").embeddings),
        "output_embeddings": output["kernel"].T,
        "output_bias": output["bias"],
    }
    if config.norm_first:
        norms = encoder.norm, first(model, captions.kt.layers.LayerNormalization)
        for side, norm in zip(("encoder", "decoder"), norms, strict=True):
            epsilon = {"epsilon": config.layer_norm_epsilon}
            weights[f"{side}_norm"] = weights_of(norm, "norm") | epsilon
    return numpy_encoders.image_captioner(
        IMAGES, WORDS, weights, config.num_heads, PATCH_SIZE, config.norm_first
    )


# How a model is made, what it is called with, what the reference makes of that, and
# the logits that count.
CASES = {
    "image": (
        lambda: images.make_model(SHAPE, PATCH_SIZE, 11, config=CONFIG),
        IMAGES, lambda model: of_images(model, "class_token", CONFIG), ...,
    ),
    "mean of an image": (
        lambda: images.make_model(SHAPE, PATCH_SIZE, 11, "mean", PRE_NORM),
        IMAGES, lambda model: of_images(model, "mean", PRE_NORM), ...,
    ),
    "graph": (
        lambda: graphs.make_model(5, config=PRE_NORM),
        (FEATURES, EDGES), lambda model: of_graphs(model, "mean"), ...,
    ),
    "class token of a graph": (
        lambda: graphs.make_model(5, "class_token", CONFIG),
        (FEATURES, EDGES), lambda model: of_graphs(model, "class_token"), ...,
    ),
    "nodes": (
        lambda: nodes.make_model(5, 3, CONFIG, rate=0.1),
        (FEATURES, EDGES), of_nodes, ...,
    ),
    "frames": (
        lambda: speech.make_model(CONFIG, 4),
        FRAMES, lambda model: of_frames(model, True), IS_FRAME,
    ),
    "all frames": (
        lambda: speech.make_model(PRE_NORM, 4, per_frame=False),
        FRAMES, lambda model: of_frames(model, False), ...,
    ),
    "captions": (
        lambda: captions.make_model(SHAPE, PATCH_SIZE, 7, CONFIG),
        (IMAGES, WORDS), lambda model: of_captions(model, CONFIG), WORDS != 0,
    ),
    "captions, pre-norm": (
        lambda: captions.make_model(SHAPE, PATCH_SIZE, 7, PRE_NORM),
        (IMAGES, WORDS), lambda model: of_captions(model, PRE_NORM), WORDS != 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_logits_agree_with_the_reference(name, rng):
    make, inputs, expected, real = CASES[name]
    model = randomise(make(), rng)
    assert_close(numpy(model(inputs))[real], expected(model)[real])


@pytest.mark.parametrize("name", ["graph", "class token of a graph"])
def test_renumbering_the_nodes_and_edges_to_padding_change_nothing(name, rng):
    model, order = randomise(CASES[name][0](), rng), rng.permutation(7)
    expected = numpy(model((FEATURES, EDGES)))
    renumbered = FEATURES[:, order], EDGES[:, order][:, :, order]
    assert_close(model(renumbered), expected)
    other = EDGES.copy()
    other[1, :, 5:] = ~other[1, :, 5:]
    assert_close(model((FEATURES, other)), expected)


def test_a_caption_has_the_score_that_the_model_gives_it(rng):
    """The search reads all words again at each step."""
    model = randomise(CASES["captions"][0](), rng)
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
