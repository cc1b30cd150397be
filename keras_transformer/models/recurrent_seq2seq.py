"""The recurrent translator: GRUs or LSTMs, and attention at every step."""

from __future__ import annotations

import math
from typing import Unpack

import keras
import numpy as np
from keras import ops

from keras_transformer.config import RecurrentConfig
from keras_transformer.kernels.decoding import of_parents
from keras_transformer.layers.additive_attention import AdditiveAttention
from keras_transformer.layers.basic import Dropout
from keras_transformer.layers.recurrent import (
    at_last_token,
    recurrent_cell,
    recurrent_layer,
    reverse_tokens,
)
from keras_transformer.masks import padding_mask
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.types import BasicOptions, Nest, Shape, Tensor, TensorLike


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
    without it the forward GRU's at the last.

    With several layers each reads the states of the one below, with dropout between
    them (`config.dropout_rate`). The decoder's last layer attends and is read out, its
    first one reads [e_t; c_t]. `config.cell` "lstm" puts LSTMs (Hochreiter and
    Schmidhuber, 1997) in place of the GRUs. W_0 h gives the first states of all layers
    side by side, an LSTM's cell after its state. Unlike in the paper, the readout takes
    the state that has read e_t, with tanh in place of maxout; the GRU is Keras', whose
    reset gate acts after the product; and the embeddings are scaled by sqrt(D), so that
    the output can share their matrix.

    It trains, decodes and exports as `Transformer` does. Padding (`config.pad_id`)
    stands at the end of a row and changes nothing, unless there is nothing else.

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
            self.make_encoder_layer(f"backward_layer_{i}")
            for i in layers
            if config.bidirectional
        ]
        cells = [
            self.make_decoder_cell(f"decoder_cell_{i}" if i else "decoder_cell")
            for i in range(config.num_decoder_layers)
        ]
        self.initial_state = self._make_dense("initial_state", sum(_sizes(cells)))
        self.cross_attention = self.make_attention("cross_attention")
        self.decoder_cell, *self.upper_decoder_cells = cells
        self.readout = self._make_dense("readout", config.d_model)
        self.embedding_dropout = self._make_dropout("embedding_dropout")
        self.readout_dropout = self._make_dropout("readout_dropout")
        if max(config.num_encoder_layers, config.num_decoder_layers) > 1:
            self.layer_dropout = self._make_dropout("layer_dropout")
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

    def make_encoder_layer(self, name: str) -> keras.layers.Layer:
        """Returns a layer (B, S, D) -> (B, S, U); override to use another one.

        Each direction has one. Both read forwards: the one that reads the source from
        its end gets the tokens the other way round, with padding still after them. It
        is called with `mask` (B, S) and `training`.
        """
        config = self.config
        return recurrent_layer(config.cell, config.units, self.dtype_policy, name)

    def make_attention(self, name: str) -> keras.layers.Layer:
        """Returns the attention to the source; override to use another one."""
        units = self.config.attention_units or self.config.units
        return AdditiveAttention(units, dtype=self.dtype_policy, name=name)

    def make_decoder_cell(self, name: str) -> keras.layers.Layer:
        """Returns the cell of a decoder layer; override to use another one.

        A Keras cell, whose output (R, U) is the first of its states.
        """
        config = self.config
        return recurrent_cell(config.cell, config.units, self.dtype_policy, name)

    @property
    def _cells(self):
        return [self.decoder_cell, *self.upper_decoder_cells]

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
        for cell in self.upper_decoder_cells:
            cell.build((None, units))
        self.readout.build((None, None, units + d_model + width))
        self.build_output_head()
        self.built = True

    def layers_of(self, part: str) -> list[keras.layers.Layer]:
        """Returns the layers of the "encoder" or "decoder", without the embedding."""
        return {
            "encoder": [*self.forward_layers, *self.backward_layers],
            "decoder": [
                self.initial_state, self.cross_attention, *self._cells, self.readout,
            ],
        }[part]  # fmt: skip

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
        is_token = source_mask[:, 0]
        options = {"mask": is_token, "training": training}
        states = self._embed(self.source_embedding, source, training)
        for i, forward in enumerate(self.forward_layers):
            if i:
                states = self.layer_dropout(states, training=training)
            read = [forward(states, **options)]
            for backward in self.backward_layers[i : i + 1]:
                from_end = backward(reverse_tokens(states, is_token), **options)
                read.append(reverse_tokens(from_end, is_token))
            states = ops.concatenate(read, axis=-1)
        return states, source_mask

    def decode_states(
        self, target_in: TensorLike, encoder_output: TensorLike,
        source_mask: TensorLike, training: bool | None = None,
    ) -> Tensor:  # fmt: skip
        """As `decode`, without the last product: readouts (B, T, D), for `logits`."""
        tokens = self._embed(self.target_embedding, target_in, training)
        states, contexts, _ = self._read(
            tokens, encoder_output, source_mask, self._dropped(tokens, training)
        )
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

    def _start(self, encoder_output, source_mask):
        """The decoder's states before the first token (B, 1, W)."""
        if self.config.bidirectional:
            whole = encoder_output[:, 0, self.config.units :]
        else:
            whole = at_last_token(encoder_output, source_mask[:, 0])
        return ops.expand_dims(self.initial_state(whole), 1)

    def _dropped(self, tokens, training):
        """Factors on what goes from layer to layer (B, T, W'); `None`: all are 1."""
        width = len(self.upper_decoder_cells) * self.config.units
        if not (width and training):
            return None
        ones = ops.ones((*ops.shape(tokens)[:2], width), self.compute_dtype)
        return self.layer_dropout(ones, training=True)

    def _output(self, hidden):
        """The last layer's states (..., U), of all states (..., W)."""
        last = len(_sizes(self._cells[-1:]))
        return _split(hidden, _sizes(self._cells))[-last]

    def _step(self, tokens, hidden, source, factors=None):
        """One step of N hypotheses.

        Args:
            tokens: Embeddings (B, N, D).
            hidden: States before, of all layers side by side (B, N, W).
            source: Projected keys (B, S, A), values (B, S, E), mask (B, 1, S).
            factors: What `_dropped` gives for the step (B, N, W'), or `None`.

        Returns:
            New states (B, N, W), contexts (B, N, E), attention weights (B, N, S).
        """
        keys, values, mask = source
        query = self._output(hidden)
        contexts, weights = self.cross_attention.attend(query, keys, values, mask)
        inputs = ops.concatenate([tokens, contexts], axis=-1)
        inputs, before = (
            ops.reshape(x, (-1, x.shape[-1])) for x in (inputs, hidden)
        )  # (R, ...)
        if factors is not None:
            factors = ops.reshape(factors, (-1, factors.shape[-1]))
        after = self._through_cells(inputs, before, factors)
        shape = (-1, *hidden.shape[1:])
        return ops.reshape(after, shape), contexts, weights

    def _through_cells(self, inputs, hidden, factors):
        """From inputs (R, D + E) and states (R, W) to the new states (R, W)."""
        states, after = _split(hidden, _sizes(self._cells)), []
        if factors is not None:
            units = [self.config.units] * len(self.upper_decoder_cells)
            factors = _split(factors, units)
        for i, cell in enumerate(self._cells):
            if i and factors is not None:
                inputs = inputs * factors[i - 1]
            count = len(_sizes([cell]))
            own, states = states[:count], states[count:]
            inputs, new = cell(inputs, own)
            after.extend(keras.tree.flatten(new))
        return after[0] if len(after) == 1 else ops.concatenate(after, axis=-1)

    def _read(self, tokens, encoder_output, source_mask, factors=None):
        """Steps through whole targets.

        Args:
            tokens: Embeddings (B, T, D).
            encoder_output: Float tensor (B, S, E).
            source_mask: Boolean tensor (B, 1, S).
            factors: As `_dropped` gives them.

        Returns:
            The last layer's states (B, T, U), contexts (B, T, E), attention weights
            (B, T, S).
        """
        keys = self.cross_attention.project_key(encoder_output)
        d_model, inputs = self.config.d_model, tokens
        if factors is not None:  # A TensorFlow graph steps through one tensor alone.
            inputs = ops.concatenate([tokens, factors], axis=-1)

        def step(before, token):
            token = token[:, None]
            after = self._step(
                token[..., :d_model], before[0], (keys, encoder_output, source_mask),
                None if factors is None else token[..., d_model:],
            )  # fmt: skip
            return after, after

        batch, length, width = ops.shape(encoder_output)
        nothing = (
            ops.zeros((batch, 1, size), self.compute_dtype) for size in (width, length)
        )
        start = (self._start(encoder_output, source_mask), *nothing)
        _, outputs = ops.scan(step, start, ops.swapaxes(inputs, 0, 1))
        hidden, contexts, weights = (ops.swapaxes(x[:, :, 0], 0, 1) for x in outputs)
        return self._output(hidden), contexts, weights

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
            The state, a dictionary: "hidden" (B, N, W), the states of all the decoder's
            layers side by side; "values", "keys" and "source_mask", the source's; with
            `coverage`, "coverage" (B, N, S).
        """
        encoder_output, source_mask = self.encode(source, training=False)
        start = self._start(encoder_output, source_mask)
        state = {
            "hidden": ops.tile(start, (1, beam_size, 1)),
            "keys": self.cross_attention.project_key(encoder_output),
            "values": encoder_output,
            "source_mask": source_mask,
        }
        if coverage:
            batch, source_length = ops.shape(source)
            state["coverage"] = ops.zeros((batch, beam_size, source_length))
        return state

    def resize_decoding(
        self, state: Nest, sentences: TensorLike, length: int | TensorLike
    ) -> Nest:
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
        readouts = self._read_out(self._output(hidden), tokens, contexts)
        state = dict(state, hidden=hidden)
        if "coverage" in state:
            before = of_parents(state["coverage"], parents)
            state["coverage"] = before + ops.cast(attention_weights, "float32")
        flat = ops.reshape(readouts, (-1, d_model))
        return self.output_head.multiply(flat, weights["output"]), state

    def coverage(self, state: Nest) -> tuple[Tensor, Tensor]:
        """Returns a state's attention summed up (B, N, S) and its mask (B, 1, S)."""
        return state["coverage"], state["source_mask"]


def _sizes(cells):
    """Widths of the states of cells, in the order in which they lie side by side."""
    return [size for cell in cells for size in keras.tree.flatten(cell.state_size)]


def _split(joined, sizes):
    """Takes apart what lies side by side in the last axis."""
    if len(sizes) == 1:
        return [joined]
    return ops.split(joined, np.cumsum(sizes[:-1]).tolist(), axis=-1)
