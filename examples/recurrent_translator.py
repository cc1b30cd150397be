"""A recurrent translator with additive attention: model, search, text, SavedModel.

The encoder-decoder of Bahdanau et al., 2015, https://arxiv.org/abs/1409.0473, appendix
A.2, as a functional Keras model. recurrent_translation.py trains it on sub-words,
recurrent_sentences.py on whole words.

B sentences, S and T tokens, D width of the embeddings, U of a cell, N hypotheses, W of
the states of all cells side by side, V vocabulary.
"""

from typing import Any, NamedTuple
import keras_transformer.quiet

import keras
import tensorflow as tf
from additive_attention import AdditiveAttention
from keras import ops

import keras_transformer as kt
from keras_transformer.search import Constraints

PAD, START, END, UNKNOWN = 0, 1, 2, 3
STRINGS = tf.TensorSpec([None], tf.string, name="text")


@keras.saving.register_keras_serializable(package="examples")
class AttentiveDecoder(keras.layers.Layer):
    """Stacked GRU or LSTM cells that attend to the states h_j of the source.

        c_t = sum_j a_tj h_j,  a_tj = softmax_j(w . tanh(W s_(t-1) + U h_j))
        s_t = GRU([e_t; c_t], s_(t-1)),  s_0 = tanh(W_0 h)
        r_t = tanh(W_r [s_t; e_t; c_t])

    The first cell reads the embedding e_t and the context c_t, the others the cell
    below. The last state attends and is read out. W_0 h is the first state of all
    cells. Unlike in the paper, the readout uses the state after e_t, and tanh in place
    of maxout.
    """

    def __init__(self, width, units, cell, layers, rate, attention_units, **kwargs):
        super().__init__(**kwargs)
        make = {"gru": keras.layers.GRUCell, "lstm": keras.layers.LSTMCell}[cell]
        self.units, self.cells = units, [make(units) for _ in range(layers)]
        self.per_cell = len(keras.tree.flatten(self.cells[0].state_size))
        count = layers * self.per_cell * units
        self.first_states = keras.layers.Dense(count, activation="tanh")
        self.attention = AdditiveAttention(attention_units)
        self.readout = keras.layers.Dense(width, activation="tanh")
        self.dropout = kt.layers.Dropout(rate)

    def build(self, tokens_shape, states_shape, source_mask_shape, whole_shape):
        width, size = tokens_shape[-1], states_shape[-1]
        self.first_states.build(whole_shape)
        self.attention.build((None, None, self.units), states_shape)
        for i, cell in enumerate(self.cells):
            cell.build((None, self.units if i else width + size))
        self.readout.build((None, None, self.units + width + size))

    def call(self, tokens, states, source_mask, whole, training=None):
        return self.read(tokens, states, source_mask, whole, training)[0]

    def compute_output_shape(self, tokens_shape, **_):
        return tokens_shape

    def read(self, tokens, states, source_mask, whole, training=False):
        """Reads whole targets; returns readouts (B, T, D) and attention (B, T, S)."""
        source = self.attention.key_dense(states), states, source_mask
        (batch, length, size), width = ops.shape(states), tokens.shape[-1]
        upper, inputs = self.units * (len(self.cells) - 1), tokens
        if upper:  # What passes from cell to cell is drawn here, outside the loop.
            kept = ops.ones((*ops.shape(tokens)[:2], upper))
            kept = self.dropout(kept, training=training)
            inputs = ops.concatenate([tokens, kept], axis=-1)

        def step(before, one):
            token, kept = one[:, None, :width], one[:, None, width:]
            after = self.step(token, before[-1], source, kept)
            return after, after

        empty = [ops.zeros((batch, 1, n)) for n in (self.units, size, length)]
        first = *empty, self.start(whole)
        _, outputs = ops.scan(step, first, ops.swapaxes(inputs, 0, 1))
        outputs, contexts, weights, _ = (
            ops.swapaxes(x[:, :, 0], 0, 1) for x in outputs
        )
        readouts = self.read_out(outputs, tokens, contexts)
        return self.dropout(readouts, training=training), weights

    def start(self, whole):
        """Returns the first states of all cells (B, 1, W)."""
        return ops.expand_dims(self.first_states(whole), 1)

    def step(self, tokens, hidden, source, kept=None):
        """One step, from tokens (B, N, D) and the states of all cells (B, N, W).

        `source` is its projected keys, values and mask. Returns the last cell's output
        (B, N, U), contexts (B, N, E), attention (B, N, S) and the new states.
        """
        (batch, count), own = ops.shape(hidden)[:2], self.per_cell
        states = ops.split(hidden, own * len(self.cells), axis=-1)
        context, weights = self.attention.attend(states[-own], *source)
        x, after = ops.concatenate([tokens, context], axis=-1), []
        for i, cell in enumerate(self.cells):
            if i and kept is not None:
                x = x * kept[..., (i - 1) * self.units : i * self.units]
            x = ops.reshape(x, (-1, x.shape[-1]))
            before = [ops.reshape(s, (-1, self.units)) for s in states[:own]]
            x, new = cell(x, before)
            states, after = states[own:], after + keras.tree.flatten(new)
            x = ops.reshape(x, (batch, count, self.units))
        after = ops.concatenate(after, axis=-1)
        after = ops.reshape(after, (batch, count, self.first_states.units))
        return x, context, weights, after

    def read_out(self, outputs, tokens, contexts):
        return self.readout(ops.concatenate([outputs, tokens, contexts], axis=-1))


