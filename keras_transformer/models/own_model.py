"""A Keras model of one's own as a search needs it: the whole prefix at every step."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.decoding import SpecialIds
from keras_transformer.kernels.decoding import pick
from keras_transformer.kernels.keras_private import is_in_xla_graph, layers_within
from keras_transformer.layers.attention import recorded_attention
from keras_transformer.layers.embedding import PositionalEncoding
from keras_transformer.layers.transformer_layer import DecoderLayer
from keras_transformer.types import Nest, Tensor, TensorLike

# Two targets that differ at the end only, of ids that every vocabulary has.
_TARGETS = [[1, 3, 3], [1, 3, 2]]


def decodable(model: Any) -> Any:
    """Returns a model that decodes step by step: `model`, or an `OwnModel` of it."""
    return model if hasattr(model, "decode_step") else OwnModel(model)


class OwnModel:
    """What `Generator` and `Translator` make of a Keras model without a cached step.

    The model maps `(source, target_in)`, or `{"source": ..., "target_in": ...}`, of
    integers (B, S) and (B, T), to logits (B, T, V); no target position sees a later
    one. Ids 0 to 3 are padding, start, end and unknown. At each step of a search the
    model is called with all positions so far, so its time grows with the square of the
    length. A model with methods `encode(source)`, which returns any tensors (B, ...),
    and `decode(target_in, encoded)`, which returns the logits, encodes a source once.

    Args:
        model: The model, functional or a subclass.
    Raises:
        TypeError: If it is no such model.
        ValueError: If a target position sees a later one.
    """

    def __init__(self, model: keras.Model) -> None:
        self.model, self._takes_pair = model, True
        self._encodes = hasattr(model, "encode")
        logits, padded = self._probed([3, 2]), self._probed([3, 2, 0])
        if not np.allclose(logits[0, :2], logits[1, :2], rtol=1e-3, atol=1e-3):
            raise ValueError(
                "`model` must score a target position without the later ones: give its "
                "self-attention `use_causal_mask=True`. Received: "
                f"{model.name!r}, whose logits change with a later token"
            )
        if not np.allclose(logits, padded, rtol=1e-3, atol=1e-3):
            warnings.warn(
                f"The logits of {model.name!r} change with padding of the source, so a "
                "translation depends on the texts beside it: let its attention mask "
                "the id 0.",
                stacklevel=2,
            )
        layers = layers_within(model)
        self.decoder_layers = [x for x in layers if isinstance(x, DecoderLayer)]
        self.config = OwnSizes(logits.shape[-1], layers, len(self.decoder_layers))
        if not self.decoder_layers:
            self.attention = None

    def _probed(self, source):
        """Returns the logits of two short targets; finds the form of the inputs."""
        expected = (
            "`model` must be a Keras model that maps (source, target_in), integers of "
            "shapes (B, S) and (B, T), to logits (B, T, V). Received: "
        )
        if not isinstance(self.model, keras.Model):
            raise TypeError(f"{expected}a {type(self.model).__name__}")
        ids = [source, source], _TARGETS
        source, targets = (ops.convert_to_tensor(x, "int32") for x in ids)
        problems = []
        for self._takes_pair in (True, False):
            try:
                with warnings.catch_warnings():  # Keras takes a dictionary's for it.
                    warnings.filterwarnings("error", "The structure of `inputs`")
                    logits = self.decode_states(targets, *self.encode(source))
            except Exception as error:  # Models fail in many ways.
                problems.append(f"which raised {type(error).__name__}: {error}")
                continue
            shape = getattr(logits, "shape", ())
            if len(shape) == 3 and tuple(shape[:2]) == (2, 3):
                return ops.convert_to_numpy(ops.cast(logits, "float32"))
            problems.append(f"whose outputs for B = 2, T = 3 have the shape {shape}")
        raise TypeError(f"{expected}{self.model.name!r}, {problems[0]:.500}")

    @property
    def weights(self) -> list[keras.Variable]:
        """The model's weights."""
        return self.model.weights

    def count_params(self) -> int:
        """Returns the number of the model's weights."""
        return self.model.count_params()

    def save(self, path: str) -> None:
        """Saves the model."""
        self.model.save(path)

    def encode(self, source: TensorLike) -> tuple[Nest]:
        """Returns what `decode_states` takes of the source (B, S)."""
        return (self.model.encode(source) if self._encodes else source,)

    def decode_states(self, target_in: TensorLike, encoded: Nest) -> Tensor:
        """Returns the logits (B, T, V) of target_in (B, T)."""
        if self._encodes:
            return self.model.decode(target_in, encoded)
        return self.model(self.inputs(encoded, target_in), training=False)

    def inputs(self, source: TensorLike, target_in: TensorLike) -> Nest:
        """Returns ids in the form that the model takes."""
        if self._takes_pair:
            return source, target_in
        return {"source": source, "target_in": target_in}

    def logits(self, states: TensorLike) -> TensorLike:
        """Returns `states`, which are logits."""
        return states

    def attention(
        self, target_in: TensorLike, encoded: Nest, layer: int = -1
    ) -> Tensor:
        """As `Transformer.attention`; `None` if the model has no `DecoderLayer`."""
        with recorded_attention() as record:
            self.decode_states(target_in, encoded)
        return record[self.decoder_layers[layer].cross_attention][0]

    def start_decoding(
        self, source: TensorLike, length: int | TensorLike, beam_size: int = 1
    ) -> Nest:
        """Returns the state of `decode_step` before the first token.

        "ids" (B, N, L) has the tokens so far, "encoded" what `encode` returned.
        """
        sizes = ops.shape(source)[0], beam_size, length
        ids = ops.full(sizes, self.config.pad_id, dtype="int32")
        (encoded,) = self.encode(source)
        return {"index": ops.zeros((), "int32"), "ids": ids, "encoded": encoded}

    def decoding_weights(self) -> Nest:
        """Returns nothing: the model uses its own weights."""
        return ()

    def resize_decoding(
        self, state: Nest, sentences: TensorLike, length: int | TensorLike
    ) -> Nest:
        """As `Transformer.resize_decoding`."""
        parts = {name: state[name] for name in ("ids", "encoded")}
        kept = keras.tree.map_structure(lambda x: ops.take(x, sentences, axis=0), parts)
        more = length - ops.shape(kept["ids"])[2]
        pad_id = self.config.pad_id
        ids = ops.pad(kept["ids"], ((0, 0), (0, 0), (0, more)), constant_values=pad_id)
        return state | kept | {"ids": ids}

    def decode_step(
        self, ids: TensorLike, parents: TensorLike, state: Nest, weights: Nest = None
    ) -> tuple[Tensor, Nest]:
        """As `Transformer.decode_step`; all positions so far are computed again."""
        index, hypotheses = state["index"], parents.shape[1]
        before = pick(state["ids"], parents)  # (B, N, L)
        length = ops.shape(before)[2]
        is_new = ops.equal(ops.arange(length, dtype="int32"), index)
        prefix = ops.where(is_new, ops.reshape(ids, (-1, hypotheses, 1)), before)
        rows = ops.reshape(prefix, (-1, length))  # (R, L)
        encoded = keras.tree.map_structure(
            lambda x: ops.repeat(x, hypotheses, axis=0), state["encoded"]
        )
        if has_fixed_shapes():  # What comes after the position is not seen by it.
            logits = ops.take(self.decode_states(rows, encoded), index, axis=1)
        else:
            logits = self.decode_states(rows[:, : index + 1], encoded)[:, -1]
        return logits, state | {"index": index + 1, "ids": prefix}

    def with_dtype(self, dtype: str) -> OwnModel:
        """Returns this model, if it computes in `dtype`; else it is a `ValueError`."""
        if self.model.compute_dtype != dtype:
            raise ValueError(
                "A model of one's own keeps its float type. Received: "
                f"dtype={dtype!r} for a model of {self.model.compute_dtype}"
            )
        return self


class OwnSizes:
    """What a search asks of the `config` of a model."""

    def __init__(self, vocabulary_size, layers, num_decoder_layers):
        self.source_vocabulary_size = None  # Only the model knows.
        self.target_vocabulary_size = vocabulary_size
        self.num_decoder_layers = num_decoder_layers
        self.pad_id, self.start_id, self.end_id = SpecialIds()
        self.unknown_id = 3
        encodings = [x for x in layers if isinstance(x, PositionalEncoding)]
        self._tables = [x.max_length for x in encodings if x.positions == "learned"]

    def check_positions(self, longest: int, what: str):
        """As `TransformerConfig.check_positions`, of the learned positions known."""
        least = min(self._tables, default=longest)
        if longest > least:
            raise ValueError(
                f"Learned positions must cover {what}. Received: {longest} tokens, "
                f"max_length={least}"
            )

    def to_dict(self):
        """Returns what a model card says of it."""
        return {"target_vocabulary_size": self.target_vocabulary_size}


def has_fixed_shapes():
    """Whether a loop must keep the shapes of what it computes."""
    backend = keras.backend.backend()
    return backend == "jax" or backend == "tensorflow" and is_in_xla_graph()
