"""Decoding of ids to ids, without TensorFlow."""

from __future__ import annotations

import dataclasses
import functools

import keras
from keras import ops

from keras_transformer.config import DecodingConfig
from keras_transformer.models.own_model import OwnModel, Recomputing
from keras_transformer.models.searchable import Searchable
from keras_transformer.nn.kernels.execution import keeps_shapes
from keras_transformer.nn.kernels.keras_private import layers_within
from keras_transformer.search.beam import FIRST_ROOM, beam_search
from keras_transformer.search.compiled import Compiled, is_traced
from keras_transformer.search.sampling import sample_tokens
from keras_transformer.search.shortlist import Shortlist
from keras_transformer.search.tokens import (
    IMPOSSIBLE,
    Constraints,
    DecodingResult,
    SpecialIds,
    as_rows,
    check_texts,
    score_in_parts,
)
from keras_transformer.testing.cached import assert_cached_equals_uncached
from keras_transformer.types import Nest, Tensor, TensorLike

# Positions of the check of a model with own classes; what half floats and a GPU's short
# products may differ by, as a share of the largest logit.
_CHECKED = 4
_TOLERANCE = 0.02


@dataclasses.dataclass(eq=False, repr=False)
class Generator:
    """Decodes, samples and scores target ids from source ids.

    Sources are integer tensors (B, S), each row ending with the end id, then padding;
    or float tensors (B, S, F), then padding of zeros, if the model takes those.

    Args:
        model: A `Transformer`, an `Ensemble`, or any Keras model that maps `(source,
            target_in)` to logits (B, T, V), where no target position sees a later one;
            see `OwnModel`.
        config: Options of decoding.
        weights: `model.decoding_weights()` to reuse; default computed at each call.
        fixed_shapes: Whether shapes depend only on those of the inputs, as on JAX and
            in a TensorFlow graph that XLA compiles; slower elsewhere.
        shortlist: A `Shortlist` of the pieces that `search` scores; default all.
    Raises:
        TypeError: If `model` is not such a model.
        ValueError: If `config` allows outputs longer than the learned positions, a
            target position sees a later one, `shortlist` does not fit the model, or a
            model with your own classes decodes otherwise than it is trained.

    Example:
        >>> generator = Generator(model, DecodingConfig(beam_size=4))
        >>> result = generator.search(np.array([[5, 6, 2]]), np.array([3]))
        >>> result.ids.shape  # (1, 1, T)
    """

    model: keras.Model
    config: DecodingConfig
    weights: Nest = None
    fixed_shapes: bool = False
    shortlist: Shortlist | None = None

    def __post_init__(self) -> None:
        #: The model in the form that a search needs.
        self.searchable = self.model
        if not isinstance(self.model, Searchable):
            self.searchable = OwnModel(self.model)
        if self.shortlist is not None:
            self.shortlist.check_fit(self.searchable, self.config.beam_size)
        self.longest = self.config.longest_output  # tokens of any output
        # A loop in a graph would read past the table without an error.
        self.searchable.config.check_positions(
            self.longest, "the longest output: lower `max_output_length`"
        )
        check_steps(self.searchable, self.longest)
        compiled = functools.partial(Compiled, model=self.searchable)
        source = self._padded_source()
        both = source | {1: self.longest}
        self._searched = compiled(
            self._search,
            columns=source | {2: self.longest},
            options=self._options_of_search,
        )
        self._sampled = compiled(self._sample, columns=source)
        self._scored = compiled(self._score, columns=both, cut={1: 1})
        self._attended = compiled(self._attend, columns=both, cut={2: 1, 3: 0})

    def search(
        self,
        source: TensorLike,
        lengths: TensorLike | None = None,
        prefix: TensorLike | None = None,
        prefix_lengths: TensorLike | int = 0,
        n_best: int = 1,
    ) -> DecodingResult:
        """Returns the `n_best` targets of each source, a `DecodingResult`.

        Args:
            source: Integer tensor (B, S), or float tensor (B, S, F).
            lengths: Integer tensor (B,) of source lengths (tokens, the end token
                counted), which limit the outputs; or `None`.
            prefix: Integer tensor (B, P), the first ids of the targets, padded.
            prefix_lengths: Integer tensor (B,) of prefix lengths (tokens).
            n_best: Targets per source.
        """
        if prefix is not None:
            prefix = self._targets("prefix", prefix)
        return self._searched(source, lengths, prefix, prefix_lengths, n_best=n_best)

    def _search(self, source, lengths, prefix, prefix_lengths, n_best, size=None):
        config = self.config
        model = self.searchable
        source, longest, limit = self._sizes(source, lengths, prefix, prefix_lengths)
        keeps_shapes = self._keeps_shapes()
        room = limit if keeps_shapes else ops.minimum(limit, FIRST_ROOM)
        chosen = is_piece = None
        if self.shortlist is not None:
            vocabulary = model.config.target_vocabulary_size
            if keeps_shapes and size is None:
                size = vocabulary
            given = () if prefix is None else (prefix,)
            chosen = self.shortlist.candidates(source, *given, size=size)
            if prefix is not None:
                prefix = self.shortlist.places(chosen, prefix)
            is_piece = None if size is None else chosen < vocabulary
            chosen = ops.minimum(chosen, vocabulary - 1)
        weights = self.weights or model.decoding_weights()
        if chosen is not None:
            weights = model.narrowed(weights, chosen)
        step = functools.partial(model.decode_step, weights=weights)
        if chosen is not None:
            step = _by_places(step, chosen, is_piece)
        result = beam_search(
            step=step,
            state=model.start_decoding(source, room, config.beam_size),
            max_lengths=longest,
            limit=limit,
            beam_size=config.beam_size,
            n_best=n_best,
            resize=None if keeps_shapes else model.resize_decoding,
            ends_within_beam=config.ends_within_beam,
            **rules_of(model, config, self.longest, prefix),
        )
        if chosen is None:
            return result
        return result._replace(ids=ops.take(chosen, result.ids))

    def sample(
        self,
        source: TensorLike,
        lengths: TensorLike | None,
        uniforms: TensorLike,
        temperature: TensorLike,
    ) -> DecodingResult:
        """Samples a target of each source, a `DecodingResult`.

        `uniforms` (B, `config.longest_output`) are numbers in [0, 1); a `temperature`
        (B,) is from 0 (greedy) to infinity (uniform). See `search` for the others.
        """
        return self._sampled(source, lengths, uniforms, temperature)

    def _sample(self, source, lengths, uniforms, temperature):
        source, longest, limit = self._sizes(source, lengths)
        weights = self.weights or self.searchable.decoding_weights()
        return sample_tokens(
            step=functools.partial(self.searchable.decode_step, weights=weights),
            state=self.searchable.start_decoding(source, limit),
            uniforms=uniforms,
            temperature=temperature,
            max_lengths=longest,
            limit=limit,
            top_k=self.config.top_k,
            top_p=self.config.top_p,
            **rules_of(self.searchable, self.config, self.longest),
        )

    def score(self, source: TensorLike, target_out: TensorLike) -> Tensor:
        """Returns the log-probability (B, T) of each token of given targets (nats).

        `source` (B, S) and `target_out` (B, T) end with the end token, then padding.
        """
        target_out = self._targets("target_out", target_out)
        return self._scored(source, target_out)

    def _score(self, source, target_out):
        encoded = self.searchable.encode(source)
        states = self.searchable.decode_states(self._target_in(target_out), *encoded)
        pad_id = self.searchable.config.pad_id
        return score_in_parts(self.searchable.logits, states, target_out, pad_id)

    def attention(self, source: TensorLike, target_out: TensorLike) -> Tensor:
        """Returns the attention (B, H, T, S) that predicts each target token.

        Takes the arguments of `score`; the attention of padding is 0.
        """
        if not self.searchable.has_attention:
            raise ValueError(
                "Attention to the source needs a model with a `DecoderLayer`."
            )
        target_out = self._targets("target_out", target_out)
        return self._attended(source, target_out)

    def _attend(self, source, target_out):
        target_in = self._target_in(target_out)
        layer = self.config.alignment_layer
        encoded = self.searchable.encode(source)
        attention = self.searchable.attention(target_in, *encoded, layer=layer)
        is_token = ops.not_equal(target_out, self.searchable.config.pad_id)
        is_token = ops.expand_dims(ops.cast(is_token, "float32"), (1, 3))
        return ops.cast(attention, "float32") * is_token

    def _targets(self, name, ids):
        """Returns ids (B, T), or raises `ValueError` unless they are texts."""
        ids = as_rows(name, ids)
        sizes = self.searchable.config
        check_texts(name, ids, special_ids_of(sizes), sizes.target_vocabulary_size)
        return ids

    def _target_in(self, target_out):
        target_in = ops.cast(target_out, "int32")[:, :-1]
        start_id = self.searchable.config.start_id
        return ops.pad(target_in, ((0, 0), (1, 0)), constant_values=start_id)

    def _padded_source(self):
        """Returns how long padding may make a source (tokens), for `Compiled`."""
        longest = self.config.max_source_length
        model = self.searchable
        try:
            model.config.check_positions(longest, "the longest source")
        except ValueError:
            longest = self.longest  # It has been checked.
        is_own = isinstance(model, OwnModel) and keeps_shapes()
        return {} if is_own and not model.ignores_padding(longest) else {0: longest}

    def _options_of_search(self, source, lengths, prefix, prefix_lengths):
        """Returns options of `_search` for given inputs: the size of the shortlist."""
        if self.shortlist is None or not self._keeps_shapes():
            return {}
        given = [source] if prefix is None else [source, prefix]
        return {"size": self.shortlist.size_for(*given)}

    def _keeps_shapes(self):
        """Whether shapes must depend only on those of the inputs."""
        return self.fixed_shapes or keeps_shapes()

    def _sizes(self, source, lengths, prefix=None, prefix_lengths=0):
        """Returns the source, the longest output (B,) of each, and of all."""
        longest = self.longest
        extra = self.config.max_extra_length
        if source.shape[1] == 0:
            more = [(0, 0)] * len(source.shape)
            more[1] = (0, 1)
            pad_id = self.searchable.config.pad_id
            source = ops.pad(source, more, constant_values=pad_id)
        if lengths is None:
            of_each = ops.full(ops.shape(source)[:1], longest, dtype="int32")
        else:
            # Section 6.1 of the paper: the input length + 50; 1 if the source is empty.
            lengths = ops.cast(lengths, "int32")
            begun = ops.cast(prefix_lengths, "int32")
            of_source = ops.where(lengths <= 1, 1, lengths + extra)
            begun = ops.where(begun > 0, begun + 1 + extra, 1)
            of_each = ops.minimum(ops.maximum(of_source, begun), longest)
        if not self._keeps_shapes():
            # A graph must not know the width, which grows in its loop.
            return source, of_each, ops.max(of_each, initial=1)  # 1 in an empty batch
        if lengths is None:
            return source, of_each, longest
        widths = [ops.shape(source)[1]]
        if prefix is not None:
            widths.append(ops.shape(prefix)[1] + 1)
        if all(isinstance(width, int) for width in widths):
            return source, of_each, min(max(widths) + extra, longest)
        width = ops.max(ops.stack(widths))
        return source, of_each, ops.minimum(width + extra, longest)