def make_model(
    source_vocabulary_size,
    target_vocabulary_size,
    width,
    units,
    cell="gru",
    encoder_layers=1,
    decoder_layers=1,
    rate=0.1,
    attention_units=None,
    tied="three-way",
    bidirectional=True,
):
    """Returns a model from (source (B, S), target_in (B, T)) to logits (B, T, V)."""
    source = keras.Input((None,), dtype="int32", name="source")
    target_in = keras.Input((None,), dtype="int32", name="target_in")
    # Standard deviation 1 after the product with sqrt(D).
    normal = keras.initializers.RandomNormal(0.0, width**-0.5)
    sizes = target_vocabulary_size, width, tied != "none", normal
    target_embedding = source_embedding = keras.layers.ReversibleEmbedding(
        *sizes, name="embedding"
    )
    if tied != "three-way":
        sizes = source_vocabulary_size, width, normal.clone()
        source_embedding = keras.layers.Embedding(*sizes, name="source_embedding")
    states = source_embedding(source) * width**0.5
    mask = ops.not_equal(source, PAD)
    make = {"gru": keras.layers.GRU, "lstm": keras.layers.LSTM}[cell]
    for _ in range(encoder_layers):
        layer = make(units, return_sequences=True, use_cudnn=False)
        layer = keras.layers.Bidirectional(layer) if bidirectional else layer
        states = layer(kt.layers.Dropout(rate)(states), mask=mask)
    # The last state of the source.
    whole = states[:, 0, units:] if bidirectional else states[:, -1]
    tokens = kt.layers.Dropout(rate)(target_embedding(target_in) * width**0.5)
    decoder = AttentiveDecoder(
        width,
        units,
        cell,
        decoder_layers,
        rate,
        attention_units or units,
        name="decoder",
    )
    logits = target_embedding(decoder(tokens, states, mask, whole), reverse=True)
    return kt.ExactModel((source, target_in), logits)


class Alignment(NamedTuple):
    """The attention of each piece of a translation."""

    attention: Any  # (T, S)
    target_tokens: list[str]
    source_tokens: list[str]


