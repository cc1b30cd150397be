"""Tagging words by one word alone, by a window of 11, and by attention to all.

    python examples/why/windows.py
    python examples/why/windows.py --files train.tsv.gz valid.tsv.gz

"I saw a saw" cannot be tagged by one word. In the generated sentences the first word
decides whether "cut", "hit", ... are past or present, however far away they stand.
Attention weighs by softmax, and once by ReLU.
"""

import gzip
import random
import sys
from collections import Counter
from pathlib import Path
import keras_transformer.quiet

import keras
import numpy as np
import report
from keras import ops

import keras_transformer as kt

sys.path.append(str(Path(__file__).parents[1]))
from relu_attention import ReluLayer  # noqa: E402

BOTH = "cut hit set cast split bet bid spread".split()  # Nouns; verbs of any time.
NOUNS = ["dog", "cat", "tree", "house", "river", "saw", *BOTH]
LONGEST = 48  # Words; longer sentences are left out.
NEAR = 5  # Words to each side that the net with a window sees.
PARTS = ["noun or verb", "time near", "time far"]


def read_sentences(path):
    """Returns the sentences of a file, each a list of pairs (word, tag)."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [list(zip(*map(str.split, s.split("\t")), strict=True)) for s in file]


def thing(rng):
    """Returns pairs (word, tag): an article, perhaps an adjective, and a noun."""
    adjective = [(rng.choice(("old", "big", "red")), "ADJ")]
    return [
        (rng.choice(("a", "the")), "DET"),
        *(adjective if rng.random() < 0.3 else []),
        (rng.choice(NOUNS), "NOUN"),
    ]


def make_sentences(count, seed):
    """Returns random sentences; the time's word decides the tag of a verb in `BOTH`."""
    rng, rows = random.Random(seed), []
    for _ in range(count):
        time, tag = rng.choice((("yesterday", "PAST"), ("nowadays", "PRES"), ("", "")))
        verb = (rng.choice(BOTH), tag)
        if not time:
            verb = rng.choice((("saw", "PAST"), ("see", "PRES")))
        row = [(time, "ADV")] if time else []
        if rng.random() < 0.2:
            row.append((rng.choice(("i", "you", "we", "they")), "PRON"))
        else:
            row += thing(rng)
            for _ in range(rng.randrange(9)):
                row += [(rng.choice(("near", "with", "of")), "PREP"), *thing(rng)]
        rows.append([*row, verb, *thing(rng)])
    return rows


def to_arrays(sentences, words, tags):
    """Returns ids and tags (N, S), padded by 0; 1 is an unknown word."""
    kept = [s for s in sentences if len(s) <= LONGEST]
    ids = [[words.get(word.lower(), 1) for word, _ in s] for s in kept]
    known = [[tags[tag] for _, tag in s] for s in kept]
    pads = {"maxlen": LONGEST, "padding": "post"}
    return (keras.utils.pad_sequences(rows, **pads) for rows in (ids, known))


def make_model(kind, words, tags):
    """Returns a compiled model of ids (B, S) to logits (B, S, tags).

    Args:
        kind: "one word", "window", "attention" or "ReLU attention".
        words: Size of the vocabulary; id 0 is padding.
        tags: Number of tags; 0 is padding.
    """
    if "attention" in kind:
        model = attention_net(words, tags, is_relu="ReLU" in kind)
    else:
        model = window_net(words, tags, size=1 if kind == "one word" else 1 + 2 * NEAR)
    # XLA would compile for longer than it trains; JAX has nothing else.
    is_jax = keras.backend.backend() == "jax"
    model.compile(kt.Adam(2e-3), kt.MaskedCrossentropy(), jit_compile=is_jax)
    return model


def window_net(words, tags, size):
    """A fully connected net of `size` words: at every place the same, a convolution."""
    ids = keras.Input((None,), dtype="int32")
    is_word = ops.expand_dims(ops.cast(ids > 0, "float32"), -1)
    states = keras.layers.Embedding(words, 64)(ids) * is_word
    states = keras.layers.Conv1D(256, size, padding="same", activation="relu")(states)
    states = keras.layers.Dense(128, activation="relu")(states)
    return keras.Model(ids, keras.layers.Dense(tags)(states))


def attention_net(words, tags, is_relu):
    """A tagger of two layers of self-attention, weighed by softmax or by ReLU."""
    sizes = {"num_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 4}
    # Rotary positions find the word before sooner than sinusoids do.
    config = kt.EncoderConfig(**sizes, norm_first=True, positions="rotary")
    ids = keras.Input((None,), dtype="int32")
    embedding = kt.PositionalEmbedding(
        words, config.d_model, "none", dropout_rate=config.dropout_rate, pad_id=0
    )
    stack = ReluStack(config) if is_relu else kt.EncoderStack(config)
    states = stack(embedding(ids))
    return kt.ExactModel(ids, keras.layers.Dense(tags)(states))


class ReluStack(kt.EncoderStack):
    def make_encoder_layer(self, name):
        return ReluLayer(**self.config.layer_options(), name=name)


def shares_right(guesses, ids, tags, words, names):
    """Returns the shares right of what the columns of `PARTS` say."""
    right, noun = guesses == tags, names["NOUN"]
    is_both = np.isin(ids, [words[word] for word in BOTH])
    is_timed = np.isin(ids[:, :1], [words["yesterday"], words["nowadays"]])
    is_verb = is_both & (tags != noun) & is_timed
    is_near = np.arange(LONGEST) <= NEAR
    is_noun_right = (guesses == noun) == (tags == noun)
    verbs = is_verb & is_near, is_verb & ~is_near
    return [is_noun_right[is_both].mean(), *(right[part].mean() for part in verbs)]


def main(arguments=None):
    kinds = ("one word", "window", "attention", "ReLU attention")
    parser = report.parser(__doc__, kinds=kinds, sentences=3000, epochs=5, seeds=3)
    parser.add_argument("--files", nargs=2, help="lines of words, tab, tags; gzip")
    options = parser.parse_args(arguments)
    files = options.files and map(read_sentences, options.files)
    train, test = files or (make_sentences(options.sentences, s) for s in (1, 2))
    train = train[: options.sentences]
    counts = Counter(word.lower() for s in train for word, _ in s)
    words = {w: n for n, (w, c) in enumerate(counts.most_common(), 2) if c > 1}
    tags = sorted({tag for s in train + test for _, tag in s})
    tags = {tag: number for number, tag in enumerate(tags, 1)}
    (x, y), (new_x, new_y) = (to_arrays(part, words, tags) for part in (train, test))
    saw = np.array([[words.get(word, 1) for word in "i saw a saw".split()]])
    parts = [] if options.files else PARTS
    report.show(["net", "parameters", "all words", *parts, "I saw a saw"], [])
    found = {}
    for kind in options.kinds:
        runs = []
        for seed in range(1, 1 + options.seeds):
            keras.utils.set_random_seed(seed)
            model = make_model(kind, 2 + len(words), 1 + len(tags))
            model.fit(x, y, 32, epochs=options.epochs, verbose=0)
            guesses = model.predict(new_x, verbose=0).argmax(-1)
            runs.append([(guesses == new_y)[new_y > 0].mean()])
            if parts:
                runs[-1] += shares_right(guesses, new_x, new_y, words, tags)
        said = np.array([*tags])[model.predict(saw, verbose=0)[0, :, 1:].argmax(-1)]
        found[kind] = np.transpose(runs).tolist(), said.tolist()
        row = [kind, model.count_params(), *found[kind][0], " ".join(said)]
        report.show_rows([row])
    return found


if __name__ == "__main__":
    main()
