"""What the models share: one object of options, and the product that scores tokens."""

from __future__ import annotations

from typing import Any, Self

import keras
from keras import ops

from keras_transformer.exact_training import ExactTraining
from keras_transformer.kernels.few_passes import affine, prepared
from keras_transformer.kernels.keras_private import layers_within
from keras_transformer.layers.adaptation import policy_of, quantised_policies
from keras_transformer.layers.projections import joined, project
from keras_transformer.types import Nest, Tensor, TensorLike


class Configured:
    """Mixin before a Keras layer or model whose argument `config` is a `config_class`.

    It keeps the options as `config`, and its own configuration holds them.

    Raises:
        TypeError: If `config` is not a `config_class`.
    """

    config_class: type

    def __init__(self, config: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(config, self.config_class):
            raise TypeError(
                f"`config` must be of the class `{self.config_class.__name__}`. "
                f"Received: {config!r}"
            )
        self.config = config

    def get_config(self) -> dict[str, Any]:
        config = {"config": self.config.to_dict()}
        return super().get_config() | config | quantised_policies(self)

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        options = cls.config_class.from_dict(config["config"])
        return cls(**(config | {"config": options}))


class ExportableModel(keras.Model):
    """Base of the models that can be exported before their first call."""

    def input_signature(self) -> list[Any]:
        """Returns the `keras.InputSpec` of each argument of `call`."""
        raise NotImplementedError

    def export(
        self, filepath: str, *args: Any, input_signature: Any = None, **kwargs: Any
    ) -> None:
        """As `keras.Model.export`; by default the signature takes any batch.

        Args:
            filepath: Directory of the SavedModel, NAME/VERSION.
            *args: As `keras.Model.export` takes after the path.
            input_signature: Shapes and types of the inputs; default
                `self.input_signature()`.
            **kwargs: As `keras.Model.export`.
        """
        signature = input_signature or self.input_signature()
        super().export(filepath, *args, input_signature=signature, **kwargs)


class TokenModel(Configured, ExactTraining, ExportableModel):
    """Base of the models that score the tokens of a vocabulary of V.

    The output matrix is that of an embedding, or the `Dense` layer `output_dense`. A
    subclass calls `make_output` in its constructor.
    """

    # A subclass that computes `logits` in another way sets it to False.
    trains_without_logits = True

    @property
    def target_pad_id(self) -> int:
        """Id that pads the targets: `config.pad_id`."""
        return self.config.pad_id

    def make_output(
        self, embedding: keras.layers.Layer | None, vocabulary_size: int, use_bias: bool
    ) -> None:
        """Makes what `logits` multiplies by.

        Args:
            embedding: The `PositionalEmbedding` to share a matrix with, or `None` for
                one of its own.
            vocabulary_size: V.
            use_bias: Whether to add a bias to the logits.
        """
        self.tied_embedding, self.output_dense = embedding, None
        if embedding is None:
            self.output_dense = keras.layers.Dense(
                vocabulary_size, use_bias=False, dtype=self.dtype_policy, name="output"
            )
            self.output_dense.build((None, None, self.config.d_model))
        self.output_bias = None
        if use_bias:
            self.output_bias = self.add_weight(
                (vocabulary_size,), initializer="zeros", name="output_bias"
            )

    def logits(self, states: TensorLike) -> Tensor:
        """Multiplies states (B, T, D) by the output matrix (D, V), tied or not.

        With an `output_bias` (V,) it adds that.
        """
        if self.tied_embedding is None:
            (logits,) = project([self.output_dense], states)
        else:
            logits = self.tied_embedding.token_embedding(states, reverse=True)
        if self.output_bias is None:
            return logits
        return logits + ops.cast(self.output_bias, logits.dtype)

    def output_rows(self) -> Tensor | None:
        """Returns the output matrix as rows (V, D); `None` if it is quantised."""
        if self.tied_embedding is None:
            dense = self.output_dense
            return None if dense.quantization_mode else ops.transpose(dense.kernel)
        table = self.tied_embedding.token_embedding
        if table.quantization_mode:
            return None
        return ops.convert_to_tensor(table.embeddings)

    def output_weights(self) -> Nest:
        """Prepares what `step_logits` multiplies by; `()` if it is quantised."""
        if self.tied_embedding is None:
            weights = joined([self.output_dense])
        else:
            rows = self.output_rows()
            weights = ()
            if rows is not None:
                weights = (ops.transpose(ops.cast(rows, self.compute_dtype)),)
        if weights and self.output_bias is not None:
            weights += (ops.cast(self.output_bias, self.compute_dtype),)
        return prepared(*weights) if weights else ()

    def step_logits(self, rows: TensorLike, weights: Nest) -> Tensor:
        """As `logits`, of rows (R, D) with `output_weights`."""
        return affine(rows, *weights) if weights else self.logits(rows)

    def with_dtype(self, dtype: str) -> Self:
        """Returns this model if it computes and stores in `dtype`, or a copy that does.

        Args:
            dtype: Float type, such as "bfloat16".

        Raises:
            ValueError: If the model is quantised and its type is another.
        """
        if {self.compute_dtype, self.variable_dtype} == {dtype}:
            return self
        if any(layer.quantization_mode for layer in layers_within(self)):
            raise ValueError(
                "A quantised model keeps its float type: choose it before `quantize`, "
                f"with `with_dtype`. Received: dtype={dtype!r} for a model of the type "
                f"{policy_of(self).name!r}"
            )
        policy = keras.saving.serialize_keras_object(keras.DTypePolicy(dtype))
        copy = type(self).from_config(self.get_config() | {"dtype": policy})
        copy.take_weights_of(self)
        return copy

    def take_weights_of(self, other: TokenModel) -> None:
        """Copies the weights of a model of the same layers, in this model's float type.

        As a file would hold them: adapters merged.

        Args:
            other: A model of this class and these sizes, not quantised.
        """
        dtype = self.variable_dtype
        parts = ((model, *layers_within(model)) for model in (self, other))
        for ours, theirs in zip(*parts, strict=True):
            store = {}
            theirs.save_own_variables(store)
            # On JAX a step of training takes over the memory of its weights.
            copied = {i: ops.copy(ops.cast(v, dtype)) for i, v in store.items()}
            ours.load_own_variables(copied)
