"""Decoding and training of any Keras model from ids to logits."""

from __future__ import annotations

import types
import warnings
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.models.exact_training import ExactTraining
from keras_transformer.nn.kernels.caches import pick
from keras_transformer.nn.kernels.execution import keeps_shapes
from keras_transformer.nn.kernels.keras_private import layers_within
from keras_transformer.nn.layers.attention import recorded_attention
from keras_transformer.nn.layers.transformer_layer import DecoderLayer
from keras_transformer.types import Nest, Tensor, TensorLike

# The forms that the inputs of a model may have.
_FORMS = (
    lambda source, target_in: (source, target_in),
    lambda source, target_in: {"source": source, "target_in": target_in},
)
# Two targets that differ in the last token.
_TARGETS = np.array([[1, 3, 3], [1, 3, 2]], "int32")


class Recomputing(keras.Model):
    """Base of a user's model in our form: a step computes all positions again.

    A subclass has `expected`, and `decode_states(ids, encoded)` that returns logits.
    """

    expected: str  #: What a model must be, for errors.
    encodes = False  #: Whether a step has methods of its own, and is no call.

    def __init__(self, model: keras.Model) -> None:
        if not isinstance(model, keras.Model):
            raise TypeError(f"{self.expected}. Received: a {type(model).__name__}")
        super().__init__(name=model.name, dtype=model.dtype_policy)
        self.model = model
        self.built = True

    def _logits_of(self, encoded):
        """Returns the logits (2, 3, V) of `_TARGETS`, or raises an error."""
        logits = self.decode_states(ops.convert_to_tensor(_TARGETS), encoded)
        shape = tuple(getattr(logits, "shape", ()))
        if len(shape) != 3 or shape[:2] != (2, 3):
            raise ValueError(f"its outputs for B = 2, T = 3 have the shape {shape}")
        return ops.convert_to_numpy(ops.cast(logits, "float32"))

    def _refused(self, error):
        """Returns the `TypeError` for a model that raised an error."""
        return TypeError(
            f"{self.expected}. Received: a {type(self.model).__name__}, "
            f"{self.model.name!r}, which raised {type(error).__name__}: {error!s:.500}"
        )

    def _check_causal(self, logits):
        if not np.allclose(logits[0, :2], logits[1, :2], rtol=1e-3, atol=1e-3):
            raise ValueError(
                "`model` must score a target position without later ones: give its "
                "self-attention `use_causal_mask=True`. Received: "
                f"{self.model.name!r}, whose logits change with a later token"
            )

    def logits(self, states: TensorLike) -> TensorLike:
        """Returns `states`, which are logits."""
        return states

    def decoding_weights(self) -> Nest:
        """Returns `()`: the model uses its own weights."""
        return ()

    def _new_state(self, sentences, hypotheses, length, encoded):
        """Returns the state of `decode_step`: the tokens so far and the source."""
        ids = ops.zeros((sentences, hypotheses, length), "int32")
        return {"index": ops.zeros((), "int32"), "ids": ids, "encoded": encoded}

    def resize_decoding(
        self, state: Nest, sentences: TensorLike, length: int | TensorLike
    ) -> Nest:
        """As `Transformer.resize_decoding`."""
        parts = {name: state[name] for name in ("ids", "encoded")}
        kept = keras.tree.map_structure(lambda x: ops.take(x, sentences, axis=0), parts)
        more = length - ops.shape(kept["ids"])[2]
        ids = ops.pad(kept["ids"], ((0, 0), (0, 0), (0, more)))
        return state | kept | {"ids": ids}

    def decode_step(
        self, ids: TensorLike, parents: TensorLike, state: Nest, weights: Nest = None
    ) -> tuple[Tensor, Nest]:
        """As `Transformer.decode_step`, computing all positions again."""
        index = state["index"]
        hypotheses = parents.shape[1]
        before = pick(state["ids"], parents)  # (B, N, L)
        length = ops.shape(before)[2]
        is_new = ops.equal(ops.arange(length, dtype="int32"), index)
        prefix = ops.where(is_new, ops.reshape(ids, (-1, hypotheses, 1)), before)
        rows = ops.reshape(prefix, (-1, length))  # (R, L)
        encoded = keras.tree.map_structure(
            lambda x: ops.repeat(x, hypotheses, axis=0), state["encoded"]
        )
        if keeps_shapes():  # Later positions have no effect.
            logits = ops.take(self.decode_states(rows, encoded), index, axis=1)
        else:
            logits = self.decode_states(rows[:, : index + 1], encoded)[:, -1]
        return logits, state | {"index": index + 1, "ids": prefix}


