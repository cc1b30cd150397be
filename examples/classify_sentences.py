"""Sentence classification: positive or negative.

The features of a word are itself and its first four and six letters. The baseline is a
bag of words. bert.py pre-trains such an encoder on hidden words.

    python examples/classify_sentences.py --files train.tsv.gz valid.tsv.gz

A line of a file contains words, a tab and 0 or 1. Without files the sentences are
generated; half of them are negated, which a bag of words cannot detect.
"""

import argparse
import gzip
from collections import Counter
import keras_transformer.quiet

import keras
import numpy as np
from encoder_parts import FeatureEmbedding, last_attention
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import keras_transformer as kt
from keras_transformer import plots

UNKNOWN, FIRST = 3, 5  # 0 is padding, 4 the mask of bert.py.
CONFIG = kt.EncoderConfig(
    num_layers=2,
    d_model=64,
    d_ff=128,
    num_heads=4,
    dropout_rate=0.4,
    attention_dropout_rate=0.1,
    activation_dropout_rate=0.1,
)


def read_sentences(path):
    """Returns the sentences, lists of words, and their classes."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        texts, classes = zip(*(s.split("\t") for s in file if s.strip()), strict=True)
    return [text.split() for text in texts], np.array(classes, int)


def make_sentences(count, seed):
    """Returns random sentences: the last word has the class, "not" reverses it."""
    rng = np.random.default_rng(seed)
    words, classes = [], rng.integers(0, 2, count)
    for is_good in classes:
        subject = rng.choice("film plot cast song score ending".split())
        is_denied = rng.random() < 0.5
        ends = "good fine great fun" if is_good != is_denied else "bad dull weak flat"
        denial = "not" if is_denied else "really"
        words.append(["the", subject, "is", denial, "very", rng.choice(ends.split())])
    return words, classes


def features_of(words, number):
    """Returns features of each word: itself, its first 4 letters, its first 6."""
    return [[word, f"{word[:4]}-", f"{word[:6]}--"][:number] for word in words]


def to_ids(rows, features):
    """Returns padded ids (N, 48, F), or (N, 48) with one feature."""
    rows = [[[features.get(f, UNKNOWN) for f in word] for word in row] for row in rows]
    ids = keras.utils.pad_sequences(rows, 48, padding="post", truncating="post")
    return ids[..., 0] if ids.shape[2] == 1 else ids


def features_and_ids(train, valid, number):
    """Returns the features, numbered, and the ids of both parts."""
    rows = [[features_of(s, number) for s in part[0]] for part in (train, valid)]
    counts = Counter(f for row in rows[0] for word in row for f in word)
    features = {f: n for n, (f, c) in enumerate(counts.most_common(), FIRST) if c > 1}
    return features, *(to_ids(part, features) for part in rows)


def classifier(ids, states, config=CONFIG):
    """Returns a model from ids to logits (B, 2), read from the mean of the states."""
    state = keras.layers.GlobalAveragePooling1D()(states)  # It skips padding.
    state = kt.layers.Dropout(config.dropout_rate)(state)
    return keras.Model(ids, keras.layers.Dense(2, name="logits")(state))


def make_model(num_features, config=CONFIG):
    """Returns a model from ids (B, S, 3) to logits (B, 2)."""
    ids = keras.Input((None, 3), dtype="int32", name="ids")
    embedding = FeatureEmbedding(
        num_features, config.d_model, dropout_rate=config.dropout_rate
    )
    states = kt.EncoderStack(config, name="stack")(embedding(ids))
    return classifier(ids, states, config)


def accuracy_of(model, ids, classes, valid_ids, valid_classes, epochs):
    """Trains a classifier; returns its accuracy."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    scored = valid_ids, valid_classes
    model.fit(ids, classes, 64, epochs, verbose=2, validation_data=scored)
    return model.history.history["val_accuracy"][-1]


def read_options(description, arguments, **numbers):
    """Returns the options, and the sentences to learn from and to score with."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--files", nargs=2, metavar=("TRAIN", "VALID"), help="gzip")
    parser.add_argument("--picture", default="sentence.png", help="attention, drawn")
    for name, default in {"epochs": 10, "seed": 1, **numbers}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(options.seed)
    if options.files:
        return options, *map(read_sentences, options.files)
    return options, make_sentences(2000, seed=1), make_sentences(500, seed=2)


def main(arguments=None):
    description = __doc__.splitlines()[0]
    options, train, valid = read_options(description, arguments)
    features, ids, valid_ids = features_and_ids(train, valid, number=3)
    model = make_model(FIRST + len(features))
    data = ids, train[1], valid_ids, valid[1]
    accuracy = accuracy_of(model, *data, options.epochs)
    bag, regression = CountVectorizer(analyzer=list), LogisticRegression(max_iter=1000)
    baseline = make_pipeline(bag, regression).fit(*train).score(*valid)
    print(f"right: {accuracy:.1%}; logistic regression: {baseline:.1%}")
    words = valid[0][0][:48]
    weights = last_attention(model, valid_ids[:1, : len(words)])[0]
    plots.attention(weights.mean(axis=0), words, words).savefig(options.picture)
    return accuracy, baseline


if __name__ == "__main__":
    main()
