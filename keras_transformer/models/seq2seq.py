"""What models from source ids to target ids share, and what each must define."""

from __future__ import annotations

from typing import Any, Self, Unpack

import keras
from keras import ops

from keras_transformer.config import Seq2SeqConfig
from keras_transformer.exact_training import ExactTraining
from keras_transformer.kernels.keras_private import layers_within
from keras_transformer.layers.adaptable_layer import HasAdaptableLayers
from keras_transformer.layers.arguments import check_pair, integer_ids
from keras_transformer.layers.quantization import float_policy
from keras_transformer.models.has_config import HasConfig
from keras_transformer.models.has_signature import HasSignature
from keras_transformer.models.output_head import OutputHead, matrix_of
from keras_transformer.types import BasicOptions, Shape, Tensor, TensorLike


class Seq2Seq(HasConfig, HasSignature, HasAdaptableLayers, ExactTraining, keras.Model):
    """Base of the models from a source sequence to a target sequence of ids.

    It trains with `model.compile` and `model.fit` on `((source, target_in),
    target_out)`, where `target_in` is `target_out` shifted right by the start id.
    `Generator`, `Translator` and exports take any such model. A subclass has a
    `config_class` and the methods

    - `make_embedding(name, vocabulary_size)`: a layer with a matrix `embeddings`
      (V, D), which the output may share.
    - `encode(source, training)`: the encoder's output (B, S, E) and its boolean mask
      (B, 1, S), True where a position is not padding.
    - `decode_states(target_in, encoder_output, source_mask, training)`: the states
      (B, T, D) that `logits` multiplies by the output matrix.
    - `attention(target_in, encoder_output, source_mask, layer)`: how a decoder layer
      attends to the source, (B, H, T, S).
    - `start_decoding`, `decode_step`, `resize_decoding`, `decoding_weights` and
      `coverage`: decoding step by step, as `Transformer` describes them.
    - `layers_of(part)`: the layers of the "encoder" or the "decoder", to freeze them,
      without the embeddings.

    and calls `build_embeddings` and `build_output_head` in its `build`.

    Args:
        config: The sizes, a `config_class`.
    Call arguments:
        inputs: A pair of integer tensors: source (B, S) and target_in (B, T).
        training: Whether dropout is applied.
        return_states: Whether to return the last states instead of the logits.
    Returns:
        Logits, a float tensor (B, T, V): row t scores the token after target_in[t]; or
        the decoder's last states, (B, T, D).
    Raises:
        TypeError: If `config` is not a `config_class`.
    """

    config_class = Seq2SeqConfig
    trains_without_logits = True
    config: Seq2SeqConfig

    def __init__(self, config: Seq2SeqConfig, **kwargs: Unpack[BasicOptions]) -> None:
        super().__init__(config, **kwargs)
        self.target_embedding = self.make_embedding(
            "target_embedding", config.target_vocabulary_size
        )
        if config.tied_embeddings == "three-way":
            self.source_embedding = self.target_embedding
        else:
            self.source_embedding = self.make_embedding(
                "source_embedding", config.source_vocabulary_size
            )

    @property
    def target_pad_id(self) -> int:
        """Id that pads the targets: `config.pad_id`."""
        return self.config.pad_id

    def build_embeddings(self) -> None:
        """Builds the source and the target embedding, for `build`."""
        self.target_embedding.build((None, None))
        if self.source_embedding is not self.target_embedding:
            self.source_embedding.build((None, None))

    def build_output_head(self) -> None:
        """Makes the weights of the logits that are not the embedding's, for `build`."""
        config = self.config
        if config.tied_embeddings != "none":
            matrix = matrix_of(self.target_embedding)
        else:
            matrix = self.add_matrix(
                "output_kernel",
                (config.d_model, config.target_vocabulary_size),
                initializer="glorot_uniform",
            )
        if config.output_bias:
            self.output_bias = self.add_weight(
                (config.target_vocabulary_size,),
                initializer="zeros",
                name="output_bias",
            )
        self.output_head = OutputHead(matrix, self.output_bias)

    def call(
        self, inputs: tuple[TensorLike, TensorLike], training: bool | None = None,
        return_states: bool = False,
    ) -> Tensor:  # fmt: skip
        check_pair("inputs", inputs, "source", "target_in")
        source = self.checked_source(inputs[0])
        target_in = integer_ids("target_in", inputs[1], "B", "T")
        _check_rows(source, target_in)
        encoder_output, source_mask = self.encode(source, training=training)
        decode = self.decode_states if return_states else self.decode
        return decode(target_in, encoder_output, source_mask, training=training)

    def checked_source(self, source: TensorLike) -> TensorLike:
        """Returns the source of a call as `encode` takes it, ids (B, S) as integers.

        A model of other sources overrides it.

        Args:
            source: What came.

        Raises:
            TypeError: If it is of another type.
            ValueError: If it has other axes.
        """
        return integer_ids("source", source, "B", "S")

    def decode(
        self, target_in: TensorLike, encoder_output: TensorLike,
        source_mask: TensorLike, training: bool | None = None,
    ) -> Tensor:  # fmt: skip
        """Scores every next token of whole target sentences.

        Args:
            target_in: Integer tensor (B, T).
            encoder_output: Float tensor (B, S, E), from `encode`.
            source_mask: Boolean tensor (B, 1, S), from `encode`.
            training: Whether dropout is applied.

        Returns:
            Logits (B, T, V).
        """
        states = self.decode_states(target_in, encoder_output, source_mask, training)
        return self.logits(states)

    def logits(self, states: TensorLike) -> Tensor:
        """Multiplies states (B, T, D) by the output matrix (D, V), tied or not.

        With `config.output_bias` it adds the bias `output_bias` (V,).
        """
        return self.output_head.logits(states, self.compute_dtype)

    def output_rows(self) -> Tensor:
        """Returns the output matrix (V, D); see `ExactTraining`."""
        return self.output_head.rows()

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
                f"{float_policy(self.dtype_policy).name!r}"
            )
        policy = keras.DTypePolicy(dtype)
        config = self.get_config() | {
            "dtype": keras.saving.serialize_keras_object(policy)
        }
        copy = type(self).from_config(config)
        copy.take_weights_of(self)
        return copy

    def take_weights_of(self, other: Seq2Seq) -> None:
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

    def input_signature(self) -> list[Any]:
        """Any batch of ids, source (B, S) and target_in (B, T)."""
        ids = keras.InputSpec(shape=(None, None), dtype="int32")
        return [(ids, ids)]

    def compute_output_shape(self, input_shape: tuple[Shape, Shape]) -> Shape:
        return (*input_shape[1], self.config.target_vocabulary_size)


def _check_rows(source, target_in):
    """Raises unless there is a target for each source."""
    rows = source.shape[0], target_in.shape[0]
    if None not in rows and rows[0] != rows[1]:
        raise ValueError(
            "`source` and `target_in` must have as many rows. Received: "
            f"{rows[0]} and {rows[1]}"
        )