def _by_places(step, chosen, is_piece):
    """Returns a step that takes tokens by their places among those chosen (K,)."""

    def narrow_step(ids, parents, state):
        logits, state = step(ops.take(chosen, ids), parents, state)
        if is_piece is not None:
            logits = ops.where(is_piece, logits, IMPOSSIBLE)
        return logits, state

    return narrow_step


def check_steps(model, longest):
    """Raises `ValueError` if a model decodes otherwise than it is called.

    Only those with classes of others are run: the tests know Keras' and ours.
    """
    source = None
    parts = [model, *layers_within(model)]
    length = min(_CHECKED, longest)
    if isinstance(model, Recomputing):
        if not model.encodes:  # A step is a call.
            return
        source = model.short_source(length)
        parts = [model.model]
    names = dict.fromkeys(type(part).__name__ for part in parts if not _is_known(part))
    if not names or length < 2 or is_traced((), model.variables):
        return
    try:
        assert_cached_equals_uncached(
            model, source, length=length, beam_size=2, tolerance=_TOLERANCE
        )
    except AssertionError as error:
        raise ValueError(
            "`model` must decode step by step as it is called and trained. Beside an "
            "own `call` a layer needs an own `step`, and a model an own `decode_step`, "
            "or `encode` and `decode` that agree with it; an own `score` must not use "
            f"positions. Received: the own classes {', '.join(names)}. {error}"
        ) from error


def _is_known(part):
    return type(part).__module__.split(".")[0] in ("keras", "keras_transformer")


def special_ids_of(sizes):
    """Returns the `SpecialIds` of a model's `config`."""
    return SpecialIds(sizes.pad_id, sizes.start_id, sizes.end_id)


def rules_of(model, config, longest, prefix=None):
    """Returns the options of a search for at most `longest` tokens."""
    sizes = model.config
    size = config.no_repeat_ngram_size
    # A graph of unknown length would compare size - 1 times.
    if isinstance(longest, int) and size >= longest:
        size = 0
    never = None if config.allow_unknown else sizes.unknown_id
    return {
        "special_ids": special_ids_of(sizes),
        "length_penalty": config.length_penalty,
        "length_penalty_form": config.length_penalty_form,
        "constraints": Constraints(config.min_output_length, size, prefix, never),
    }
