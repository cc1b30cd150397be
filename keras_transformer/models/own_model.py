"""Decoding and training of any Keras model from source and target ids to logits."""

from __future__ import annotations

import types
import warnings
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.models.exact_training import ExactTraining
from keras_transformer.nn.kernels.caches import pick
from keras_transformer.nn.kernels.keras_private import is_in_xla_graph, layers_within
from keras_transformer.nn.layers.attention import recorded_attention
from keras_transformer.nn.layers.transformer_layer import DecoderLayer
from keras_transformer.types import Nest, Tensor, TensorLike

_EXPECTED = (
    "`model` must be a Keras model that maps (source, target_in), integers of shapes "
    "(B, S) and (B, T), to logits (B, T, V)"
)


@keras.saving.register_keras_serializable(package="keras_transformer")
class OwnModel(ExactTraining, keras.Model):
    """A Keras model in the form that `Generator`, `Translator` and `train` need.

    The model maps `(source, target_in)`, or `{"source": ..., "target_in": ...}`,
    integers (B, S) and (B, T), to logits (B, T, V); no target position sees a later
    one. Ids 0 to 3 are padding, start, end and unknown. Each step of a search calls the
    model with all positions so far. A model with methods `encode(source)`, which
    returns tensors (B, ...), and `decode(target_in, encoded)`, which returns the
    logits, encodes a source once.

    Raises:
        TypeError: If `model` is not such a model.
        ValueError: If a target position sees a later one.
    """

    target_pad_id = 0

    def __init__(self, model: keras.Model) -> None:
        if not isinstance(model, keras.Model):
            raise TypeError(f"{_EXPECTED}. Received: a {type(model).__name__}")
        super().__init__(name=model.name, dtype=model.dtype_policy)
        self.model = model
        self._takes_pair = True
        self.built = True
        self._encodes = hasattr(model, "encode")
        # The targets differ in the last token.
        logits = self._tried([3, 2])
        if not np.allclose(logits[0, :2], logits[1, :2], rtol=1e-3, atol=1e-3):
            raise ValueError(
                "`model` must score a target position without later ones: give its "
                "self-attention `use_causal_mask=True`. Received: "
                f"{model.name!r}, whose logits change with a later token"
            )
        self._unpadded = logits
        if not self.ignores_padding(3):
            warnings.warn(
                f"The logits of {model.name!r} change with padding of the source, so a "
                "translation depends on its batch: mask the id 0 in its attention.",
                stacklevel=2,
            )
        layers = [x for x in layers_within(model) if isinstance(x, DecoderLayer)]
        self._attends = [layer.cross_attention for layer in layers]
        self.has_attention = bool(layers)
        self.config = types.SimpleNamespace(
            source_vocabulary_size=None,
            target_vocabulary_size=logits.shape[-1],
            num_decoder_layers=len(layers),
            pad_id=0,
            start_id=1,
            end_id=2,
            unknown_id=3,
            check_positions=lambda longest, what: None,
        )

    def _tried(self, source):
        """Returns the logits of two short targets, and finds the form of inputs."""
        source = ops.convert_to_tensor([source, source], "int32")
        targets = ops.convert_to_tensor([[1, 3, 3], [1, 3, 2]], "int32")
        problems = []
        for self._takes_pair in (True, False):
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("error", "The structure of `inputs`")
                    logits = self.decode_states(targets, *self.encode(source))
            except Exception as error:  # Models fail in many ways.
                problems.append(f"which raised {type(error).__name__}: {error}")
                continue
            shape = getattr(logits, "shape", ())
            if len(shape) == 3 and tuple(shape[:2]) == (2, 3):
                return ops.convert_to_numpy(ops.cast(logits, "float32"))
            problems.append(f"whose outputs for B = 2, T = 3 have the shape {shape}")
        name = self.model.name
        raise TypeError(f"{_EXPECTED}. Received: {name!r}, {problems[0]:.500}")

    def ignores_padding(self, length: int) -> bool:
        """Whether padding of a source to `length` tokens changes no logits."""
        padded = self._tried([3, 2, *[0] * (length - 2)])
        return np.allclose(self._unpadded, padded, rtol=1e-3, atol=1e-3)

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        source, target_in = inputs
        if not self._takes_pair:
            inputs = {"source": source, "target_in": target_in}
        return self.model(inputs, training=training)

    def encode(self, source: TensorLike) -> tuple[Nest]:
        """Returns the source (B, S), encoded if the model can, for `decode_states`."""
        return (self.model.encode(source) if self._encodes else source,)

    def decode_states(self, target_in: TensorLike, encoded: Nest) -> Tensor:
        """Returns the logits (B, T, V) of target_in (B, T)."""
        if self._encodes:
            return self.model.decode(target_in, encoded)
        return self.call((encoded, target_in), training=False)

    def logits(self, states: TensorLike) -> TensorLike:
        """Returns `states`, which are logits."""
        return states

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
        """Returns the state of `decode_step`: the tokens so far and the source."""
        ids = ops.zeros((ops.shape(source)[0], beam_size, length), "int32")
        (encoded,) = self.encode(source)
        return {"index": ops.zeros((), "int32"), "ids": ids, "encoded": encoded}

    def decoding_weights(self) -> Nest:
        """Returns `()`: the model uses its own weights."""
        return ()

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
        backend = keras.backend.backend()
        if backend == "jax" or (backend == "tensorflow" and is_in_xla_graph()):
            # Shapes are fixed; later positions have no effect.
            logits = ops.take(self.decode_states(rows, encoded), index, axis=1)
        else:
            logits = self.decode_states(rows[:, : index + 1], encoded)[:, -1]
        return logits, state | {"index": index + 1, "ids": prefix}

    def with_dtype(self, dtype: str) -> OwnModel:
        """Returns this model; raises `ValueError` for another `dtype`."""
        if self.compute_dtype != dtype:
            raise ValueError(
                "`dtype` must be the model's: only a `Transformer` is converted. "
                f"Received: dtype={dtype!r} for a model in {self.compute_dtype}"
            )
        return self

    def get_config(self) -> dict[str, Any]:
        return {"model": self.model}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> OwnModel:
        return cls(keras.saving.deserialize_keras_object(config["model"]))
