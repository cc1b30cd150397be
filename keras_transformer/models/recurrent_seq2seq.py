"""The recurrent translator: GRUs, and attention at every step."""

from __future__ import annotations

import math
from typing import Unpack

import keras
from keras import ops

from keras_transformer.config import RecurrentConfig
from keras_transformer.kernels.cache import of_parents
from keras_transformer.layers.additive_attention import AdditiveAttention
from keras_transformer.layers.dropout import Dropout
from keras_transformer.masks import padding_mask
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.types import BasicOptions, Nest, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class Orthogonal(keras.initializers.Orthogonal):
    """As Keras' own, whose QR decomposition lacks bfloat16, for every float type."""

    def __call__(self, shape, dtype=None):
        return ops.cast(super().__call__(shape, dtype="float32"), dtype or "float32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class RecurrentSeq2Seq(Seq2Seq):
    """The encoder-decoder of Bahdanau et al., 2015, on token ids.

    https://arxiv.org/abs/1409.0473, appendix A.2. A GRU reads the source from each end
    (or from its beginning alone); h_j are its states. Before the decoder's GRU reads
    the embedding e_t of a token, its state s_(t-1) attends to all h_j:

        c_t = sum_j a_tj h_j,  a_tj = softmax_j(w . tanh(W s_(t-1) + U h_j))
        s_t = GRU([e_t; c_t], s_(t-1)),  s_0 = tanh(W_0 h)
        logits_t = W_out tanh(W_r [s_t; e_t; c_t])

    where h has read the whole source: the backward GRU's state at the first token, or
    without it the forward GRU's at the last. Unlike in the paper, the readout takes
    the state that has read e_t, with tanh in place of maxout; the GRU is Keras', whose
    reset gate acts after the product; and the embeddings are scaled by sqrt(D), so that
    the output can share their matrix.

    It trains, decodes and exports as `Transformer` does. Padding (`config.pad_id`)
    stands at the end of a row and changes nothing.

    To use other layers, override `make_encoder_layer`, `make_attention` or
    `make_decoder_cell`.

    Args:
        config: A `RecurrentConfig`.
    Call arguments:
        inputs: A pair of integer tensors: source (B, S) and target_in (B, T).
        training: Whether dropout is applied.
        return_states: Whether to return the readouts instead of the logits.
    Returns:
        Logits, a float tensor (B, T, V): row t scores the token after target_in[t]; or
        the readouts, (B, T, D).
    Raises:
        TypeError: If `config` is not a `RecurrentConfig`.

    Example:
        >>> config = RecurrentConfig.preset(
        ...     "tiny", source_vocabulary_size=50, target_vocabulary_size=50
        ... )
        >>> model = RecurrentSeq2Seq(config)
        >>> source, target_in = np.array([[5, 6, 2]]), np.array([[1, 7]])
        >>> model((source, target_in)).shape  # (1, 2, 50)
    """

    config_class = RecurrentConfig
    config: RecurrentConfig

    def __init__(self, config: RecurrentConfig, **kwargs: Unpack[BasicOptions]) -> None:
        super().__init__(config, **kwargs)
        layers = range(config.num_encoder_layers)
        self.forward_layers = [
            self.make_encoder_layer(f"forward_layer_{i}") for i in layers
        ]
        self.backward_layers = [
            self.make_encoder_layer(f"backward_layer_{i}", go_backwards=True)
            for i in layers
            if config.bidirectional
        ]
        self.initial_state = self._make_dense("initial_state", config.units)
        self.cross_attention = self.make_attention("cross_attention")
        self.decoder_cell = self.make_decoder_cell("decoder_cell")
        self.readout = self._make_dense("readout", config.d_model)
        self.embedding_dropout = self._make_dropout("embedding_dropout")
        self.readout_dropout = self._make_dropout("readout_dropout")
        # Every size is known, so the weights exist from the start.
        self.build()

    def make_embedding(self, name: str, vocabulary_size: int) -> keras.layers.Layer:
        """Returns an embedding called `name`; override to use another one."""
        # Standard deviation 1 after the product with sqrt(D).
        initializer = keras.initializers.RandomNormal(stddev=self.config.d_model**-0.5)
        return keras.layers.Embedding(
            vocabulary_size,
            self.config.d_model,
            embeddings_initializer=initializer,
            dtype=self.dtype_policy,
            name=name,
        )

    def make_encoder_layer(
        self, name: str, go_backwards: bool = False
    ) -> keras.layers.Layer:
        """Returns a layer that reads a sequence; override to use another one.

        Its output (B, S, U) is in the order in which it read, as with Keras' own.
        """
        return keras.layers.GRU(
            self.config.units,
            return_sequences=True,
            go_backwards=go_backwards,
            recurrent_initializer=Orthogonal(),
            # XLA lacks cuDNN's operation, and a CPU cannot run an export with it.
            use_cudnn=False,
            dtype=self.dtype_policy,
            name=name,
        )

    def make_attention(self, name: str) -> keras.layers.Layer:
        """Returns the attention to the source; override to use another one."""
        units = self.config.attention_units or self.config.units
        return AdditiveAttention(units, dtype=self.dtype_policy, name=name)

    def make_decoder_cell(self, name: str) -> keras.layers.Layer:
        """Returns the decoder's cell; override to use another with one state."""
        return keras.layers.GRUCell(
            self.config.units,
            recurrent_initializer=Orthogonal(),
            dtype=self.dtype_policy,
            name=name,
        )

    def _make_dense(self, name, units):
        return keras.layers.Dense(
            units, activation="tanh", dtype=self.dtype_policy, name=name
        )

    def _make_dropout(self, name):
        return Dropout(self.config.dropout_rate, dtype=self.dtype_policy, name=name)

    def build(self, input_shape: tuple[Shape, Shape] | None = None) -> None:
        d_model, units = self.config.d_model, self.config.units
        width = units * (2 if self.config.bidirectional else 1)
        self.build_embeddings()
        for layers in (self.forward_layers, self.backward_layers):
            for i, layer in enumerate(layers):
                layer.build((None, None, width if i else d_model))
        self.initial_state.build((None, units))
        self.cross_attention.build((None, None, units), (None, None, width))
        self.decoder_cell.build((None, d_model + width))
        self.readout.build((None, None, units + d_model + width))
        self.build_output_head()
        self.built = True

    def encode(
        self, source: TensorLike, training: bool | None = None
    ) -> tuple[Tensor, Tensor]:
        """Encodes source sentences.

        Args:
            source: Integer tensor (B, S).
            training: Whether dropout is applied.

        Returns:
            The states h (B, S, E), E = 2 U with both directions, and their boolean mask
            (B, 1, S), True where a position is not padding.
        """
        source_mask = padding_mask(source, self.config.pad_id)
        states = self._embed(self.source_embedding, source, training)
        for i, forward in enumerate(self.forward_layers):
            # Keras' layers keep their state over padding.
            options = {"mask": source_mask[:, 0], "training": training}
            read = [forward(states, **options)]
            for backward in self.backward_layers[i : i + 1]:
                read.append(ops.flip(backward(states, **options), axis=1))
            states = ops.concatenate(read, axis=-1)
        return states, source_mask

    def decode_states(
        self, target_in: TensorLike, encoder_output: TensorLike,
        source_mask: TensorLike, training: bool | None = None,
    ) -> Tensor:  # fmt: skip
        """As `decode`, without the last product: readouts (B, T, D), for `logits`."""
        tokens = self._embed(self.target_embedding, target_in, training)
        states, contexts, _ = self._read(tokens, encoder_output, source_mask)
        return self._read_out(states, tokens, contexts, training)

    def attention(
        self, target_in: TensorLike, encoder_output: TensorLike,
        source_mask: TensorLike, layer: int = -1,
    ) -> Tensor:  # fmt: skip
        """Returns how the decoder attends to the source.

        Args:
            target_in: Integer tensor (B, T).
            encoder_output: Float tensor (B, S, E), from `encode`.
            source_mask: Boolean tensor (B, 1, S), from `encode`.
            layer: 0 or -1: there is only one.

        Returns:
            Attention weights (B, 1, T, S): row t is the attention with which the token
            after target_in[t] is chosen.
        """
        tokens = self._embed(self.target_embedding, target_in)
        *_, attention_weights = self._read(tokens, encoder_output, source_mask)
        return ops.expand_dims(attention_weights, 1)

    def _embed(self, embedding, ids, training=False):
        tokens = embedding(ids) * math.sqrt(self.config.d_model)
        return self.embedding_dropout(tokens, training=training)

    def _start(self, encoder_output):
        """The decoder's states before the first token (B, 1, U)."""
        if self.config.bidirectional:
            whole = encoder_output[:, 0, self.config.units :]
        else:
            whole = encoder_output[:, -1]
        return ops.expand_dims(self.initial_state(whole), 1)

    def _step(self, tokens, hidden, source):
        """One step of N hypotheses.

        Args:
            tokens: Embeddings (B, N, D).
            hidden: States before (B, N, U).
            source: Projected keys (B, S, A), values (B, S, E), mask (B, 1, S).

        Returns:
            New states (B, N, U), contexts (B, N, E), attention weights (B, N, S).
        """
        keys, values, mask = source
        contexts, weights = self.cross_attention.attend(hidden, keys, values, mask)
        inputs = ops.concatenate([tokens, contexts], axis=-1)
        inputs, before = (
            ops.reshape(x, (-1, x.shape[-1])) for x in (inputs, hidden)
        )  # (R, ...)
        after, _ = self.decoder_cell(inputs, before)
        shape = (-1, tokens.shape[1], self.config.units)
        return ops.reshape(after, shape), contexts, weights

    def _read(self, tokens, encoder_output, source_mask):
        """Steps through whole targets.

        Args:
            tokens: Embeddings (B, T, D).
            encoder_output: Float tensor (B, S, E).
            source_mask: Boolean tensor (B, 1, S).

        Returns:
            States (B, T, U), contexts (B, T, E), attention weights (B, T, S).
        """
        keys = self.cross_attention.project_key(encoder_output)

        def step(before, token):
            after = self._step(
                token[:, None], before[0], (keys, encoder_output, source_mask)
            )
            return after, after

        batch, length, width = ops.shape(encoder_output)
        nothing = (
            ops.zeros((batch, 1, size), self.compute_dtype) for size in (width, length)
        )
        start = (self._start(encoder_output), *nothing)
        _, outputs = ops.scan(step, start, ops.swapaxes(tokens, 0, 1))
        return tuple(ops.swapaxes(x[:, :, 0], 0, 1) for x in outputs)

    def _read_out(self, states, tokens, contexts, training=False):
        joined = ops.concatenate([states, tokens, contexts], axis=-1)
        return self.readout_dropout(self.readout(joined), training=training)

    def decoding_weights(self) -> Nest:
        """Prepares the output matrix for `decode_step`; an export keeps it."""
        return {"output": self.output_head.decoding_weights(self.compute_dtype)}

    def start_decoding(
        self, source: TensorLike, length: int, beam_size: int = 1,
        coverage: bool = False,
    ) -> Nest:  # fmt: skip
        """Encodes the source and makes the state of `decode_step`.

        Args:
            source: Integer tensor (B, S).
            length: Most target positions that will be decoded; a recurrent state has
                room for any number.
            beam_size: Hypotheses of a sentence, N.
            coverage: Whether to sum up the attention to the source, for
                `coverage_penalty`.

        Returns:
            The state, a dictionary: "hidden" (B, N, U), the decoder's states; "values",
            "keys" and "source_mask", the source's; with `coverage`, "coverage"
            (B, N, S).
        """
        encoder_output, source_mask = self.encode(source, training=False)
        state = {
            "hidden": ops.tile(self._start(encoder_output), (1, beam_size, 1)),
            "keys": self.cross_attention.project_key(encoder_output),
            "values": encoder_output,
            "source_mask": source_mask,
        }
        if coverage:
            batch, source_length = ops.shape(source)
            state["coverage"] = ops.zeros((batch, beam_size, source_length))
        return state

    def resize_decoding(self, state: Nest, sentences: int, length: int) -> Nest:
        """Returns the state of some sentences.

        Args:
            state: As `start_decoding` or `decode_step` returned it.
            sentences: Integer tensor (B',), places of the sentences to keep.
            length: As in `start_decoding`.

        Returns:
            The state of B' sentences.
        """
        return {name: ops.take(x, sentences, axis=0) for name, x in state.items()}

    def decode_step(
        self, ids: TensorLike, parents: TensorLike | None, state: Nest,
        weights: Nest = None,
    ) -> tuple[Tensor, Nest]:  # fmt: skip
        """Scores the next token of each hypothesis; equals `decode` at that position.

        Args:
            ids: Integer tensor (R,), the last token of each of the R = B * N rows.
            parents: Integer tensor (B, N), the hypothesis of the step before that each
                row continues.
            state: As `start_decoding` or the step before returned it.
            weights: `decoding_weights()`, computed here if not given.

        Returns:
            Logits (R, V) and the new state.
        """
        weights = self.decoding_weights() if weights is None else weights
        d_model = self.config.d_model
        tokens = self._embed(self.target_embedding, ids)
        tokens = ops.reshape(tokens, (-1, parents.shape[1], d_model))
        hidden, contexts, attention_weights = self._step(
            tokens,
            of_parents(state["hidden"], parents),
            (state["keys"], state["values"], state["source_mask"]),
        )
        readouts = self._read_out(hidden, tokens, contexts)
        state = dict(state, hidden=hidden)
        if "coverage" in state:
            before = of_parents(state["coverage"], parents)
            state["coverage"] = before + ops.cast(attention_weights, "float32")
        flat = ops.reshape(readouts, (-1, d_model))
        return self.output_head.multiply(flat, weights["output"]), state

    def coverage(self, state: Nest) -> Tensor:
        """Returns a state's attention summed up (B, N, S) and its mask (B, 1, S)."""
        return state["coverage"], state["source_mask"]
