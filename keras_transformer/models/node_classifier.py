"""A class for every node of a graph."""

from __future__ import annotations

from typing import Unpack

import keras

from keras_transformer.config.layers import EncoderConfig
from keras_transformer.exact_training import ExactTraining
from keras_transformer.models.graph_model import GraphModel
from keras_transformer.types import BasicOptions, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class NodeClassifier(ExactTraining, GraphModel):
    """An encoder whose nodes attend along the edges of a graph, and a linear map.

    The layers are those of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762; the
    graph is the mask of their attention, as in the graph attention networks of
    Velickovic et al., 2018, section 2.1, https://arxiv.org/abs/1710.10903, which score
    an edge in another way. Nodes have no order, so there are no positions; L layers
    see L edges far. Attention takes memory for all pairs of nodes, S^2 a head.

    It trains with `model.fit((features, adjacency), classes)` and `MaskedCrossentropy`,
    for which class 0 means no class: padding, and nodes whose class is unknown.

    Args:
        config: An `EncoderConfig`.
        num_features: Width of a node's features, F.
        num_classes: Number of classes, class 0 counted.
        feature_dropout_rate: Share of the features dropped in training, in [0, 1).
    Call arguments:
        inputs: A pair of tensors. Float features (B, S, F) of the S nodes of B graphs;
            and adjacency (B, S, S), boolean or numbers, other than 0 at [t, s] where
            node t attends to node s. A node attends to itself only if it says so, and
            one without edges only passes on its own state. Rows of padding have none.
        training: Whether dropout is applied.
    Returns:
        Logits, a float tensor (B, S, num_classes).
    Raises:
        TypeError: If `config` is not an `EncoderConfig`.
        ValueError: If a size is not positive, the rate is outside [0, 1), or the
            attention needs positions or one mask for all nodes.

    Example:
        >>> config = EncoderConfig(num_layers=2, d_model=6, d_ff=8, num_heads=2)
        >>> model = NodeClassifier(config, num_features=5, num_classes=4)
        >>> adjacency = np.array([[[1, 1, 0], [1, 1, 0], [0, 0, 1]]])
        >>> model((np.ones((1, 3, 5)), adjacency)).shape  # (1, 3, 4)
    """

    def __init__(
        self, config: EncoderConfig, num_features: int, num_classes: int,
        feature_dropout_rate: float = 0.0, **kwargs: Unpack[BasicOptions],
    ) -> None:  # fmt: skip
        super().__init__(
            config, num_features, num_classes, feature_dropout_rate, **kwargs
        )
        # Every size is known, so the weights exist from the start.
        self.build()

    def call(
        self, inputs: tuple[TensorLike, TensorLike], training: bool | None = None
    ) -> Tensor:
        features, edges = self.checked(inputs)
        states = self.nodes(features, training)
        states = self.stack(states, mask=edges, training=training)
        return self.output_map(self.dropout(states, training=training))

    def compute_output_shape(self, input_shape: tuple[Shape, Shape]) -> Shape:
        return (*input_shape[0][:2], self.num_classes)
