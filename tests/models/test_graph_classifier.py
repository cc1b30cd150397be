"""The graph classifier against NumPy, and its laws."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.models.graph_classifier import GraphClassifier
from keras_transformer.testing import assert_padding_invariant
from tests.layers.reference_weights import assert_close, randomise
from tests.models.encoder_battery import EncoderModelBattery
from tests.models.encoder_cases import CONFIG, array, linear_weights_of, stack_output
from tests.reference import numpy_encoders

NUM_FEATURES, NUM_CLASSES, NUM_NODES = 5, 11, 7
_RNG = np.random.default_rng(5)
# The second graph has five nodes and two of padding.
MASK = np.arange(NUM_NODES) < np.array([[7], [5]])
FEATURES = _RNG.standard_normal((2, NUM_NODES, NUM_FEATURES)).astype("float32")
FEATURES *= MASK[..., None]
# Edges lead to padding, too: the mask must hide it.
ADJACENCY = _RNG.random((2, NUM_NODES, NUM_NODES)) < 0.5
INPUTS = (FEATURES, ADJACENCY)
CLASSES = np.array([3, 10], "int32")
POOLINGS = ("mean", "class_token")


def graph_classifier(pooling="mean", **options):
    return GraphClassifier(
        CONFIG, NUM_FEATURES, NUM_CLASSES, 0.1, pooling=pooling, **options
    )


class TestBatteryOfTheMean(EncoderModelBattery):
    model_class = GraphClassifier
    inputs = INPUTS
    targets = CLASSES
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    pooling = "mean"

    def model(self, **options):
        return graph_classifier(self.pooling, **options)


@pytest.mark.slow
class TestBatteryOfTheClassToken(TestBatteryOfTheMean):
    pooling = "class_token"


@pytest.fixture(params=POOLINGS)
def model(request, rng):
    return randomise(graph_classifier(request.param), rng)


def logits_of(model, features=FEATURES, adjacency=ADJACENCY, **options):
    return ops.convert_to_numpy(model((features, adjacency), **options))


def reference_state(model, features, adjacency, mask):
    """What the reference makes of the graphs, [B, D]."""
    states = numpy_encoders.linear(features, linear_weights_of(model.feature_map))
    edges = adjacency & mask[:, None]
    if model.pooling == "mean":
        states = stack_output(model.stack, states, edges)
        return numpy_encoders.masked_mean(states, mask)
    states = numpy_encoders.with_class_token(states, array(model.class_token.token))
    # Edges between the class token and every node, both ways, and to itself.
    whole = np.ones((len(edges), 1 + NUM_NODES, 1 + NUM_NODES), bool)
    whole[:, 1:, 1:] = edges
    whole[:, 0, 1:] = whole[:, 1:, 0] = mask
    return stack_output(model.stack, states, whole)[:, 0]


def test_logits_agree_with_the_reference(model):
    state = reference_state(model, FEATURES.astype(np.float64), ADJACENCY, MASK)
    expected = numpy_encoders.linear(state, linear_weights_of(model.output_map))
    assert_close(logits_of(model), expected)


def test_adjacency_may_be_numbers(model):
    assert_close(logits_of(model, adjacency=ADJACENCY * 0.5), logits_of(model))


def test_renumbering_the_nodes_changes_nothing(model, rng):
    order = rng.permutation(NUM_NODES)
    renumbered = logits_of(model, FEATURES[:, order], ADJACENCY[:, order][:, :, order])
    assert_close(renumbered, logits_of(model))


def test_the_edges_count(model):
    other = ADJACENCY.copy()
    other[0, 2, 3] = ~other[0, 2, 3]
    moved = np.abs(logits_of(model, adjacency=other) - logits_of(model)).max(axis=1)
    assert moved[0] > 1e-3 and moved[1] < 1e-5


def test_padding_changes_nothing(model):
    def near(features, mask=None):
        """Each node attends to those up to two places away, padding included."""
        places = np.arange(features.shape[1])
        band = np.abs(places[:, None] - places) <= 2
        return model((features, np.stack([band] * len(features))), mask=mask)

    shape = (3, NUM_NODES, NUM_FEATURES)
    assert_padding_invariant(near, shape=shape, mask_names=["mask"])


def test_padding_is_said_in_three_ways(model):
    expected = logits_of(model)
    features = np.where(MASK[..., None], FEATURES, -7.0).astype("float32")
    assert_close(logits_of(model, features, mask=MASK), expected)
    carried = keras.layers.Masking(-7.0)(features)
    assert_close(logits_of(model, carried), expected)
    other = graph_classifier(model.pooling, mask_value=-7.0)
    other.set_weights(model.get_weights())
    assert_close(logits_of(other, features), expected)
    unmasked = graph_classifier(model.pooling, mask_value=None)
    unmasked.set_weights(model.get_weights())
    everything = logits_of(model, mask=np.ones_like(MASK))
    assert_close(logits_of(unmasked), everything)
    assert np.abs(everything - expected)[1].max() > 1e-3


def test_a_graph_without_nodes_is_finite(model):
    state = model.graph_state((np.zeros_like(FEATURES), ADJACENCY))
    state = ops.convert_to_numpy(state)
    assert np.isfinite(state).all()
    if model.pooling == "mean":
        np.testing.assert_array_equal(state, np.zeros((2, 13)))


def test_with_a_class_token_two_layers_see_the_whole_graph(rng):
    """Without an edge the token is the way from node to node."""
    model = randomise(graph_classifier("class_token"), rng)
    none = np.zeros_like(ADJACENCY)
    weights = ops.convert_to_numpy(model.attention((FEATURES, none)))
    assert weights.shape == (2, 3, 1 + NUM_NODES, 1 + NUM_NODES)
    expected = np.zeros((2, 1 + NUM_NODES, 1 + NUM_NODES), bool)
    expected[:, 0, 0] = True
    expected[:, 0, 1:] = expected[:, 1:, 0] = MASK
    expected = np.broadcast_to(expected[:, None], weights.shape)
    np.testing.assert_array_equal(weights > 0, expected)


def test_bad_arguments_are_refused(model):
    with pytest.raises(ValueError, match="`num_classes` must be a positive integer"):
        GraphClassifier(CONFIG, 3, 0)
    with pytest.raises(ValueError, match="`pooling` must be 'mean' or 'class_token'"):
        GraphClassifier(CONFIG, 3, 3, pooling="max")
    with pytest.raises(TypeError, match=r"must be a pair, \(features, adjacency\)"):
        model(FEATURES)
    with pytest.raises(ValueError, match=r"`adjacency` must have the shape \(S, S\)"):
        model((FEATURES, ADJACENCY[:, :, :3]))
    with pytest.raises(ValueError, match="`features` must have `num_features` numbers"):
        model((FEATURES[:, :, :3], ADJACENCY))
    with pytest.raises(ValueError, match="`mask` must have the shape"):
        model(INPUTS, mask=MASK[:, :3])
    with pytest.raises(TypeError, match="`mask` must be boolean"):
        model(INPUTS, mask=MASK.astype("float32"))
