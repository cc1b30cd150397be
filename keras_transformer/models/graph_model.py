"""What the models of graphs share: attention along the edges, and a linear map."""

from __future__ import annotations

from typing import Any, Unpack

import keras

from keras_transformer.config.layers import EncoderConfig
from keras_transformer.layers.arguments import (
    check_axes,
    check_mask,
    check_pair,
    check_rate,
    check_size,
)
from keras_transformer.layers.basic import Dropout
from keras_transformer.masks import graph_mask
from keras_transformer.models.encoder_model import (
    EncoderModel,
    check_free_masks,
    check_no_order,
)
from keras_transformer.models.encoder_stack import EncoderStack
from keras_transformer.models.has_config import HasConfig
from keras_transformer.types import BasicOptions, Shape, Tensor, TensorLike


class GraphModel(HasConfig, EncoderModel):
    """Base of the models whose nodes attend along the edges of a graph.

    Args:
        config: An `EncoderConfig`.
        num_features: Width of a node's features, F.
        num_classes: Number of classes.
        feature_dropout_rate: Share of the features dropped in training, in [0, 1).
    Raises:
        TypeError: If `config` is not an `EncoderConfig`.
        ValueError: If a size is not positive, the rate is outside [0, 1), or the
            attention needs positions or one mask for all nodes.
    """

    config_class = EncoderConfig
    config: EncoderConfig

    def __init__(
        self, config: EncoderConfig, num_features: int, num_classes: int,
        feature_dropout_rate: float = 0.0, **kwargs: Unpack[BasicOptions],
    ) -> None:  # fmt: skip
        super().__init__(config, **kwargs)
        check_no_order(config, "the nodes of a graph")
        check_free_masks(config, "a graph")
        check_size("num_features", num_features)
        check_size("num_classes", num_classes)
        check_rate("feature_dropout_rate", feature_dropout_rate)
        self.num_features = num_features
        self.num_classes = num_classes
        self.feature_dropout_rate = feature_dropout_rate
        dtype = self.dtype_policy
        self.feature_dropout = Dropout(
            feature_dropout_rate, dtype=dtype, name="feature_dropout"
        )
        self.feature_map = keras.layers.Dense(
            config.d_model, dtype=dtype, name="feature_map"
        )
        self.stack = EncoderStack(config, dtype=dtype, name="stack")
        self.dropout = Dropout(config.dropout_rate, dtype=dtype, name="dropout")
        self.output_map = keras.layers.Dense(
            num_classes, dtype=dtype, name="output_map"
        )

    def build(self, input_shape: tuple[Shape, Shape] | None = None) -> None:
        states = (None, None, self.config.d_model)
        self.feature_map.build((None, None, self.num_features))
        self.stack.build(states)
        self.output_map.build(states)
        self.built = True

    def checked(
        self, inputs: tuple[TensorLike, TensorLike]
    ) -> tuple[TensorLike, Tensor]:
        """Returns the features (B, S, F) and the boolean edges of a call's inputs.

        Args:
            inputs: A pair of tensors, features and adjacency.

        Returns:
            The features, and a boolean tensor (B, S, S).

        Raises:
            TypeError: If it is no pair.
            ValueError: If the axes are others, or do not agree.
        """
        check_pair("inputs", inputs, "features", "adjacency")
        features, adjacency = inputs
        check_axes("features", features, "B", "S", "F")
        if features.shape[-1] not in (None, self.num_features):
            raise ValueError(
                "`features` must have `num_features` numbers a node. Received: shape "
                f"{tuple(features.shape)}, num_features={self.num_features}"
            )
        check_axes("adjacency", adjacency, "...", "S", "S")
        edges = graph_mask(adjacency)
        check_mask("adjacency", edges, features, features)
        return features, edges

    def nodes(self, features: TensorLike, training: bool | None) -> Tensor:
        """Returns what the stack takes of features (B, S, F): (B, S, D)."""
        return self.feature_map(self.feature_dropout(features, training=training))

    def input_signature(self) -> list[Any]:
        """Any batch of graphs of any size."""
        features = keras.InputSpec(
            shape=(None, None, self.num_features), dtype="float32"
        )
        adjacency = keras.InputSpec(shape=(None, None, None), dtype="bool")
        return [(features, adjacency)]

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "num_features": self.num_features,
            "num_classes": self.num_classes,
            "feature_dropout_rate": self.feature_dropout_rate,
        }
