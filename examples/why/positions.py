"""Positions of every kind: trained at one length, tested at twice and four times it.

    python examples/why/positions.py --plot positions.png

The task: each token is answered with the one that stood three places before. Attention
is causal, so one pass at four times the length has the other lengths in it.
"""

import keras_transformer.quiet

import keras
import numpy as np
import report
from keras import ops

import keras_transformer as kt
from keras_transformer.nn.layers import LayerNormalization, RelativePositions

SYMBOLS, BACK, WIDTH, HEADS = 16, 3, 64, 4


class DistanceBias(keras.layers.Layer, RelativePositions):
    """A learned bias of each head for each distance, the same from `farthest` on."""

    def __init__(self, num_heads, farthest=8, **kwargs):
        super().__init__(**kwargs)
        self.farthest = farthest
        self.biases = self.add_weight(shape=(num_heads, farthest + 1))
        self.built = True

    def bias(self, num_heads, query_indices, key_indices):
        distances = query_indices[:, None] - key_indices[None, :]
        return ops.take(self.biases, ops.clip(distances, 0, self.farthest), axis=1)


class RecurrentPositions(keras.layers.Layer):
    """Adds position vectors that a GRU makes, step by step from a constant input."""

    def build(self, shape):
        self.gru = keras.layers.GRU(shape[-1], return_sequences=True)
        self.gru.build((None, None, 1))

    def call(self, inputs):
        return inputs + self.gru(ops.ones((1, ops.shape(inputs)[1], 1)))


class Layer(kt.CausalLayer):
    """A causal layer whose attention knows positions, if `positions` says so."""

    positions = None

    def make_attention(self, name, d_model):
        heads, positions = self.num_heads, self.positions
        if positions == "bias":
            positions = DistanceBias(heads)
        return kt.MultiHeadAttention(
            heads, d_model // heads, positions=positions, name=name
        )


# What is added to the embeddings, for the most positions, and the attention's own kind.
KINDS = {
    "none": (lambda most: keras.layers.Identity(), None),
    "learned": (lambda most: kt.PositionalEncoding("learned", most), None),
    "sinusoidal": (lambda most: kt.PositionalEncoding(), None),
    "recurrent": (lambda most: RecurrentPositions(), None),
    "relative": (lambda most: keras.layers.Identity(), "bias"),
    "rotary": (lambda most: keras.layers.Identity(), "rotary"),
    "ALiBi": (lambda most: keras.layers.Identity(), "alibi"),
}


def accuracy_by_place(kind, length, updates, seed):
    """Trains at a length; returns the accuracy at each place of four times that."""
    keras.utils.set_random_seed(seed)
    added, positions = KINDS[kind]
    ids = keras.Input((None,), dtype="int32")
    normal = keras.initializers.RandomNormal(stddev=1.0)
    states = keras.layers.Embedding(SYMBOLS, WIDTH, normal)(ids)
    states = added(4 * length)(states)
    for _ in range(2):
        layer = Layer(HEADS, 2 * WIDTH, norm_first=True, dropout_rate=0.1)
        layer.positions = positions
        states = layer(states)
    logits = keras.layers.Dense(SYMBOLS)(LayerNormalization()(states))
    model, rng = keras.Model(ids, logits), np.random.default_rng(seed)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # XLA would compile for longer than it trains; JAX has nothing else.
    model.compile(kt.Adam(2e-3), loss, jit_compile=keras.backend.backend() == "jax")
    train = rng.integers(0, SYMBOLS, (32 * updates, length))
    model.fit(train, np.roll(train, BACK, 1), 32, sample_weight=known(train), verbose=0)
    test = rng.integers(0, SYMBOLS, (64, 4 * length))
    guesses = model.predict(test, verbose=0).argmax(-1)
    return (guesses == np.roll(test, BACK, 1)).mean(0)


def known(ids):
    """Returns 1 where there is a token so far back, else 0."""
    return np.broadcast_to(np.arange(ids.shape[1]) >= BACK, ids.shape).astype("float32")


def draw(found, length, path):
    """Draws the mean accuracy of each kind over the places."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    ax = figure.subplots()
    for kind, curves in found.items():
        mean = np.mean(curves, 0)[BACK:]
        smooth = np.convolve(np.pad(mean, 2, "edge"), np.ones(5) / 5, "valid")
        ax.plot(np.arange(BACK, 4 * length), smooth, label=kind)
    for times in (1, 2):
        ax.axvline(times * length, color="gray", linestyle=":")
    ax.set(xlabel="place (tokens)", ylabel="accuracy, mean of five places")
    figure.legend(loc="outside right")
    figure.savefig(path, dpi=110)


def main(arguments=None):
    kinds = tuple(KINDS)
    parser = report.parser(__doc__, length=16, updates=300, seeds=3, kinds=kinds)
    parser.add_argument("--plot", help="file of a picture")
    options = parser.parse_args(arguments)
    length, found = options.length, {}
    names = (f"1 to {length}", f"to {2 * length}", f"to {4 * length}")
    report.show(["positions", *(f"places {name}" for name in names)], [])
    for kind in options.kinds:
        sizes = length, options.updates
        seeds = range(1, 1 + options.seeds)
        found[kind] = [accuracy_by_place(kind, *sizes, seed) for seed in seeds]
        ends = ((BACK, length), (length, 2 * length), (2 * length, 4 * length))
        parts = [[float(c[slice(*e)].mean()) for c in found[kind]] for e in ends]
        report.show_rows([[kind, *parts]])
    if options.plot:
        draw(found, length, options.plot)
    return found


if __name__ == "__main__":
    main()
