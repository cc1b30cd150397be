"""The mean of the probabilities of several models."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_transformer.models.token_model import ExportableModel
from keras_transformer.models.transformer import Seq2Seq
from keras_transformer.nn.kernels.keras_private import carried_mask, with_mask
from keras_transformer.types import Nest, Shape, Tensor, TensorLike


class EnsembleSizes:
    """The `config` of an ensemble: the sizes and ids its members share."""

    def __init__(self, configs: Sequence[Any]):
        sizes = "source_vocabulary_size", "target_vocabulary_size"
        for name in (*sizes, "pad_id", "start_id", "end_id", "unknown_id"):
            values = [getattr(config, name) for config in configs]
            if len(set(values)) > 1:
                raise ValueError(
                    f"The members of an ensemble must have one `{name}`. Received: "
                    f"{', '.join(map(str, values))}"
                )
            setattr(self, name, values[0])
        self.num_decoder_layers = min(c.num_decoder_layers for c in configs)
        self._configs = configs

    def check_positions(self, longest: int, what: str):
        """As `TransformerConfig.check_positions`, for all members."""
        for config in self._configs:
            config.check_positions(longest, what)


class Ensemble(ExportableModel):
    """A model that averages the probabilities of several trained models.

    Its logits, in float32, are the log of the mean of the members' probabilities p_m,
    log (1 / M sum_m p_m(y_t | y_1 ... y_(t-1), x)): section 3.6 of Sutskever et al.,
    2014, https://arxiv.org/abs/1409.3215. Members may differ in size and float type.
    `Generator`, `Translator` and exports take an ensemble; it is neither trained nor
    saved. It has the methods of a `Transformer`, with tuples of one entry per member.

    Args:
        members: Two or more models of one vocabulary, `Transformer` or `Seq2Seq`.
    Call arguments:
        inputs: Integer tensors (source, target_in), (B, S) and (B, T).
    Returns:
        Log-probabilities, a float32 tensor (B, T, V).
    Raises:
        TypeError: If a member is not a `Seq2Seq`.
        ValueError: If there are fewer than two members, or their vocabularies or
            special ids differ.

    Example:
        >>> runs = [load(run) for run in ("runs/a", "runs/b")]
        >>> model = Ensemble([run.model for run in runs])
        >>> model((np.array([[5, 6, 2]]), np.array([[1, 7]]))).shape  # (1, 2, V)
    """

    def __init__(self, members: Sequence[Seq2Seq], name: str = "ensemble") -> None:
        super().__init__(name=name)
        others = [type(m).__name__ for m in members if not isinstance(m, Seq2Seq)]
        if others:
            raise TypeError(
                "Each member of an ensemble must be a `Transformer` or another "
                f"`Seq2Seq`. Received: {', '.join(others)}"
            )
        if len(members) < 2:
            raise ValueError(
                f"An ensemble must have at least two members. Received: {len(members)}"
            )
        self.members = list(members)
        self.built = True
        self.config = EnsembleSizes([member.config for member in members])
        self.has_attention = all(member.has_attention for member in members)

    __call__ = Seq2Seq.__call__

    def call(
        self, inputs: tuple[TensorLike, TensorLike], training: bool | None = None
    ) -> Tensor:
        outputs = [m(inputs, training=training) for m in self.members]
        return with_mask(_log_of_mean(outputs), carried_mask(outputs[0]))

    def encode(
        self, source: TensorLike, training: bool | None = None
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Returns the encoder outputs (B, S, D) and the mask (B, 1, S)."""
        encoded = [member.encode(source, training=training) for member in self.members]
        outputs, (mask, *_) = zip(*encoded, strict=True)
        return outputs, mask

    def decode_states(
        self,
        target_in: TensorLike,
        encoder_output: Sequence[TensorLike],
        source_mask: TensorLike,
        training: bool | None = None,
    ) -> Tensor:
        """Returns the states of all members side by side, (B, T, sum of D)."""
        parts = zip(self.members, encoder_output, strict=True)
        states = [
            m.decode_states(target_in, x, source_mask, training) for m, x in parts
        ]
        return ops.concatenate([ops.cast(x, "float32") for x in states], axis=-1)

    def logits(self, states: TensorLike) -> Tensor:
        """Returns the log of the mean of the probabilities (B, T, V)."""
        ends = list(itertools.accumulate(m.config.d_model for m in self.members))
        parts = zip(self.members, ops.split(states, ends[:-1], axis=-1), strict=True)
        scores = [m.logits(ops.cast(x, m.compute_dtype)) for m, x in parts]
        return _log_of_mean(scores)

    def attention(
        self,
        target_in: TensorLike,
        encoder_output: Sequence[TensorLike],
        source_mask: TensorLike,
        layer: int = -1,
    ) -> Tensor:
        """Returns the attention (B, M, T, S) of each member, averaged over heads."""
        parts = zip(self.members, encoder_output, strict=True)
        weights = [m.attention(target_in, x, source_mask, layer) for m, x in parts]
        means = [ops.mean(ops.cast(x, "float32"), axis=1) for x in weights]
        return ops.stack(means, axis=1)

    def start_decoding(
        self, source: TensorLike, length: int, beam_size: int = 1
    ) -> Nest:
        """Returns the state of `decode_step` before the first token."""
        return tuple(m.start_decoding(source, length, beam_size) for m in self.members)

    def decoding_weights(self) -> Nest:
        """Returns the prepared weights of `decode_step`."""
        return tuple(member.decoding_weights() for member in self.members)

    def resize_decoding(
        self, state: Nest, sentences: TensorLike, length: int | TensorLike
    ) -> Nest:
        """As `Transformer.resize_decoding`."""
        parts = zip(self.members, state, strict=True)
        return tuple(m.resize_decoding(own, sentences, length) for m, own in parts)

    def decode_step(
        self,
        ids: TensorLike,
        parents: TensorLike,
        state: Nest,
        weights: Nest = None,
    ) -> tuple[Tensor, Nest]:
        """Returns the next token's log-probabilities (R, V), float32, and the state."""
        weights = self.decoding_weights() if weights is None else weights
        parts = zip(self.members, state, weights, strict=True)
        steps = [m.decode_step(ids, parents, *own) for m, *own in parts]
        scores, states = zip(*steps, strict=True)
        return _log_of_mean(scores), states

    def with_dtype(self, dtype: str) -> Ensemble:
        """Returns the ensemble of `member.with_dtype(dtype)`."""
        return Ensemble([member.with_dtype(dtype) for member in self.members])

    def input_signature(self) -> list[Any]:
        """As `Seq2Seq.input_signature`."""
        return self.members[0].input_signature()

    def compute_output_shape(self, input_shape: Any) -> Shape:
        return self.members[0].compute_output_shape(input_shape)


def _log_of_mean(logits):
    """The log of the mean of several models' probabilities, from their logits."""
    wide = [ops.log_softmax(ops.cast(x, "float32"), axis=-1) for x in logits]
    return ops.logsumexp(ops.stack(wide), axis=0) - math.log(len(wide))