class Translator:
    """A trained model with its search; with tokenizers it translates text."""

    def __init__(self, model, tokenizers=None, beam_size=4, extra=50, shortest=1):
        self.model, self.tokenizers, self.beam_size = model, tokenizers, beam_size
        self.extra, self.shortest = extra, shortest  # Tokens.
        self.embedding, self.decoder = map(model.get_layer, ("embedding", "decoder"))
        # For the decoder: states, mask and last state of the source.
        self.encode = keras.Model(model.inputs[0], self.decoder.input[1:])

    def embed(self, ids):
        return self.embedding(ids) * self.embedding.output_dim**0.5

    def search(self, source):
        """Returns the `DecodingResult` of sources (B, S)."""
        states, mask, whole = self.encode(source)
        looked_up = self.decoder.attention.key_dense(states), states, mask

        def step(ids, parents, hidden):
            tokens = self.embed(ops.reshape(ids, ops.shape(parents)))
            hidden = ops.take_along_axis(hidden, parents[..., None], axis=1)
            *found, _, hidden = self.decoder.step(tokens, hidden, looked_up)
            readouts = self.decoder.read_out(found[0], tokens, found[1])
            logits = self.embedding(readouts, reverse=True)
            return ops.reshape(logits, (-1, logits.shape[-1])), hidden

        lengths = ops.sum(ops.cast(mask, "int32"), axis=1) + self.extra
        return kt.beam_search(
            step,
            ops.repeat(self.decoder.start(whole), self.beam_size, axis=1),
            max_lengths=lengths,
            limit=ops.max(lengths),
            beam_size=self.beam_size,
            special_ids=kt.SpecialIds(PAD, START, END),
            length_penalty=0.6,
            constraints=Constraints(self.shortest, never=UNKNOWN),
        )

    def attention(self, source, target_out):
        """Returns the attention (B, T, S) that predicts each target token."""
        target_in = ops.pad(target_out[:, :-1], ((0, 0), (1, 0)), constant_values=START)
        return self.decoder.read(self.embed(target_in), *self.encode(source))[1]

    def ids_of(self, texts):
        rows = self.tokenizers.source.tokenize(texts)
        return tf.concat([rows, tf.fill([rows.nrows(), 1], END)], axis=1).to_tensor()

    @tf.function(input_signature=[STRINGS], autograph=False)
    def served(self, text):
        best = self.search(self.ids_of(text)).ids[:, 0]
        return {"translation": self.tokenizers.target.detokenize(best)}

    def __call__(self, texts):
        """Translates a list of texts."""
        found = self.served(tf.constant(texts))["translation"]
        return [text.decode("utf-8") for text in found.numpy()]

    def export(self, path):
        """Writes a SavedModel: `text` to `translation`, both strings (B,)."""
        archive = keras.export.ExportArchive()
        archive.track(self.model)
        archive.add_endpoint("serve", self.served, [STRINGS])
        archive.write_out(path, verbose=False)

    def align(self, texts):
        """Translates texts; returns the `Alignment` of each."""
        return [self._align(self.ids_of([text])) for text in texts]

    def _align(self, source):
        found = self.search(source)
        ids = found.ids[:, 0, : int(found.lengths[0, 0])]
        pieces = self.tokenizers.target.pieces(ids[0].numpy())
        attention = self.attention(source, ids)[0].numpy()
        return Alignment(attention, pieces, self.tokenizers.source.pieces(source[0]))


def train(text, valid, config, sizes):
    """Returns a `Translator` of pairs of text."""
    tokenizers = kt.learn_tokenizers(text, config.tokenizer)
    model = make_model(**tokenizers.vocabulary_sizes, **sizes)
    corpus = kt.Corpus(text, tokenizers, config.data)
    options = config.training
    updates = options.epochs * corpus.num_batches
    rate = kt.TransformerSchedule(sizes["width"], options.warmup_steps, scale=0.5)
    # Average the weights of the last 4 % of the updates.
    mean = {"use_ema": True, "ema_momentum": 1 - 25 / (25 + updates)}
    optimizer = kt.Adam(rate, beta_2=0.98, epsilon=1e-9, **mean)
    loss = kt.MaskedCrossentropy(options.label_smoothing)
    model.compile(optimizer, loss, jit_compile=False)
    scored = kt.Corpus(valid, tokenizers, config.data).dataset(shuffle=False)
    fit = {"epochs": options.epochs, "validation_data": scored, "verbose": 2}
    model.fit(corpus.dataset(), shuffle=False, **fit)
    return Translator(model, tokenizers)
