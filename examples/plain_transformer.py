"""The Transformer in one file of plain `keras.ops`, to be read from top to bottom.

Figure 1 and sections 3 to 5 of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762:
attention, masks, positions, layers, loss, learning rate, greedy decoding. It learns to
write dates, such as "3 march 2017", as "2017-03-03", one character at a time. The
weights have the names of those of `keras_transformer.Transformer`, which takes them.

    python examples/plain_transformer.py
"""

import argparse
import datetime
import math
import keras_transformer.quiet

import keras
import numpy as np
from keras import ops

# B sentences of S (source) and T (target) tokens, H heads of width K, model width D.
PAD, START, END, UNKNOWN = range(4)
CHARACTERS = " -0123456789abcdefghijklmnopqrstuvwxyz"
LONGEST = 20  # tokens of a source or a target, with the end


def attention(queries, keys, values, mask):
    """softmax(Q K^T / sqrt(K)) V of (B, H, T, K) and (B, H, S, K); section 3.2.1.

    The mask broadcasts to (B, H, T, S): True where a query may look.
    """
    scores = ops.matmul(queries, ops.swapaxes(keys, -1, -2))
    scores = scores / math.sqrt(queries.shape[-1])
    # A masked key gets the weight exp(-1e9) = 0.
    return ops.matmul(ops.softmax(ops.where(mask, scores, -1e9)), values)


def padding_mask(ids):
    """(B, 1, 1, S): no query looks at padding."""
    return ops.not_equal(ids, PAD)[:, None, None, :]


def causal_mask(length):
    """(1, 1, T, T): position t sees positions 0 to t; section 3.2.3."""
    places = ops.arange(length)
    return (places[:, None] >= places[None, :])[None, None]


def position_vectors(length, d_model):
    """(T, D): sines and cosines of the position, interleaved; section 3.5."""
    frequencies = 10000.0 ** (-np.arange(0, d_model, 2) / d_model)
    angles = np.arange(length)[:, None] * frequencies
    pairs = np.stack([np.sin(angles), np.cos(angles)], axis=-1)  # (T, D / 2, 2)
    return pairs.reshape(length, d_model).astype("float32")


class PlainTransformer(keras.Model):
    """Maps source ids (B, S) and shifted target ids (B, T) to logits (B, T, V)."""

    def __init__(self, vocabulary_size, num_layers, d_model, d_ff, num_heads, dropout):
        super().__init__()
        self.num_layers = num_layers
        self.d_model = d_model
        self.num_heads = num_heads
        self.dropout = keras.layers.Dropout(dropout)
        self.positions = position_vectors(LONGEST, d_model)
        self.table = {}  # variables by name
        # One matrix for both embeddings and the output; section 3.4.
        normal = keras.initializers.RandomNormal(stddev=d_model**-0.5)
        self.embeddings = "target_embedding/token_embedding/embeddings"
        self.add(self.embeddings, (vocabulary_size, d_model), normal)
        for side, attentions in (("encoder", ["self"]), ("decoder", ["self", "cross"])):
            for layer in (f"{side}_layer_{i}" for i in range(num_layers)):
                for name in attentions:
                    for part in ("query", "key", "value", "output"):
                        kernel = f"{layer}/{name}_attention/{part}_dense/kernel"
                        self.add(kernel, (d_model, d_model))
                for name in [
                    *(f"{name}_attention" for name in attentions),
                    "feed_forward",
                ]:
                    self.add(f"{layer}/{name}_norm/gamma", (d_model,), "ones")
                    self.add(f"{layer}/{name}_norm/beta", (d_model,), "zeros")
                hidden, output = (
                    f"{layer}/feed_forward/{x}_dense" for x in ("hidden", "output")
                )
                self.add(f"{hidden}/kernel", (d_model, d_ff))
                self.add(f"{hidden}/bias", (d_ff,), "zeros")
                self.add(f"{output}/kernel", (d_ff, d_model))
                self.add(f"{output}/bias", (d_model,), "zeros")

    def add(self, name, shape, initializer="glorot_uniform"):
        weight = self.add_weight(shape, initializer, name=name.replace("/", "."))
        self.table[name] = weight

    def embed(self, ids, training):
        """(B, T, D): embeddings times sqrt(D), and positions; sections 3.4 and 3.5."""
        vectors = ops.take(self.table[self.embeddings], ids, axis=0)
        vectors = vectors * math.sqrt(self.d_model) + self.positions[: ids.shape[1]]
        return self.dropout(vectors, training=training)

    def heads(self, name, x):
        """Projects x (B, T, D) and cuts it into heads (B, H, T, K); section 3.2.2."""
        x = ops.matmul(x, self.table[f"{name}_dense/kernel"])
        width = self.d_model // self.num_heads
        x = ops.reshape(x, (-1, x.shape[1], self.num_heads, width))
        return ops.transpose(x, (0, 2, 1, 3))

    def multi_head_attention(self, name, x, source, mask):
        """Attention of x (B, T, D) to a source (B, S, D) by every head."""
        queries = self.heads(f"{name}/query", x)
        keys = self.heads(f"{name}/key", source)
        values = self.heads(f"{name}/value", source)
        found = attention(queries, keys, values, mask)  # (B, H, T, K)
        found = ops.reshape(
            ops.transpose(found, (0, 2, 1, 3)), (-1, x.shape[1], self.d_model)
        )
        return ops.matmul(found, self.table[f"{name}/output_dense/kernel"])

    def feed_forward(self, name, x):
        """max(0, x W1 + b1) W2 + b2; section 3.3."""
        for part, activation in (("hidden", ops.relu), ("output", lambda x: x)):
            dense = f"{name}/{part}_dense"
            x = (
                ops.matmul(x, self.table[f"{dense}/kernel"])
                + self.table[f"{dense}/bias"]
            )
            x = activation(x)
        return x

    def residual(self, name, x, outputs, training):
        """LayerNorm(x + Dropout(outputs)); sections 3.1 and 5.4."""
        x = x + self.dropout(outputs, training=training)
        mean = ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(x - mean), axis=-1, keepdims=True)
        x = (x - mean) / ops.sqrt(variance + 1e-6)
        return x * self.table[f"{name}_norm/gamma"] + self.table[f"{name}_norm/beta"]

    def encode(self, source, training=False):
        """(B, S, D): N layers of self-attention and feed-forward network."""
        x, mask = self.embed(source, training), padding_mask(source)
        for layer in (f"encoder_layer_{i}" for i in range(self.num_layers)):
            at = f"{layer}/self_attention"
            x = self.residual(
                at, x, self.multi_head_attention(at, x, x, mask), training
            )
            at = f"{layer}/feed_forward"
            x = self.residual(at, x, self.feed_forward(at, x), training)
        return x

    def decode(self, target_in, encoded, source, training=False):
        """(B, T, V): logits of the token after each of `target_in`."""
        x = self.embed(target_in, training)
        sees = causal_mask(target_in.shape[1])
        for layer in (f"decoder_layer_{i}" for i in range(self.num_layers)):
            at = f"{layer}/self_attention"
            x = self.residual(
                at, x, self.multi_head_attention(at, x, x, sees), training
            )
            at, mask = f"{layer}/cross_attention", padding_mask(source)
            found = self.multi_head_attention(at, x, encoded, mask)
            x = self.residual(at, x, found, training)
            at = f"{layer}/feed_forward"
            x = self.residual(at, x, self.feed_forward(at, x), training)
        return ops.matmul(x, ops.transpose(self.table[self.embeddings]))

    def call(self, inputs, training=False):
        source, target_in = inputs
        return self.decode(target_in, self.encode(source, training), source, training)

    def greedy(self, source):
        """The most probable token after those so far, until every row has ended."""
        encoded = self.encode(source)
        # The width stays, so that every step has one shape; causal, it sees no PAD.
        ids = np.full((len(source), LONGEST), PAD, "int32")
        ids[:, 0] = START
        for t in range(LONGEST - 1):
            logits = ops.convert_to_numpy(self.decode(ids, encoded, source)[:, t])
            logits[:, [PAD, START]] = -np.inf
            ids[:, t + 1] = logits.argmax(axis=-1)
        return ids[:, 1:]


