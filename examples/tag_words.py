"""Part-of-speech tagging.

The vector of a word is the sum of its features: itself, its first and last one to four
letters, its shape ("Xx9"). So a new word has the vectors of its ending.

    python examples/tag_words.py --files train.tsv.gz valid.tsv.gz
"""

import argparse
import gzip
import re
from collections import Counter
import keras_transformer.quiet

import keras
import numpy as np
import tensorflow as tf
from encoder_parts import FeatureEmbedding, last_attention

import keras_transformer as kt
from keras_transformer import plots


def read_sentences(path):
    """Returns the sentences, each a list of pairs (word, tag)."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [list(zip(*map(str.split, s.split("\t")), strict=True)) for s in file]


def make_sentences(count, seed):
    """Returns random sentences; a word in -s is a noun or, after a noun, a verb."""
    rng = np.random.default_rng(seed)
    endings = {"ADJ": "ous", "NOUN": "s", "VERB": "s", "ADV": "ly"}
    kept = rng.random((count, 4)) < (0.5, 1.0, 0.7, 0.5)
    stems = rng.choice(list("bdgklmnprtaeiou"), (count, 4, 4))
    rows = [zip(endings, *pair, strict=True) for pair in zip(stems, kept, strict=True)]
    return [[("".join(s) + endings[t], t) for t, s, k in row if k] for row in rows]


def features_of(word):
    """Returns the ten features of a word."""
    shape = re.sub("[A-Z]+", "X", re.sub("[a-z]+", "x", re.sub("[0-9]+", "9", word)))
    word = word.lower()
    starts = [f"{word[:n]}-" for n in (1, 2, 3, 4)]
    return [word, f"shape {shape}", *starts, *(f"-{word[-n:]}" for n in (1, 2, 3, 4))]


def ids_of(sentence, features):
    """Returns the feature ids (S, 10) of a sentence; 1 is unknown."""
    return [[features.get(f, 1) for f in features_of(word)] for word, _ in sentence]


def batches(sentences, features, tags):
    """Returns batches, ids (B, S, 10) and tags (B, S), in a new order each time."""
    rows = [(ids_of(s, features), [1 + tags.index(t) for _, t in s]) for s in sentences]
    shapes = tf.TensorSpec((None, 10), tf.int32), tf.TensorSpec((None,), tf.int32)
    data = tf.data.Dataset.from_generator(lambda: rows, output_signature=shapes)
    limits, sizes = [10, 20, 40], [128, 64, 32, 16]
    data = data.cache().shuffle(len(rows))
    data = data.bucket_by_sequence_length(lambda _, y: tf.size(y), limits, sizes)
    return data.apply(tf.data.experimental.assert_cardinality(sum(1 for _ in data)))


def make_model(num_features, num_tags, config):
    """Returns a model from ids (B, S, 10) to logits (B, S, tags); tag 0 is padding."""
    ids = keras.Input((None, 10), dtype="int32", name="ids")
    embedding = FeatureEmbedding(
        num_features, config.d_model, dropout_rate=config.dropout_rate
    )
    states = kt.EncoderStack(config, name="stack")(embedding(ids))
    return kt.ExactModel(ids, keras.layers.Dense(num_tags, name="logits")(states))


def most_frequent_tags(train, valid):
    """Returns the accuracy of the most frequent tag of each word, or NOUN."""
    counts = Counter(pair for s in train for pair in s).most_common()
    best = dict(pair for pair, _ in reversed(counts))  # The last of a word wins.
    return np.mean([best.get(w, "NOUN") == t for s in valid for w, t in s])


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", nargs=2, help="lines of words, tab, tags; gzip")
    parser.add_argument("--picture", default="tag_words.png", help="attention, drawn")
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(1)
    files = options.files and map(read_sentences, options.files)
    train, valid = files or (make_sentences(2000, seed=1), make_sentences(500, seed=2))
    counts = Counter(f for s in train for word, _ in s for f in features_of(word))
    features = {f: n for n, (f, c) in enumerate(counts.most_common(), 2) if c > 1}
    tags = sorted({tag for s in train + valid for _, tag in s})
    sizes = {"num_layers": 2, "d_model": 128, "d_ff": 256, "num_heads": 4}
    rates = {"attention_dropout_rate": 0.1, "activation_dropout_rate": 0.1}
    config = kt.EncoderConfig(**sizes, dropout_rate=0.3, **rates)
    model = make_model(2 + len(features), 1 + len(tags), config)
    loss, metrics = kt.MaskedCrossentropy(0.1), [kt.MaskedAccuracy()]
    model.compile("adam", loss, metrics=metrics, jit_compile=False)
    data, scored = (batches(part, features, tags) for part in (train, valid))
    fit = {"validation_data": scored, "shuffle": False, "verbose": 2}
    history = model.fit(data, epochs=options.epochs, **fit).history
    accuracy = history["val_masked_accuracy"][-1]
    baseline = most_frequent_tags(train, valid)
    print(f"right: {accuracy:.1%}; each word's most frequent tag: {baseline:.1%}")
    weights = last_attention(model, np.array([ids_of(valid[0], features)]))[0]
    words = [word for word, _ in valid[0]]
    plots.attention(weights.mean(axis=0), words, words).savefig(options.picture)
    return accuracy, baseline


if __name__ == "__main__":
    main()
