"""A class for every graph."""

from __future__ import annotations

from typing import Any, Literal, Unpack

import keras
from keras import ops

from keras_transformer.config.layers import EncoderConfig
from keras_transformer.layers.arguments import check_axes, check_mask
from keras_transformer.layers.embedding import ClassToken
from keras_transformer.masks import attention_mask
from keras_transformer.models.encoder_model import check_pooling, masked_mean
from keras_transformer.models.graph_model import GraphModel
from keras_transformer.types import BasicOptions, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class GraphClassifier(GraphModel):
    """A `NodeClassifier`'s layers, one state for the whole graph, and a linear map.

    The nodes attend along the edges, as in a `NodeClassifier`. The graph's state is the
    mean of its nodes' last states; or the last state of a learned class token, one more
    node with an edge to every node and from every node, like the master node of Gilmer
    et al., 2017, section 5.2, https://arxiv.org/abs/1704.01212, so that two layers see
    the whole graph. Neither depends on the order in which the nodes are given.

    It trains with `model.fit((features, adjacency), classes)` and any loss of one class
    a row. Attention weighs neighbours but does not count them: give each node its
    number of edges among its features where that may matter.

    Args:
        config: An `EncoderConfig`.
        num_features: Width of a node's features, F.
        num_classes: Number of classes.
        feature_dropout_rate: Share of the features dropped in training, in [0, 1).
        pooling: "mean" or "class_token".
        mask_value: A node all of whose features are this number is padding, which
            smaller graphs of a batch have; `None`: none is.
    Call arguments:
        inputs: A pair of tensors. Float features (B, S, F) of the S nodes of B graphs;
            and adjacency (B, S, S), boolean or numbers, other than 0 at [t, s] where
            node t attends to node s. A node attends to itself only if it says so.
        training: Whether dropout is applied, to the graph's state too.
        mask: Boolean tensor (B, S), True for a node and False for padding, which
            nothing attends to; default the Keras mask of the features, or else what
            `mask_value` says.
    Returns:
        Logits, a float tensor (B, num_classes).
    Raises:
        TypeError: If `config` is not an `EncoderConfig`.
        ValueError: If a size is not positive, the rate is outside [0, 1), `pooling` is
            unknown, or the attention needs positions or one mask for all nodes.

    Example:
        >>> config = EncoderConfig(num_layers=2, d_model=6, d_ff=8, num_heads=2)
        >>> model = GraphClassifier(config, num_features=5, num_classes=4)
        >>> adjacency = np.array([[[1, 1, 0], [1, 1, 0], [0, 0, 1]]])
        >>> model((np.ones((1, 3, 5)), adjacency)).shape  # (1, 4)
    """

    def __init__(
        self, config: EncoderConfig, num_features: int, num_classes: int,
        feature_dropout_rate: float = 0.0,
        pooling: Literal["mean", "class_token"] = "mean",
        mask_value: float | None = 0.0, **kwargs: Unpack[BasicOptions],
    ) -> None:  # fmt: skip
        super().__init__(
            config, num_features, num_classes, feature_dropout_rate, **kwargs
        )
        check_pooling(pooling)
        self.pooling = pooling
        self.mask_value = mask_value
        self.class_token = None
        if pooling == "class_token":
            self.class_token = ClassToken(dtype=self.dtype_policy, name="class_token")
        self.supports_masking = True
        # Every size is known, so the weights exist from the start.
        self.build()

    def build(self, input_shape: tuple[Shape, Shape] | None = None) -> None:
        if self.class_token is not None:
            self.class_token.build((None, None, self.config.d_model))
        super().build(input_shape)

    def call(
        self, inputs: tuple[TensorLike, TensorLike], training: bool | None = None,
        mask: TensorLike | None = None,
    ) -> Tensor:  # fmt: skip
        state = self.graph_state(inputs, training=training, mask=mask)
        return self.output_map(self.dropout(state, training=training))

    def graph_state(
        self, inputs: tuple[TensorLike, TensorLike], training: bool | None = None,
        mask: TensorLike | None = None,
    ) -> Tensor:  # fmt: skip
        """Returns one vector a graph.

        Args:
            inputs: As for a call.
            training: Whether dropout is applied.
            mask: As for a call.

        Returns:
            Float tensor (B, D); a mean is zeros for a graph without nodes.
        """
        features, edges = self.checked(inputs)
        mask = self._node_mask(features, mask)
        nodes = self.nodes(features, training)
        edges = ops.logical_and(edges, ops.expand_dims(mask, 1))
        if self.class_token is None:
            states = self.stack(nodes, mask=edges, training=training)
            return masked_mean(states, mask)
        is_real = self.class_token.compute_mask(nodes, mask)  # (B, 1 + S)
        edges = ops.concatenate([ops.expand_dims(is_real[:, 1:], 2), edges], axis=2)
        edges = ops.concatenate([ops.expand_dims(is_real, 1), edges], axis=1)
        states = self.stack(self.class_token(nodes), mask=edges, training=training)
        return states[:, 0]

    def _node_mask(self, features, mask):
        """Returns a boolean tensor (B, S), True for nodes that are not padding."""
        if isinstance(mask, (tuple, list)):
            mask = mask[0]  # Keras carries a mask of the features and of the adjacency.
        if mask is not None:
            check_axes("mask", mask, "B", "S")
            mask = attention_mask(mask)
            check_mask("mask", mask, features, features)
            return mask[:, 0]
        if self.mask_value is None:
            return ops.ones(ops.shape(features)[:2], dtype="bool")
        return ops.any(ops.not_equal(features, self.mask_value), axis=-1)

    def compute_mask(
        self, inputs: tuple[TensorLike, TensorLike], previous_mask: TensorLike | None
    ) -> None:
        """The logits have no positions, and no mask."""

    def compute_output_shape(self, input_shape: tuple[Shape, Shape]) -> Shape:
        return (input_shape[0][0], self.num_classes)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "pooling": self.pooling,
            "mask_value": self.mask_value,
        }
