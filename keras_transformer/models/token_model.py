"""Bases of the models: options, export, logits, and decoding position by position.

The state of decoding is a dictionary. "index" is the position (). "caches" holds each
layer's keys and values of the past, or a recurrent state. "ancestors" (B, N, L) holds,
for each hypothesis and position, which of the N cache entries of that position belongs
to it: so hypotheses change places and caches do not move. A `Transformer` adds the
"sources" of its layers and "source_mask" (B, 1, 1, S).

B sentences, N hypotheses of each, L positions, R = B * N rows.
"""

from __future__ import annotations

from typing import Any, Self

import keras
from keras import ops

from keras_transformer.models.exact_training import ExactTraining
from keras_transformer.nn.kernels.caches import (
    cache_place,
    pick,
    resize_cache,
)
from keras_transformer.nn.kernels.keras_private import (
    layers_within,
    overrides,
    with_mask,
)
from keras_transformer.nn.layers.adaptation import KeepsQuantisation, policy_of
from keras_transformer.nn.layers.attention import prepare_mask
from keras_transformer.nn.layers.basic import (
    Joined,
    LayerNormalization,
    affine,
    is_plain,
    joined,
    project,
)
from keras_transformer.nn.layers.embedding import PositionalEmbedding
from keras_transformer.nn.layers.transformer_layer import CausalLayer
from keras_transformer.types import Nest, Tensor, TensorLike


