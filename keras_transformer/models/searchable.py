"""What a search needs of a model."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from keras_transformer.types import Nest, Tensor, TensorLike


@runtime_checkable
class Searchable(Protocol):
    """A Keras model from sources to targets that decodes one position after another.

    `Transformer`, `Ensemble` and `OwnModel` are. B sentences, N hypotheses of each, R =
    B * N rows.
    """

    #: Vocabulary sizes, special ids, `num_decoder_layers` and `check_positions`.
    config: Any
    #: Whether `attention` can be called.
    has_attention: bool

    def encode(self, source: TensorLike) -> tuple[Any, ...]:
        """Returns what the next two take of a source (B, S) or (B, S, F)."""

    def decode_states(self, target_in: TensorLike, *encoded: Nest) -> Tensor:
        """Returns the last states (B, T, D) of target_in (B, T)."""

    def attention(
        self, target_in: TensorLike, *encoded: Nest, layer: int = -1
    ) -> Tensor:
        """Returns the attention (B, H, T, S) of target_in to the source in a layer."""

    def logits(self, states: TensorLike) -> Tensor:
        """Returns the logits (B, T, V) of states."""

    def decoding_weights(self) -> Nest:
        """Returns weights of `decode_step`, prepared once per search."""

    def start_decoding(
        self, source: TensorLike, length: Any, beam_size: int = 1
    ) -> Nest:
        """Returns the state before the first of `length` positions of N hypotheses.

        `source` is (B, S) or (B, S, F). A language model has no source: in its place
        it takes `texts`, their number B, and the other methods of a step are the same.
        """

    def decode_step(
        self, ids: TensorLike, parents: TensorLike, state: Nest, weights: Nest
    ) -> tuple[Tensor, Nest]:
        """Returns the logits (R, V) after ids (R,), and the new state.

        Row n of a sentence continues its hypothesis `parents[:, n]`.
        """

    def resize_decoding(self, state: Nest, sentences: TensorLike, length: Any) -> Nest:
        """Returns the state of some sentences (B',), with room for more positions."""

    def with_dtype(self, dtype: str) -> Searchable:
        """Returns the model in another float type, for exports."""
