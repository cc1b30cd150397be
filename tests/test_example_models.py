"""The models of the examples, against NumPy, and their laws."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import EncoderConfig, MaskedCrossentropy
from keras_transformer.testing import assert_padding_invariant
from tests.layers.reference_weights import (
    assert_close,
    layer_weights_of,
    randomise,
    weights_of,
)
from tests.models.encoder_cases import CONFIG, array, linear_weights_of, stack_output
from tests.reference import numpy_encoders, numpy_transformer
from tests.test_examples import load

pytest.importorskip("sklearn")
numpy = ops.convert_to_numpy

images = load("classify_images")
graphs = load("classify_graphs")
nodes = load("classify_nodes")
captions = load("caption_images")
speech = load("speech")
conformer = load("conformer")

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
NEXT_WORDS = np.array([[5, 4, 6, 2], [6, 2, 0, 0]], "int32")
PRE_NORM = CONFIG.replace(norm_first=True)
ONE_CLASS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


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


def of_captions(model, config, inputs=(IMAGES, WORDS)):
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
        *inputs, weights, config.num_heads, PATCH_SIZE, config.norm_first
    )


class Case(NamedTuple):
    make: Any  # () -> model
    inputs: Any
    targets: np.ndarray
    expected: Any  # model -> logits, in float64
    loss: Any = ONE_CLASS
    real: Any = ...  # The logits that count.


CLASSES, TAGS = np.array([3, 1], "int32"), np.where(IS_NODE, 1 + np.arange(7) % 3, 0)
CASES = {
    "image": Case(
        lambda: images.make_model(SHAPE, PATCH_SIZE, 11, config=CONFIG),
        IMAGES, CLASSES, lambda model: of_images(model, "class_token", CONFIG),
    ),
    "mean of an image": Case(
        lambda: images.make_model(SHAPE, PATCH_SIZE, 11, "mean", PRE_NORM),
        IMAGES, CLASSES, lambda model: of_images(model, "mean", PRE_NORM),
    ),
    "graph": Case(
        lambda: graphs.make_model(5, config=PRE_NORM),
        (FEATURES, EDGES), CLASSES % 2, lambda model: of_graphs(model, "mean"),
    ),
    "class token of a graph": Case(
        lambda: graphs.make_model(5, "class_token", CONFIG),
        (FEATURES, EDGES), CLASSES % 2, lambda model: of_graphs(model, "class_token"),
    ),
    "nodes": Case(
        lambda: nodes.make_model(5, 3, CONFIG, rate=0.1),
        (FEATURES, EDGES), TAGS, of_nodes, MaskedCrossentropy(),
    ),
    "frames": Case(
        lambda: speech.make_model(CONFIG, 4), FRAMES, np.where(IS_FRAME, TAGS, 0),
        lambda model: of_frames(model, True), MaskedCrossentropy(), IS_FRAME,
    ),
    "all frames": Case(
        lambda: speech.make_model(PRE_NORM, 4, per_frame=False), FRAMES, CLASSES,
        lambda model: of_frames(model, False),
    ),
    "captions": Case(
        lambda: captions.make_model(SHAPE, PATCH_SIZE, 7, CONFIG),
        (IMAGES, WORDS), NEXT_WORDS, lambda model: of_captions(model, CONFIG),
        MaskedCrossentropy(), WORDS != 0,
    ),
    "captions, pre-norm": Case(
        lambda: captions.make_model(SHAPE, PATCH_SIZE, 7, PRE_NORM),
        (IMAGES, WORDS), NEXT_WORDS, lambda model: of_captions(model, PRE_NORM),
        MaskedCrossentropy(), WORDS != 0,
    ),
}  # fmt: skip


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def random_model(case, rng):
    return randomise(case.make(), rng)


@pytest.mark.one_case
def test_logits_agree_with_the_reference(case, rng):
    model = random_model(case, rng)
    logits = numpy(model(case.inputs))
    assert_close(logits[case.real], case.expected(model)[case.real])


@pytest.mark.one_case
def test_a_file_brings_the_model_back(case, rng, tmp_path):
    model = random_model(case, rng)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    assert_close(loaded(case.inputs), numpy(model(case.inputs)))


@pytest.mark.one_case
def test_fit_learns_the_batch_by_heart(case):
    model = case.make()
    model.compile(keras.optimizers.Adam(0.01), case.loss, jit_compile=False)
    fit = {"batch_size": 2, "verbose": 0, "shuffle": False}
    data = keras.tree.map_structure(
        lambda x: np.concatenate([x] * 60), (case.inputs, case.targets)
    )
    (before,) = model.fit(case.inputs, case.targets, **fit).history["loss"]
    model.fit(*data, **fit)
    (after,) = model.fit(case.inputs, case.targets, **fit).history["loss"]
    assert after < 0.5 * before


@pytest.mark.one_case
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's")
def test_exports_equal_the_live_model_on_any_batch(case, rng, tmp_path):
    import tensorflow as tf
    from ai_edge_litert.interpreter import Interpreter

    model = random_model(case, rng)
    model.export(tmp_path / "1", verbose=False)
    exported = tf.saved_model.load(tmp_path / "1")
    path = tmp_path / "model.tflite"
    model.export(path, format="litert", verbose=False)
    lite = Interpreter(str(path)).get_signature_runner()
    names = [x.name for x in model.inputs]
    for rows in (slice(0, 1), slice(None)):
        inputs = keras.tree.map_structure(lambda x, r=rows: x[r], case.inputs)
        expected = numpy(model(inputs))
        assert_close(exported.serve(inputs), expected)
        given = dict(zip(names, keras.tree.flatten(inputs), strict=True))
        (found,) = lite(**given).values()
        assert_close(found, expected)


# Graphs and nodes.


@pytest.mark.parametrize("name", ["graph", "class token of a graph"])
def test_renumbering_the_nodes_and_edges_to_padding_change_nothing(name, rng):
    model, order = random_model(CASES[name], rng), rng.permutation(7)
    expected = numpy(model((FEATURES, EDGES)))
    renumbered = FEATURES[:, order], EDGES[:, order][:, :, order]
    assert_close(model(renumbered), expected)
    other = EDGES.copy()
    other[1, :, 5:] = ~other[1, :, 5:]
    assert_close(model((FEATURES, other)), expected)
    other[0, 2, 3] = ~other[0, 2, 3]
    assert np.abs(numpy(model((FEATURES, other))) - expected)[0].max() > 1e-3


# Each node t points at t + 1. Node 6 has no edge, and neither has node 4 of the second.
CHAIN = np.zeros((2, 7, 7), bool)
CHAIN[:, range(6), range(1, 7)] = True
CHAIN[1, 4] = False


def test_each_layer_sees_one_edge_far(rng):
    """Two layers: node t depends on t, t + 1 and t + 2, and on nothing before it."""
    model = random_model(CASES["nodes"], rng)
    before = numpy(model((FEATURES, CHAIN)))
    for node in range(7):
        changed = FEATURES.copy()
        changed[:, node] += 1.0
        after = numpy(model((changed, CHAIN)))
        moved = (np.abs(after - before) > 1e-5).any(axis=-1)
        expected = [node - 2 <= t <= node for t in range(7)]
        np.testing.assert_array_equal(moved[0], expected)
        # Node 4 of the second graph leads nowhere, so nothing passes through it.
        blocked = [e and (t > 4 or node <= 4) for t, e in enumerate(expected)]
        np.testing.assert_array_equal(moved[1], blocked)


def test_attention_of_nodes_is_zero_off_the_edges_and_without_edges(rng):
    weights = nodes.attention(random_model(CASES["nodes"], rng), (FEATURES, CHAIN))
    assert weights.shape == (2, 3, 7, 7)
    assert (weights[~np.broadcast_to(CHAIN[:, None], weights.shape)] == 0).all()
    total = np.broadcast_to(CHAIN.any(axis=-1)[:, None], (2, 3, 7))
    assert_close(weights.sum(axis=-1), total.astype(float))


# Frames.


@pytest.mark.parametrize("name", ["frames", "all frames"])
def test_more_padding_of_frames_changes_nothing(name, rng):
    model = random_model(CASES[name], rng)
    found, expected = (
        numpy(model(x)) for x in (np.pad(FRAMES, ((0, 0), (0, 4), (0, 0))), FRAMES)
    )
    if name == "frames":
        found, expected = found[:, :7][IS_FRAME], expected[IS_FRAME]
    assert_close(found, expected)


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


def test_a_conformer_stands_where_an_encoder_does():
    config = EncoderConfig(num_layers=2, d_model=8, d_ff=16, num_heads=2)
    model = speech.make_model(config, 3, **conformer.CONFORMER)
    assert model(FRAMES).shape == (2, 7, 3)
    layers = model.get_layer("stack").encoder_layers
    assert {type(layer).__name__ for layer in layers} == {"ConformerBlock"}


# Captions.


def test_every_patch_counts_and_only_for_its_own_image(rng):
    model = random_model(CASES["captions"], rng)
    before = numpy(model((IMAGES, WORDS)))
    for row, column in np.ndindex(2, 5):
        changed = IMAGES.copy()
        changed[0, 3 * row : 3 * row + 3, 3 * column : 3 * column + 3] += 1.0
        moved = np.abs(numpy(model((changed, WORDS))) - before)
        assert moved[0].max() > 1e-4
        assert moved[1].max() < 1e-5


@pytest.mark.one_case
@pytest.mark.parametrize("name", ["captions", "captions, pre-norm"])
def test_a_wide_beam_finds_the_best_of_all_captions(name, rng):
    """All captions of up to three tokens, the end counted, scored by the reference."""
    model = random_model(CASES[name], rng)
    tokens = [3, 4, 5, 6]
    outputs = [[2, 0, 0], *([t, 2, 0] for t in tokens)]
    outputs += [[t, u, v] for t in tokens for u in tokens for v in (2, *tokens)]
    outputs = np.array(outputs, "int32")
    inputs = np.pad(outputs[:, :-1], ((0, 0), (1, 0)), constant_values=1)
    result = captions.captioner(model, most=3, beam_size=20)(IMAGES)
    for row in range(2):
        repeated = np.repeat(IMAGES[row : row + 1], len(outputs), axis=0)
        config = PRE_NORM if "pre" in name else CONFIG
        logits = of_captions(model, config, (repeated, inputs))
        chosen = np.take_along_axis(
            numpy_transformer.log_softmax(logits), outputs[..., None], axis=-1
        )[..., 0]
        lengths = (outputs != 0).sum(axis=1)
        totals = (chosen * (outputs != 0)).sum(axis=1) / ((5 + lengths) / 6) ** 0.6
        np.testing.assert_array_equal(result.ids[row, 0], outputs[totals.argmax()])
        np.testing.assert_allclose(result.scores[row, 0], totals.max(), rtol=1e-4)
