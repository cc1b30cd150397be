"""Ids to ids: a model from sequences to sequences and a search; needs no TensorFlow."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding import (
    FIRST_ROOM,
    DecodingResult,
    beam_search,
    coverage_penalty,
    score_in_parts,
)
from keras_transformer.generation.model_search import ModelSearch
from keras_transformer.models.ensemble import Ensemble
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.types import Nest, Tensor, TensorLike


class Generator(ModelSearch):
    """Searches for, samples and scores the targets of sources, all of them ids.

    Sources are integer tensors (B, S), each row ending with the end id, then padding.

    Args:
        model: A `Transformer`, another `Seq2Seq`, or an `Ensemble`.
        config: How to search.
        weights: `model.decoding_weights()` to keep, or `None` to make them from the
            model's present weights each time.
        fixed_shapes: Whether every shape must follow from those of the inputs, as XLA
            needs it. Without XLA the search is then slower.
    Raises:
        ValueError: If `config` allows outputs longer than learned positions.

    Example:
        >>> generator = Generator(model, DecodingConfig(beam_size=4))
        >>> result = generator.search(np.array([[5, 6, 2]]), np.array([3]))
        >>> result.ids.shape  # (1, 1, T)
    """

    def __init__(
        self,
        model: Seq2Seq | Ensemble,
        config: DecodingConfig,
        weights: Nest = None,
        fixed_shapes: bool = False,
    ) -> None:
        super().__init__(model, config, weights)
        # The loop of a graph looks positions up past the table without an error.
        model.config.check_positions(
            config.longest_output, "the longest output: lower `max_output_length`"
        )
        # The loops of JAX keep the shapes of what they carry.
        self.fixed_shapes = fixed_shapes or keras.backend.backend() == "jax"

    def search(
        self, source: TensorLike, lengths: TensorLike | None = None,
        prefix: TensorLike | None = None, prefix_lengths: TensorLike | int = 0,
        n_best: int = 1,
    ) -> DecodingResult:  # fmt: skip
        """Searches for the best targets.

        Args:
            source: Integer tensor (B, S).
            lengths: Integer tensor (B,), tokens of each, the end token counted, which
                limit the outputs' lengths; `None`: `config.longest_output` alone does.
            prefix: Integer tensor (B, P) of padded ids that the targets must begin
                with, or `None`.
            prefix_lengths: Integer tensor (B,), tokens of each prefix.
            n_best: Targets of each source.

        Returns:
            A `DecodingResult`.
        """
        config = self.config
        source = self._with_column(source)
        longest = self._longest_outputs(source, lengths, prefix_lengths)
        limit = self._limit(source, lengths, longest, prefix)
        room = limit if self.fixed_shapes else ops.minimum(limit, FIRST_ROOM)
        coverage = config.coverage_penalty > 0
        return beam_search(
            self._step(),
            self.model.start_decoding(source, room, config.beam_size, coverage),
            max_lengths=longest,
            limit=limit,
            special_ids=self._special_ids(),
            beam_size=config.beam_size,
            n_best=n_best,
            alpha=config.length_penalty,
            length_penalty_form=config.length_penalty_form,
            constraints=self._constraints(config.longest_output, prefix),
            penalty=self._coverage_penalty if coverage else None,
            resize=None if self.fixed_shapes else self.model.resize_decoding,
            ends_within_beam=config.ends_within_beam,
        )

    def sample(
        self, source: TensorLike, lengths: TensorLike | None, uniforms: TensorLike,
        temperature: TensorLike,
    ) -> DecodingResult:  # fmt: skip
        """Draws a target of each source.

        Args:
            source: Integer tensor (B, S).
            lengths: As for `search`.
            uniforms: Float tensor (B, `config.longest_output`), numbers in [0, 1).
            temperature: Float tensor (B,), 0 is greedy.

        Returns:
            A `DecodingResult` with one target of each source.
        """
        source = self._with_column(source)
        longest = self._longest_outputs(source, lengths)
        limit = self._limit(source, lengths, longest)
        return self._draw(
            self.model.start_decoding(source, limit),
            self._constraints(self.config.longest_output),
            uniforms=uniforms,
            temperature=temperature,
            max_lengths=longest,
            limit=limit,
        )

    def score(self, source: TensorLike, target_out: TensorLike) -> Tensor:
        """Returns the log-probability (B, T) of each token of given targets, nats.

        Args:
            source: Integer tensor (B, S).
            target_out: Integer tensor (B, T), the end token, then padding.
        """
        states = self.model.decode_states(
            self._target_in(target_out), *self.model.encode(source)
        )
        pad_id = self.model.config.pad_id
        return score_in_parts(self.model.logits, states, target_out, pad_id)

    def attention(self, source: TensorLike, target_out: TensorLike) -> Tensor:
        """Returns the attention (B, H, T, S) with which each target token was chosen.

        Args:
            source: Integer tensor (B, S).
            target_out: Integer tensor (B, T), the end token, then padding, whose
                attention is 0.
        """
        attention = self.model.attention(
            self._target_in(target_out),
            *self.model.encode(source),
            layer=self.config.alignment_layer,
        )
        is_token = ops.not_equal(target_out, self.model.config.pad_id)
        is_token = ops.expand_dims(ops.cast(is_token, "float32"), (1, 3))
        return ops.cast(attention, "float32") * is_token

    def _with_column(self, source):
        """Returns the source, with a column of padding where it has none."""
        if source.shape[1] != 0:
            return source
        pad_id = self.model.config.pad_id
        return ops.pad(source, ((0, 0), (0, 1)), constant_values=pad_id)

    def _target_in(self, target_out):
        target_in = ops.cast(target_out, "int32")[:, :-1]
        start_id = self.model.config.start_id
        return ops.pad(target_in, ((0, 0), (1, 0)), constant_values=start_id)

    def _coverage_penalty(self, state):
        """Returns the penalty (R,) of the hypotheses of a state of the model."""
        covered, is_token = self.model.coverage(state)
        penalty = coverage_penalty(covered, is_token, self.config.coverage_penalty)
        return ops.reshape(penalty, (-1,))

    def _longest_outputs(self, source, lengths, prefix_lengths=0):
        """Returns the longest output (B,) of sources of `lengths` (B,) tokens."""
        if lengths is None:
            rows = (ops.shape(source)[0],)
            return ops.full(rows, self.config.longest_output, dtype="int32")
        # Section 6.1 of the paper: the input length + 50. An empty source needs one.
        extra = self.config.max_extra_length
        lengths, prefix_lengths = (
            ops.cast(x, "int32") for x in (lengths, prefix_lengths)
        )
        longest = ops.where(lengths <= 1, 1, lengths + extra)
        begun = ops.where(prefix_lengths > 0, prefix_lengths + 1 + extra, 1)
        longest = ops.maximum(longest, begun)
        return ops.minimum(longest, self.config.longest_output)

    def _limit(self, source, lengths, longest, prefix=None):
        """Returns the width of the outputs: the longest, or what the shape says."""
        if lengths is None:
            return self.config.longest_output
        # Without a sentence, one token.
        if not self.fixed_shapes:
            return ops.max(longest, initial=1)
        if keras.backend.backend() == "jax":
            return int(ops.max(longest, initial=1))
        # XLA takes it from the shapes of the inputs when it compiles.
        width = ops.shape(source)[1]
        if prefix is not None:
            width = ops.maximum(width, ops.shape(prefix)[1] + 1)
        limit = width + self.config.max_extra_length
        return ops.minimum(limit, self.config.longest_output)
