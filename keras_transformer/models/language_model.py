"""A decoder-only Transformer: a language model."""

from __future__ import annotations

from typing import Any, Unpack

import keras

from keras_transformer.config import LanguageModelConfig
from keras_transformer.models.token_model import TokenModel
from keras_transformer.nn.arguments import integer_ids
from keras_transformer.nn.layers.transformer_layer import CausalLayer
from keras_transformer.types import BasicOptions, Nest, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class LanguageModel(TokenModel):
    """A decoder-only Transformer that scores the next token of a text.

    Liu et al., 2018, section 4.2.3, https://arxiv.org/abs/1801.10198. With `norm_first`
    and learned positions it has the architecture of GPT-2 (Radford et al., 2019).

    Train it with `model.fit` on `(ids_in, ids_out)`, where `ids_in` is `ids_out`
    shifted right by the start id. Padding (`config.pad_id`) ends a row.
    `LanguageSampler` continues texts. Override `make_layer` to use other layers.

    Args:
        config: A `LanguageModelConfig`.
    Call arguments:
        ids: Integer tensor (B, T).
        return_states: Whether to return the last states instead of logits.
    Returns:
        Logits, a float tensor (B, T, V), row t for the token after ids[t]; or the last
        states (B, T, D).

    Example:
        >>> config = LanguageModelConfig(
        ...     vocabulary_size=50, num_layers=2, d_model=16, d_ff=32, num_heads=2
        ... )
        >>> LanguageModel(config)(np.array([[1, 7, 9]])).shape  # (1, 3, 50)
    """

    config_class = LanguageModelConfig
    config: LanguageModelConfig
    trains_without_logits = True

    def __init__(
        self, config: LanguageModelConfig, **kwargs: Unpack[BasicOptions]
    ) -> None:
        super().__init__(config, **kwargs)
        self.embedding = self.make_embedding("embedding", config.vocabulary_size)
        self.decoder_layers = [
            self.make_layer(f"decoder_layer_{i}") for i in range(config.num_layers)
        ]
        # Pre-norm does not normalise the last layer's sum.
        self.norm = self._make_norm("norm") if config.norm_first else None
        # Every size is known, so the weights exist from the start.
        self.build()

    def make_layer(self, name: str) -> keras.layers.Layer:
        """Returns the causal layer `name`; override to replace it."""
        return CausalLayer(
            **self.config.layer_options(), dtype=self.dtype_policy, name=name
        )

    def build(self, input_shape: Shape | None = None) -> None:
        config = self.config
        self.embedding.build((None, None))
        norms = () if self.norm is None else (self.norm,)
        for part in (*self.decoder_layers, *norms):
            part.build((None, None, config.d_model))
        tied = self.embedding if config.tied_embeddings else None
        self.make_output(tied, config.vocabulary_size, use_bias=False)
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
            states = self.norm(states, training=training)
        return states if return_states else self.masked_logits(states, ids)

    def start_decoding(self, texts: int, length: int, beam_size: int = 1) -> Nest:
        """Returns the state of `decode_step` for B = `texts` texts.

        It has room for `length` positions of N = `beam_size` hypotheses of each text.

        Raises:
            ValueError: If there are fewer learned positions than `length`.
        """
        return self._new_state(texts, beam_size, length)

    def decode_step(
        self,
        ids: TensorLike,
        parents: TensorLike,
        state: Nest,
        weights: Nest = None,
    ) -> tuple[Tensor, Nest]:
        """As `Transformer.decode_step`."""
        x = self.embedding(ids[:, None], start=state["index"], training=False)
        return self._step_through(self.norm, x, parents, state, weights)

    def input_signature(self) -> list[Any]:
        """Returns the `InputSpec` of ids (B, T)."""
        return [keras.InputSpec(shape=(None, None), dtype="int32")]

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape, self.config.vocabulary_size)