@keras.saving.register_keras_serializable(package="keras_transformer")
class OwnModel(ExactTraining, Recomputing):
    """A Keras model in the form that `Generator`, `Translator` and `train` need.

    The model maps `(source, target_in)`, or `{"source": ..., "target_in": ...}`,
    integers (B, S) and (B, T), to logits (B, T, V); no target position sees a later
    one. Ids 0 to 3 are padding, start, end and unknown. Each step of a search calls the
    model with all positions so far. A model with methods `encode(source)`, which
    returns tensors (B, ...), and `decode(target_in, encoded)`, which returns the
    logits, encodes a source once.

    A `Generator` also searches a model whose sources are floats (B, S, F), padded with
    zeros: a functional model says F itself, for another `features` is F.

    Raises:
        TypeError: If `model` is not such a model.
        ValueError: If a target position sees a later one.
    """

    target_pad_id = 0
    expected = (
        "`model` must be a Keras model that maps (source, target_in), integers of "
        "shapes (B, S) and (B, T), to logits (B, T, V)"
    )

    def __init__(self, model: keras.Model, features: int | None = None) -> None:
        super().__init__(model)
        if features is None and isinstance(model, keras.Function):
            features = next((x.shape[2] for x in model.inputs if x.ndim == 3), None)
        self.features = features
        self.encodes = hasattr(model, "encode")
        self._form, logits = self._tried_forms()
        self._check_causal(logits)
        self._unpadded = logits
        if not self.ignores_padding(3):
            warnings.warn(
                f"The logits of {model.name!r} change with padding of the source, so a "
                "translation depends on its batch: mask zeros in its attention.",
                stacklevel=2,
            )
        layers = [x for x in layers_within(model) if isinstance(x, DecoderLayer)]
        self._attends = [layer.cross_attention for layer in layers]
        self.has_attention = bool(layers)
        self.config = _config(
            source_vocabulary_size=None,
            target_vocabulary_size=logits.shape[-1],
            num_decoder_layers=len(layers),
        )

    def _tried_forms(self):
        """Returns the form of inputs that the model takes, and logits of short ones."""
        problems = []
        for form in _FORMS:
            self._form = form
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("error", "The structure of `inputs`")
                    return form, self._logits_of(*self.encode(self.short_source(2)))
            except Exception as error:  # Models fail in many ways.
                problems.append(error)
        raise self._refused(problems[0])

    def short_source(self, length: int) -> Tensor:
        """Returns two equal sources of two tokens, with padding up to a length."""
        tokens = np.array([3, 2], "int32")
        if self.features is not None:
            # None is 0, which is padding.
            tokens = np.linspace(-1.0, 1.0, 2 * self.features, dtype="float32")
            tokens = tokens.reshape(2, self.features)
        source = np.zeros((2, length, *tokens.shape[1:]), tokens.dtype)
        source[:, :2] = tokens
        return ops.convert_to_tensor(source)

    def ignores_padding(self, length: int) -> bool:
        """Whether padding of a source to `length` tokens changes no logits."""
        padded = self._logits_of(*self.encode(self.short_source(length)))
        return np.allclose(self._unpadded, padded, rtol=1e-3, atol=1e-3)

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        return self.model(self._form(*inputs), training=training)

    def encode(self, source: TensorLike) -> tuple[Nest]:
        """Returns the source (B, S), encoded if the model can, for `decode_states`."""
        return (self.model.encode(source) if self.encodes else source,)

    def decode_states(self, target_in: TensorLike, encoded: Nest) -> Tensor:
        """Returns the logits (B, T, V) of target_in (B, T)."""
        if self.encodes:
            return self.model.decode(target_in, encoded)
        return self.call((encoded, target_in), training=False)

    def attention(
        self, target_in: TensorLike, encoded: Nest, layer: int = -1
    ) -> Tensor:
        """As `Transformer.attention`; needs a `DecoderLayer`."""
        with recorded_attention() as record:
            self.decode_states(target_in, encoded)
        return record[self._attends[layer]][0]

    def start_decoding(
        self, source: TensorLike, length: int | TensorLike, beam_size: int = 1
    ) -> Nest:
        """Returns the state of `decode_step`."""
        sentences = ops.shape(source)[0]
        return self._new_state(sentences, beam_size, length, *self.encode(source))

    def with_dtype(self, dtype: str) -> OwnModel:
        """Returns this model; raises `ValueError` for another `dtype`."""
        if self.compute_dtype != dtype:
            raise ValueError(
                "`dtype` must be the model's: only a `Transformer` is converted. "
                f"Received: dtype={dtype!r} for a model in {self.compute_dtype}"
            )
        return self

    def get_config(self) -> dict[str, Any]:
        return {"model": self.model, "features": self.features}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> OwnModel:
        model = keras.saving.deserialize_keras_object(config["model"])
        return cls(model, config["features"])


class OwnLanguageModel(Recomputing):
    """A decoder-only Keras model in the form that `LanguageSampler` needs.

    The model maps ids, integers (B, T), to logits (B, T, V); no position sees a later
    one.

    Raises:
        TypeError: If `model` is not such a model.
        ValueError: If a position sees a later one.
    """

    expected = (
        "`model` must be a `LanguageModel`, or a Keras model that maps ids, integers "
        "of the shape (B, T), to logits (B, T, V)"
    )

    def __init__(self, model: keras.Model) -> None:
        super().__init__(model)
        try:
            logits = self._logits_of(())
        except Exception as error:  # Models fail in many ways.
            raise self._refused(error) from error
        self._check_causal(logits)
        self.config = _config(vocabulary_size=logits.shape[-1])

    def call(self, ids: TensorLike, training: bool | None = None) -> Tensor:
        return self.model(ids, training=training)

    def decode_states(self, ids: TensorLike, encoded: Nest) -> Tensor:
        """Returns the logits (B, T, V) of ids (B, T)."""
        return self.model(ids, training=False)

    def start_decoding(self, texts: int, length: int, beam_size: int = 1) -> Nest:
        """Returns the state of `decode_step` for B = `texts` texts."""
        return self._new_state(texts, beam_size, length, ())


def _config(**sizes):
    """Returns the `config` of a user's model: its sizes, and the special ids."""
    return types.SimpleNamespace(
        pad_id=0,
        start_id=1,
        end_id=2,
        unknown_id=3,
        check_positions=lambda longest, what: None,
        **sizes,
    )