def smoothed_crossentropy(target_out, logits, smoothing=0.1):
    """Mean over the tokens that are not padding; label smoothing of section 5.4."""
    log_probabilities = ops.log_softmax(logits)
    classes = logits.shape[-1]
    aims = ops.one_hot(target_out, classes) * (1 - smoothing) + smoothing / classes
    losses = -ops.sum(aims * log_probabilities, axis=-1)  # (B, T)
    is_token = ops.cast(ops.not_equal(target_out, PAD), losses.dtype)
    return ops.sum(losses * is_token) / ops.sum(is_token)


class NoamSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """D^-0.5 min(step^-0.5, step warmup^-1.5); section 5.3."""

    def __init__(self, d_model, warmup):
        self.d_model, self.warmup = d_model, warmup

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1
        return self.d_model**-0.5 * ops.minimum(step**-0.5, step * self.warmup**-1.5)


def ids_of(texts):
    """(B, LONGEST): a character each, the end, then padding."""
    rows = [[4 + CHARACTERS.index(character) for character in text] for text in texts]
    rows = [[*row, END] + [PAD] * (LONGEST - 1 - len(row)) for row in rows]
    return np.array(rows, "int32")


def text_of(ids):
    """The text of ids up to the first end."""
    ids = [*ids, END]
    return "".join(CHARACTERS[id - 4] for id in ids[: ids.index(END)] if id > UNKNOWN)


def dates(count, seed):
    """Returns texts such as "3 march 2017", and the dates as "2017-03-03"."""
    rng = np.random.default_rng(seed)
    days = rng.integers(
        datetime.date(1900, 1, 1).toordinal(),
        datetime.date(2100, 1, 1).toordinal(),
        count,
    )
    days = [datetime.date.fromordinal(day) for day in days]
    forms = ["{0.day} {1} {0.year}", "{1} {0.day} {0.year}", "{0.day} {2} {0.year}"]
    texts = []
    for day, form in zip(days, rng.integers(len(forms), size=count), strict=True):
        month = f"{day:%B}".lower()
        texts.append(forms[form].format(day, month, month[:3]))
    return texts, [f"{day:%Y-%m-%d}" for day in days]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(1)
    sizes = {"num_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 4}
    model = PlainTransformer(4 + len(CHARACTERS), **sizes, dropout=0.1)
    adam = keras.optimizers.Adam(NoamSchedule(64, 400), 0.9, 0.98, 1e-9)
    model.compile(adam, smoothed_crossentropy)
    sources, targets = map(ids_of, dates(options.pairs, seed=1))
    target_in = np.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=START)
    model.fit(
        (sources, target_in), targets, batch_size=64, epochs=options.epochs, verbose=2
    )
    texts, expected = dates(500, seed=2)
    found = list(map(text_of, model.greedy(ids_of(texts)).tolist()))
    right = np.mean([one == other for one, other in zip(found, expected, strict=True)])
    print(f"{texts[0]} -> {found[0]}")
    print(f"{right:.1%} of {len(texts)} new dates are right")
    return right


if __name__ == "__main__":
    main()