class Configured(KeepsQuantisation):
    """Mixin, before a Keras layer or model, for options in one `config_class`.

    Raises:
        TypeError: If `config` is not a `config_class`.
    """

    config_class: type

    def __init__(self, config: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(config, self.config_class):
            raise TypeError(
                f"`config` must be of the class `{self.config_class.__name__}`. "
                f"Received: {config!r}"
            )
        self.config = config

    def _make_norm(self, name):
        return LayerNormalization(
            epsilon=self.config.layer_norm_epsilon, dtype=self.dtype_policy, name=name
        )

    def get_config(self) -> dict[str, Any]:
        config = {"config": self.config.to_dict()}
        return super().get_config() | config

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        options = cls.config_class.from_dict(config["config"])
        return cls(**(config | {"config": options}))


class ExportableModel(keras.Model):
    """Base of models that can be exported before their first call."""

    def input_signature(self) -> list[Any]:
        """Returns the `keras.InputSpec` of each argument of `call`."""
        raise NotImplementedError

    def export(
        self, filepath: str, *args: Any, input_signature: Any = None, **kwargs: Any
    ) -> None:
        """As `keras.Model.export`, by default with `self.input_signature()`."""
        signature = input_signature or self.input_signature()
        super().export(filepath, *args, input_signature=signature, **kwargs)


def rows_of(embedding):
    """Returns the table (V, D) if logits are states times it, else `None`."""
    table = embedding.token_embedding
    is_matrix = (
        type(table) is keras.layers.ReversibleEmbedding
        and table.tie_weights
        and table.logit_soft_cap is None
        and table.quantization_mode is None
    )
    return ops.convert_to_tensor(table.embeddings) if is_matrix else None


class TokenModel(Configured, ExactTraining, ExportableModel):
    """Base of models that return logits over a vocabulary.

    A subclass calls `make_output` and keeps its causal layers in `decoder_layers`.
    """

    @property
    def target_pad_id(self) -> int:
        """Id that pads the targets: `config.pad_id`."""
        return self.config.pad_id

    def make_embedding(self, name: str, vocabulary_size: int) -> keras.layers.Layer:
        """Returns the embedding `name`; override to replace it.

        With `normalize_embeddings`, norm and dropout follow it.
        """
        config = self.config
        return PositionalEmbedding(
            vocabulary_size,
            config.d_model,
            positions="none" if config.relative_positions else config.positions,
            max_length=config.max_positions if config.positions == "learned" else None,
            dropout_rate=0.0 if config.normalize_embeddings else config.dropout_rate,
            dtype=self.dtype_policy,
            name=name,
        )

    def make_output(
        self, embedding: keras.layers.Layer | None, vocabulary_size: int, use_bias: bool
    ) -> None:
        """Makes the output matrix, or shares that of `embedding`, and the bias."""
        self.tied_embedding = embedding
        self.output_dense = None
        if embedding is None:
            self.output_dense = keras.layers.Dense(
                vocabulary_size,
                use_bias=False,
                dtype=self.dtype_policy,
                name="output_dense",
            )
            self.output_dense.build((None, None, self.config.d_model))
        self.output_bias = None
        if use_bias:
            self.output_bias = self.add_weight(
                (vocabulary_size,), initializer="zeros", name="output_bias"
            )

    def logits(self, states: TensorLike) -> Tensor:
        """Returns the logits (B, T, V) of states (B, T, D)."""
        if self.tied_embedding is None:
            (logits,) = project([self.output_dense], states)
        else:
            logits = self.tied_embedding.token_embedding(states, reverse=True)
        if self.output_bias is None:
            return logits
        return logits + ops.cast(self.output_bias, logits.dtype)

    def masked_logits(self, states: TensorLike, ids: TensorLike) -> Tensor:
        """Returns logits of which Keras' losses and metrics leave padding out."""
        return with_mask(self.logits(states), ops.not_equal(ids, self.config.pad_id))

    def output_rows(self) -> Tensor | None:
        """Returns the output matrix (V, D); `None` if it is quantised or does more."""
        if self.tied_embedding is not None:
            return rows_of(self.tied_embedding)
        dense = self.output_dense
        is_matrix = is_plain(dense) and dense.bias is None
        return ops.transpose(dense.kernel) if is_matrix else None

    def _rows_of_step(self):
        """Returns `output_rows()`, or `None` if a step must call `logits`."""
        is_own = overrides(self, TokenModel, ("logits", "output_rows"))
        return None if is_own else self.output_rows()

    def narrowed(self, weights: Nest, ids: TensorLike) -> Nest:
        """Returns `decoding_weights` with which a step scores some tokens (K,) only."""
        rows = self._rows_of_step()
        if rows is None:
            raise ValueError(
                "A shortlist needs an output matrix in floats and the `logits` of a "
                f"`Transformer`. Received: the model {self.name!r}"
            )
        rows = ops.cast(ops.take(rows, ids, axis=0), self.compute_dtype)
        # A batch of one matrix: LiteRT is 1.2 times faster.
        kernel = ops.transpose(rows)[None]
        return weights | {"output": Joined(kernel, self._bias_of_step(ids))}

    def _bias_of_step(self, ids=None):
        """Returns the output bias, of all tokens or some, for a `Joined`."""
        bias = self.output_bias
        if bias is None:
            return ()
        bias = bias if ids is None else ops.take(bias, ids)
        return ops.cast(bias, self.compute_dtype)

    def decoding_weights(self) -> Nest:
        """Returns the matrices of `decode_step`, prepared once per search."""
        rows = self._rows_of_step()
        is_tied = self.tied_embedding is not None
        if rows is None or (is_tied and keras.backend.backend() == "jax"):
            # `decode_step` calls `logits`. XLA multiplies by a transposed matrix; a
            # copy of 32,000 rows takes as long as eight steps of `base`.
            output = ()
        elif is_tied:
            kernel = ops.transpose(ops.cast(rows, self.compute_dtype))
            output = Joined(kernel, self._bias_of_step())
        else:
            output = joined([self.output_dense])._replace(bias=self._bias_of_step())
        for layer in self.decoder_layers:
            if not isinstance(layer, CausalLayer):
                raise TypeError(
                    "A model decodes by the `step` of its layers: each must be a "
                    "`CausalLayer`, such as a `DecoderLayer`, or a subclass. Received: "
                    f"{layer.name!r} of the class {type(layer).__name__}"
                )
        layers = tuple(layer.step_weights() for layer in self.decoder_layers)
        return {"output": output, "layers": layers}

    def resize_decoding(
        self, state: Nest, sentences: TensorLike, length: int | TensorLike
    ) -> Nest:
        """Returns the state of some sentences (B',), with room for `length` positions.

        A search drops finished sentences and makes room as outputs grow.
        """
        rest = dict(state)  # Nested tensors (B, ...), but for these two.
        index = rest.pop("index")
        caches = rest.pop("caches")
        rest = keras.tree.map_structure(
            lambda leaf: ops.take(leaf, sentences, axis=0), rest
        )
        _, hypotheses, room = ops.shape(rest["ancestors"])
        more = length - room
        ancestors = ops.pad(rest["ancestors"], ((0, 0), (0, 0), (0, more)))
        caches = keras.tree.map_structure(
            lambda cache: resize_cache(cache, sentences, more * hypotheses), caches
        )
        return rest | {"index": index, "ancestors": ancestors, "caches": caches}

    def _new_state(self, sentences, hypotheses, length):
        """Returns the state before the first of at most `length` positions."""
        if isinstance(length, int):
            self.config.check_positions(length, "`length`")
        return {
            "index": ops.zeros((), dtype="int32"),
            "ancestors": ops.zeros((sentences, hypotheses, length), dtype="int32"),
            "caches": tuple(
                layer.initial_cache(sentences, hypotheses, length)
                for layer in self.decoder_layers
            ),
        }

    def _step_through(self, norm, x, parents, state, weights):
        """Returns logits (R, V) and the new state, from one position (R, 1, D)."""
        # parents (B, N): the hypothesis of the last step that each one continues.
        weights = self.decoding_weights() if weights is None else weights
        layers = self.decoder_layers
        index = state["index"]
        hypotheses = parents.shape[1]
        width = x.shape[-1]
        x = ops.reshape(x, (-1, hypotheses, width))  # (B, N, D)
        ancestors, mask = _past(state, parents)
        sources = state.get("sources", (None,) * len(layers))
        source_mask = state.get("source_mask")
        dtype = layers[0].compute_dtype
        if source_mask is not None:
            source_mask = prepare_mask(source_mask, dtype)
        masks = prepare_mask(mask, dtype), source_mask
        caches = []
        places = {}
        for layer, cache, source, layer_weights in zip(
            layers, state["caches"], sources, weights["layers"], strict=True
        ):
            # Computed once for all caches of a size.
            size = (len(cache[0].shape), *cache[0].shape[1:3])
            if size not in places:
                who = None if hypotheses == 1 else parents
                places[size] = cache_place(cache[0], hypotheses, index, who)
            x, cache = layer.step(x, cache, places[size], masks, layer_weights, source)
            caches.append(cache)
        new = {"index": index + 1, "ancestors": ancestors, "caches": tuple(caches)}
        x = ops.reshape(x if norm is None else norm(x), (-1, width))
        output = weights["output"]
        if output:
            return affine(x, output), state | new
        return self.logits(x[:, None])[:, 0], state | new

    def with_dtype(self, dtype: str) -> Self:
        """Returns this model if its type is `dtype`, else a copy of that type.

        Raises `ValueError` for a quantised model of another type.
        """
        if {self.compute_dtype, self.variable_dtype} == {dtype}:
            return self
        if any(layer.quantization_mode for layer in layers_within(self)):
            raise ValueError(
                "A quantised model keeps its float type: call `with_dtype` before "
                f"`quantize`. Received: dtype={dtype!r} for a model of the type "
                f"{policy_of(self).name!r}"
            )
        policy = keras.saving.serialize_keras_object(keras.DTypePolicy(dtype))
        copy = type(self).from_config(self.get_config() | {"dtype": policy})
        copy.take_weights_of(self)
        return copy

    def take_weights_of(self, other: TokenModel) -> None:
        """Copies and casts the weights of a model of the same class and size."""
        parts = ((model, *layers_within(model)) for model in (self, other))
        for ours, theirs in zip(*parts, strict=True):
            store = {}
            theirs.save_own_variables(store)  # adapters (LoRA) merged
            for key, value in store.items():
                # JAX frees the array of a weight that is trained.
                store[key] = ops.copy(ops.cast(value, self.variable_dtype))
            ours.load_own_variables(store)


def _past(state, parents):
    """Returns the new ancestors and a mask (B, 1, N, L * N) of each one's past."""
    index = state["index"]
    hypotheses = parents.shape[1]
    batch, _, length = ops.shape(state["ancestors"])
    positions = ops.arange(length, dtype="int32")
    if hypotheses == 1:
        mask = ops.reshape(positions <= index, (1, 1, 1, length))
        return state["ancestors"], mask
    slots = ops.arange(hypotheses, dtype="int32")
    before = pick(state["ancestors"], parents)
    ancestors = ops.where(positions == index, slots[:, None], before)
    is_own = ops.equal(ops.expand_dims(ancestors, -1), slots)  # (B, N, L, N)
    mask = ops.logical_and(is_own, (positions <= index)[:, None])
    return ancestors, ops.reshape(mask, (batch, 1, hypotheses, length * hypotheses))
