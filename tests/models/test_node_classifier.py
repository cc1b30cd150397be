"""The node classifier against NumPy, and its laws."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from keras_transformer import MaskedCrossentropy
from keras_transformer.models.node_classifier import NodeClassifier
from tests.layers.reference_weights import assert_close, randomise
from tests.models.encoder_battery import EncoderModelBattery
from tests.models.encoder_cases import CONFIG, linear_weights_of, stack_output
from tests.reference import numpy_encoders, numpy_transformer

NUM_FEATURES, NUM_CLASSES, NUM_NODES = 5, 11, 7
FEATURES = (
    np.random.default_rng(5)
    .standard_normal((2, NUM_NODES, NUM_FEATURES))
    .astype("float32")
)
# Two graphs. Each node t points at t + 1; node 6 has no edge, and neither has node 4
# of the second graph.
CHAIN = np.zeros((2, NUM_NODES, NUM_NODES), bool)
CHAIN[:, range(6), range(1, 7)] = True
CHAIN[:, 6] = False
CHAIN[1, 4] = False
CLASSES = np.array([[3, 10, 1, 0, 7, 2, 5], [4, 0, 9, 6, 1, 0, 8]], "int32")
INPUTS = (FEATURES, CHAIN)
# A node with one edge attends to that alone, whatever the scores: here it has more.
DENSE = CHAIN | np.random.default_rng(6).random(CHAIN.shape).round().astype(bool)


def node_classifier(**options):
    return NodeClassifier(CONFIG, NUM_FEATURES, NUM_CLASSES, 0.1, **options)


class TestBattery(EncoderModelBattery):
    model_class = NodeClassifier
    inputs = (FEATURES, DENSE)
    targets = CLASSES
    loss = MaskedCrossentropy()

    def model(self, **options):
        return node_classifier(**options)


@pytest.fixture
def model(rng):
    return randomise(node_classifier(), rng)


def logits_of(model, features=FEATURES, adjacency=CHAIN):
    return ops.convert_to_numpy(model((features, adjacency)))


@pytest.mark.parametrize("adjacency", [CHAIN, DENSE], ids=["chain", "dense"])
def test_logits_agree_with_the_reference(model, adjacency):
    features = FEATURES.astype(np.float64)
    states = numpy_encoders.linear(features, linear_weights_of(model.feature_map))
    states = stack_output(model.stack, states, adjacency)
    weights = linear_weights_of(model.output_map)
    logits = logits_of(model, adjacency=adjacency)
    assert_close(logits, numpy_encoders.linear(states, weights))


def test_adjacency_may_be_numbers(model):
    assert_close(logits_of(model, adjacency=CHAIN * 0.5), logits_of(model))


def test_each_layer_sees_one_edge_far(model):
    """Two layers: node t depends on t, t + 1 and t + 2, and on nothing before it."""
    before = logits_of(model)
    for node in range(NUM_NODES):
        changed = FEATURES.copy()
        changed[:, node] += 1.0
        after = logits_of(model, changed)
        moved = (np.abs(after - before) > 1e-5).any(axis=-1)
        expected = [node - 2 <= t <= node for t in range(NUM_NODES)]
        np.testing.assert_array_equal(moved[0], expected)
        # Node 4 of the second graph leads nowhere, so nothing passes through it.
        blocked = [e and (t > 4 or node <= 4) for t, e in enumerate(expected)]
        np.testing.assert_array_equal(moved[1], blocked)


def test_attention_is_zero_off_the_edges_and_for_a_node_without_edges(model):
    weights = ops.convert_to_numpy(model.attention(INPUTS, layer=-1))
    assert weights.shape == (2, 3, NUM_NODES, NUM_NODES)
    edges = np.broadcast_to(CHAIN[:, None], weights.shape)
    assert (weights[~edges] == 0).all()
    total = np.broadcast_to(CHAIN.any(axis=-1)[:, None], weights.shape[:3])
    assert_close(weights.sum(axis=-1), total.astype(float))


def test_renumbering_the_nodes_renumbers_the_output(model, rng):
    order = rng.permutation(NUM_NODES)
    renumbered = logits_of(model, FEATURES[:, order], CHAIN[:, order][:, :, order])
    assert_close(renumbered, logits_of(model)[:, order])


def test_nodes_of_padding_change_nothing(model):
    features = np.pad(FEATURES, ((0, 0), (0, 4), (0, 0)))
    adjacency = np.pad(CHAIN, ((0, 0), (0, 4), (0, 4)))
    assert_close(logits_of(model, features, adjacency)[:, :7], logits_of(model))


def test_a_node_without_a_known_class_does_not_count(model):
    logits = logits_of(model)
    model.compile("sgd", MaskedCrossentropy())
    loss = model.evaluate(INPUTS, CLASSES, verbose=0)
    expected = numpy_transformer.label_smoothed_cross_entropy(logits, CLASSES, 0.0)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_bad_arguments_are_refused(model):
    with pytest.raises(ValueError, match="`num_features` must be a positive integer"):
        NodeClassifier(CONFIG, 0, 3)
    with pytest.raises(ValueError, match="`num_classes` must be a positive integer"):
        NodeClassifier(CONFIG, 3, 0)
    with pytest.raises(ValueError, match="`feature_dropout_rate` must be a number in"):
        NodeClassifier(CONFIG, 3, 3, feature_dropout_rate=1.0)
    with pytest.raises(
        TypeError, match="`config` must be of the class `EncoderConfig`"
    ):
        NodeClassifier(None, 3, 3)
    with pytest.raises(ValueError, match=r"`adjacency` must have the shape \(S, S\)"):
        model((FEATURES, CHAIN[:, :, :3]))
