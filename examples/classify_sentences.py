"""Is a sentence in favour or against? A sentence classifier.

Beside it: logistic regression of a bag of words, which needs scikit-learn.
With --pretrain the encoder first learns to fill in hidden words of the same sentences.

    python examples/classify_sentences.py --files train.tsv.gz valid.tsv.gz

A line of a file has words, a tab and 0 or 1. Without files the sentences are generated,
and half of them are denials, which a bag of words cannot tell.
"""

import argparse
import gzip
from collections import Counter

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
        texts, classes = zip(*(line.split("\t") for line in file), strict=True)
    return [text.split() for text in texts], np.array(classes, int)


def make_sentences(count, seed):
    """Returns random ones: the last word tells the class, and a "not" turns it."""
    rng = np.random.default_rng(seed)
    words, classes = [], rng.integers(0, 2, count)
    for is_good in classes:
        subject = rng.choice("film plot cast song score ending".split())
        is_denied = rng.random() < 0.5
        ends = "good fine great fun" if is_good != is_denied else "bad dull weak flat"
        denial = "not" if is_denied else "really"
        words.append(["the", subject, "is", denial, "very", rng.choice(ends.split())])
    return words, classes


def to_ids(sentences, vocabulary):
    """Returns ids (N, 48), padded."""
    rows = [[vocabulary.get(word, UNKNOWN) for word in words] for words in sentences]
    return keras.utils.pad_sequences(rows, 48, padding="post", truncating="post")


def bag_of_words(train, valid):
    """Returns the accuracy of logistic regression."""
    regression = LogisticRegression(max_iter=1000)
    model = make_pipeline(CountVectorizer(analyzer=list), regression)
    return model.fit(*train).score(*valid)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", nargs=2, metavar=("TRAIN", "VALID"), help="gzip")
    parser.add_argument("--picture", default="sentence.png", help="of attention")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--pretrain", type=int, default=0, help="epochs of it")
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(1)
    files = options.files and map(read_sentences, options.files)
    train, valid = files or (make_sentences(2000, seed=1), make_sentences(500, seed=2))
    counts = Counter(word for words in train[0] for word in words).most_common()
    vocabulary = {w: n for n, (w, count) in enumerate(counts, FIRST) if count > 1}
    ids, valid_ids = (to_ids(words, vocabulary) for words, _ in (train, valid))

    sizes = {"num_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 4}
    config = kt.EncoderConfig(**sizes, dropout_rate=0.3)
    encoder = kt.TextEncoder(config, FIRST + len(vocabulary))
    if options.pretrain:
        hidden = kt.MaskedTokens(ids, 64, MASK, FIRST, FIRST + len(vocabulary))
        pretraining = kt.MaskedLanguageModel(encoder)
        pretraining.compile("adam", kt.MaskedCrossentropy(), jit_compile=False)
        pretraining.fit(hidden, epochs=options.pretrain, verbose=2)
    model = kt.TextClassifier(encoder, num_classes=2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    data = {"validation_data": (valid_ids, valid[1]), "batch_size": 64, "verbose": 2}
    model.fit(ids, train[1], epochs=options.epochs, **data)
    accuracy = model.history.history["val_accuracy"][-1]
    baseline = bag_of_words(train, valid)
    print(f"right: {accuracy:.1%}; logistic regression: {baseline:.1%}")
    words = valid[0][0]
    weights = model.attention(valid_ids[:1, : len(words)])[0]
    plots.attention(weights, words, words).savefig(options.picture)
    return accuracy, baseline


if __name__ == "__main__":
    main()
