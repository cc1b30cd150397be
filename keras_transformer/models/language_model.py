"""A decoder-only Transformer: a language model, with one cached decoding step."""

from __future__ import annotations

from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.config.language_model import LanguageModelConfig
from keras_transformer.exact_training import ExactTraining
from keras_transformer.layers.adaptable_layer import HasAdaptableLayers
from keras_transformer.layers.arguments import integer_ids
from keras_transformer.layers.basic import LayerNormalization
from keras_transformer.layers.embedding import PositionalEmbedding
from keras_transformer.layers.transformer_layer import CausalLayer
from keras_transformer.models.decoding import (
    check_length,
    new_state,
    past_of,
    resized_state,
)
from keras_transformer.models.has_config import HasConfig
from keras_transformer.models.has_signature import HasSignature
from keras_transformer.models.output_head import OutputHead, matrix_of
from keras_transformer.types import BasicOptions, Nest, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class LanguageModel(
    HasConfig, HasSignature, HasAdaptableLayers, ExactTraining, keras.Model
):
    """Scores every next token of a text from those before it.

    The decoder of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, without a
    source: Liu et al., 2018, section 4.2.3, https://arxiv.org/abs/1801.10198. With
    `norm_first` and learned positions it has the shape of GPT-2 (Radford et al., 2019,
    "Language Models are Unsupervised Multitask Learners").

    It trains with `model.compile` and `model.fit` on `(ids_in, ids_out)`, where
    `ids_in` is `ids_out` shifted right by the start id. Padding (`config.pad_id`)
    stands at the end of a row. `LanguageSampler` continues texts with it. To use other
    layers, override `make_layer`.

    Args:
        config: A `LanguageModelConfig`.
    Call arguments:
        ids: Integer tensor (B, T).
        training: Whether dropout is applied.
        return_states: Whether to return the last states instead of the logits.
    Returns:
        Logits, a float tensor (B, T, V): row t scores the token after ids[t]; or the
        last layer's states, (B, T, D).
    Raises:
        TypeError: If `config` is not a `LanguageModelConfig`.

    Example:
        >>> config = LanguageModelConfig(
        ...     vocabulary_size=50, num_layers=2, d_model=16, d_ff=32, num_heads=2
        ... )
        >>> LanguageModel(config)(np.array([[1, 7, 9]])).shape  # (1, 3, 50)
    """

    config_class = LanguageModelConfig
    trains_without_logits = True
    config: LanguageModelConfig

    def __init__(
        self, config: LanguageModelConfig, **kwargs: Unpack[BasicOptions]
    ) -> None:
        super().__init__(config, **kwargs)
        self.embedding = self.make_embedding("embedding")
        self.decoder_layers = [
            self.make_layer(f"layer_{i}") for i in range(config.num_layers)
        ]
        # Pre-norm leaves the last layer's sum without a norm; post-norm does not.
        self.norm = None
        if config.norm_first:
            self.norm = LayerNormalization(
                epsilon=config.layer_norm_epsilon, dtype=self.dtype_policy, name="norm"
            )
        # Every size is known, so the weights exist from the start.
        self.build()

    @property
    def target_pad_id(self) -> int:
        """Id that pads the targets: `config.pad_id`."""
        return self.config.pad_id

    def make_layer(self, name: str) -> keras.layers.Layer:
        """Returns a causal layer called `name`; override to use another one."""
        return CausalLayer(
            **self.config.layer_options(), dtype=self.dtype_policy, name=name
        )

    def make_embedding(self, name: str) -> keras.layers.Layer:
        """Returns the embedding called `name`; override to use another one."""
        config = self.config
        return PositionalEmbedding(
            vocabulary_size=config.vocabulary_size,
            d_model=config.d_model,
            dropout_rate=config.dropout_rate,
            positions="none" if config.relative_positions else config.positions,
            max_length=config.max_positions if config.positions == "learned" else None,
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, input_shape: Shape | None = None) -> None:
        config = self.config
        states_shape = (None, None, config.d_model)
        self.embedding.build((None, None))
        for layer in self.decoder_layers:
            layer.build(states_shape)
        if self.norm is not None:
            self.norm.build(states_shape)
        if config.tied_embeddings:
            matrix = matrix_of(self.embedding)
        else:
            matrix = self.add_matrix(
                "output_kernel",
                (config.d_model, config.vocabulary_size),
                initializer="glorot_uniform",
            )
        self.output_head = OutputHead(matrix)
        self.built = True

    def call(
        self, ids: TensorLike, training: bool | None = None, return_states: bool = False
    ) -> Tensor:
        ids = integer_ids("ids", ids, "B", "T")
        # Padding ends a row, so the causal mask hides it from every real position.
        states = self.embedding(ids, training=training)
        for layer in self.decoder_layers:
            states = layer(states, training=training)
        if self.norm is not None:
            states = self.norm(states)
        return states if return_states else self.logits(states)

    def logits(self, states: TensorLike) -> Tensor:
        """Multiplies states (B, T, D) by the output matrix (D, V), tied or not."""
        return self.output_head.logits(states, self.compute_dtype)

    def output_rows(self) -> Tensor:
        """Returns the output matrix (V, D); see `ExactTraining`."""
        return self.output_head.rows()

    def decoding_weights(self) -> Nest:
        """As `Transformer.decoding_weights`."""
        return {
            "output": self.output_head.decoding_weights(self.compute_dtype),
            "layers": tuple(layer.decoding_weights() for layer in self.decoder_layers),
        }

    def start_decoding(self, texts: int, length: int, beam_size: int = 1) -> Nest:
        """Makes the state of `decode_step`, before the start token.

        Args:
            texts: Texts that are decoded side by side, B; an integer or a scalar
                tensor.
            length: Most positions that will be decoded, L (tokens).
            beam_size: Hypotheses of a text, N.

        Returns:
            The state, as `models.decoding_state` describes it.

        Raises:
            ValueError: If learned positions are fewer than `length`.
        """
        check_length(self.config, length)
        return new_state(self.decoder_layers, texts, beam_size, length)

    def resize_decoding(
        self, state: Nest, texts: TensorLike, length: int | TensorLike
    ) -> Nest:
        """As `Transformer.resize_decoding`."""
        return resized_state(state, self.decoder_layers, texts, length)

    def decode_step(
        self, ids: TensorLike, parents: TensorLike | None, state: Nest,
        weights: Nest = None,
    ) -> tuple[Tensor, Nest]:  # fmt: skip
        """Scores the next token of each hypothesis; equals a call at that position.

        Args:
            ids: Integer tensor (R,), the last token of each of the R = B * N rows.
            parents: Integer tensor (B, N), the hypothesis of the step before that each
                row continues.
            state: As `start_decoding` or the step before returned it; not to be used
                again.
            weights: `decoding_weights()`, computed here if not given.

        Returns:
            Logits (R, V) and the new state.
        """
        weights = self.decoding_weights() if weights is None else weights
        past = past_of(state, parents, self.compute_dtype)
        index, d_model = state["index"], self.config.d_model
        states = self.embedding(ids[:, None], start=index, training=False)
        states = ops.reshape(states, (-1, parents.shape[1], d_model))
        caches = []
        for layer, cache, place, layer_weights in zip(
            self.decoder_layers,
            state["caches"],
            past.places,
            weights["layers"],
            strict=True,
        ):
            states, cache = layer.step(states, cache, place, past.mask, layer_weights)
            caches.append(cache)
        if self.norm is not None:
            states = self.norm(states)
        rows = ops.reshape(states, (-1, d_model))
        logits = self.output_head.multiply(rows, weights["output"])
        return logits, {
            "index": index + 1,
            "ancestors": past.ancestors,
            "caches": tuple(caches),
        }

    def input_signature(self) -> list[Any]:
        """Any batch of ids, (B, T)."""
        return [keras.InputSpec(shape=(None, None), dtype="int32")]

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape, self.config.vocabulary_size)
