"""A language model with and without a causal mask, side by side.

    KERAS_BACKEND=jax python examples/why/causal.py

Both learn English sentences of the package's grammar, each word from the words in
front of it; without the mask the word itself stands among what is attended to. In
generation nothing stands there yet, so a model is also scored with nothing behind.
"""

import keras_transformer.quiet

import corpora
import keras
import numpy as np
import report

import keras_transformer as kt

LAYERS = {"with the mask": kt.CausalLayer, "without": kt.EncoderLayer}
START, END, LENGTH = corpora.START, corpora.END, corpora.LONGEST
SENTENCES = 64


def make_model(layer_class, size):
    """Returns a model of two layers of width 64 whose padding is not attended to."""
    ids = keras.Input((None,), dtype="int32")
    states = kt.PositionalEmbedding(size, 64, pad_id=corpora.PAD)(ids)
    for _ in range(2):
        states = layer_class(num_heads=4, d_ff=128, norm_first=True)(states)
    logits = keras.layers.Dense(size)(keras.layers.LayerNormalization()(states))
    return keras.Model(ids, logits)


def loss_from_the_past(model, ids_in, ids_out):
    """Returns the loss (nats a word) if each word is asked for with nothing behind."""
    before = np.tril(np.ones((LENGTH, LENGTH), "int32"))
    prefixes = (ids_in[:, None] * before).reshape(-1, LENGTH)  # (B * T, T)
    logits = model.predict(prefixes, 256, verbose=0)
    places = np.tile(np.arange(LENGTH), len(ids_in))
    logits = logits[np.arange(len(places)), places].reshape(*ids_out.shape, -1)
    return float(kt.MaskedCrossentropy()(ids_out, logits))


def generate(model, count, seed):
    """Returns ids (count, T) of sentences, drawn word by word."""
    ids, rng = np.full((count, LENGTH + 1), corpora.PAD, "int32"), None
    ids[:, 0], rng = START, np.random.default_rng(seed)
    for place in range(LENGTH):
        logits = model.predict(ids[:, :-1], count, verbose=0)[:, place]
        gumbel = rng.gumbel(size=logits.shape)  # The largest sum is a draw.
        words = (logits + gumbel)[:, END:].argmax(-1) + END
        has_ended = np.isin(ids[:, place], (END, corpora.PAD))
        ids[:, place + 1] = np.where(has_ended, corpora.PAD, words)
    return ids[:, 1:]


def known_pairs(ids, seen):
    """Returns the share of the pairs of neighbouring words that training had."""
    pairs = [pair for row in ids for pair in zip(row, row[1:], strict=False) if pair[1]]
    return sum(pair in seen for pair in pairs) / max(1, len(pairs))


def main(arguments=None):
    parser = report.parser(__doc__, pairs=4000, tests=512, updates=400, seed=1)
    corpora.add_flags(parser)
    options, found, samples = parser.parse_args(arguments), {}, {}
    corpus = corpora.load(options, sides=1)
    (ids_out, _), _ = corpora.arrays(corpus.train, corpus.numbers)
    (test_out, _), _ = corpora.arrays(corpus.test, corpus.numbers)
    seen = {pair for row in ids_out for pair in zip(row, row[1:], strict=False)}
    heading = ["", "training loss", "unseen sentences", "nothing behind", "word pairs"]
    report.show(heading, [])
    for name, layer_class in LAYERS.items():
        keras.utils.set_random_seed(options.seed)
        model = make_model(layer_class, 1 + max(corpus.numbers.values()))
        is_jax = keras.backend.backend() == "jax"
        model.compile(kt.Adam(2e-3), kt.MaskedCrossentropy(), jit_compile=is_jax)
        ids_in, test_in = (
            np.insert(ids, 0, START, 1)[:, :-1] for ids in (ids_out, test_out)
        )
        order = np.random.default_rng(1).integers(0, len(ids_in), 64 * options.updates)
        model.fit(ids_in[order], ids_out[order], 64, verbose=0)
        losses = [
            model.evaluate(*data, 512, verbose=0)
            for data in ((ids_in[:512], ids_out[:512]), (test_in, test_out))
        ]
        losses.append(loss_from_the_past(model, test_in, test_out))
        ids = generate(model, SENTENCES, options.seed)
        found[name] = (*losses, known_pairs(ids, seen))
        report.show_rows([[name, *found[name]]])
        samples[name] = [corpora.text_of(row, corpus.numbers) for row in ids[:3]]
    for name, texts in samples.items():
        print(f"{name}: {' / '.join(texts)}")
    return found


if __name__ == "__main__":
    main()
