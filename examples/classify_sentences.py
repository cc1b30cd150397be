"""Sentence classification: positive or negative.

The features of a word are itself and its first four and six letters. With --pretrain it
is only the word, and the encoder is pre-trained on hidden words. The baseline is a bag
of words.

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
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import keras_transformer as kt
from keras_transformer import plots

UNKNOWN, MASK, FIRST = 3, 4, 5  # 0 is padding.


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


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", nargs=2, metavar=("TRAIN", "VALID"), help="gzip")
    parser.add_argument("--picture", default="sentence.png", help="attention, drawn")
    for name, default in {"epochs": 10, "pretrain": 0, "seed": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(options.seed)
    files = options.files and map(read_sentences, options.files)
    train, valid = files or (make_sentences(2000, seed=1), make_sentences(500, seed=2))
    number = 1 if options.pretrain else 3  # To hide words: one.
    rows = [[features_of(s, number) for s in part] for part in (train[0], valid[0])]
    counts = Counter(f for row in rows[0] for word in row for f in word)
    features = {f: n for n, (f, c) in enumerate(counts.most_common(), FIRST) if c > 1}
    ids, valid_ids = (to_ids(part, features) for part in rows)

    sizes = {"num_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 4}
    rates = {"attention_dropout_rate": 0.1, "activation_dropout_rate": 0.1}
    config = kt.EncoderConfig(**sizes, dropout_rate=0.4, **rates)
    size = FIRST + len(features)
    embedding = kt.FeatureEmbedding(size, config.d_model, config.dropout_rate)
    encoder = kt.Encoder(config, size if options.pretrain else embedding)
    if options.pretrain:
        hidden = kt.MaskedTokens(ids, 64, MASK, FIRST, size)
        pretraining = kt.MaskedLanguageModel(encoder)
        pretraining.compile("adam", kt.MaskedCrossentropy(), jit_compile=False)
        pretraining.fit(hidden, epochs=options.pretrain, verbose=2)
    model = kt.TextClassifier(encoder, num_classes=2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    fit = {"validation_data": (valid_ids, valid[1]), "batch_size": 64, "verbose": 2}
    history = model.fit(ids, train[1], epochs=options.epochs, **fit).history
    accuracy = history["val_accuracy"][-1]
    bag, regression = CountVectorizer(analyzer=list), LogisticRegression(max_iter=1000)
    baseline = make_pipeline(bag, regression).fit(*train).score(*valid)
    print(f"right: {accuracy:.1%}; logistic regression: {baseline:.1%}")
    weights = model.attention(valid_ids[:1, : len(words := valid[0][0][:48])])[0]
    plots.attention(weights, words, words).savefig(options.picture)
    return accuracy, baseline


if __name__ == "__main__":
    main()
