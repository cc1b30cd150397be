"""Words of generated or given pairs: what several programs of this folder learn.

A token is a word or a mark; one seen only once in training is unknown.
"""

import collections
import random
import re
from typing import NamedTuple

import numpy as np

import keras_transformer as kt
from keras_transformer.apps.quickstart.grammar import generate_pairs

PAD, START, END, UNKNOWN = range(4)
LONGEST = 12


class Corpus(NamedTuple):
    """Pairs of tuples of tokens, to train on and to test on, and ids of the tokens."""

    train: list
    test: list
    numbers: dict


def add_flags(parser):
    """Adds the flags of the files of pairs."""
    parser.add_argument("--train", help="file of pairs; default: generated ones")
    parser.add_argument("--test", help="file of pairs to score")


def load(options, longest=LONGEST, tests_longest=LONGEST, sides=2):
    """Returns a `Corpus` of short pairs, as many or, of a small file, fewer.

    Args:
        options: Parsed flags with `train`, `test`, and `pairs` and `tests`, which say
            how many to train on and to test on.
        longest: Most tokens of a sentence to train on, its end counted.
        tests_longest: Likewise, to test on.
        sides: 1 if the sources' words alone are to have numbers.
    """
    wanted = ("train", options.pairs, longest), ("test", options.tests, tests_longest)
    splits = []
    for split, count, most in wanted:
        path = getattr(options, split)
        pairs = generate_pairs(split, 3 * count)
        if path is not None:
            pairs = [(p.source, p.target) for p in kt.open_pairs(path).pairs()]
        tokens = (tuple(re.findall(r"\w+|[^\w\s]", t) for t in pair) for pair in pairs)
        fitting = [pair for pair in tokens if max(map(len, pair)) < most]
        splits.append(random.Random(1).sample(fitting, min(count, len(fitting))))
    texts = (text for pair in splits[0] for text in pair[:sides])
    counts = collections.Counter(word for text in texts for word in text)
    known = sorted(word for word, count in counts.items() if count > 1)
    return Corpus(*splits, {word: i for i, word in enumerate(known, UNKNOWN + 1)})


def arrays(pairs, numbers, length=LONGEST):
    """Returns `((source, target_in), target_out)` of pairs, each (B, length)."""
    result = np.full((2, len(pairs), length), PAD, "int32")
    for row, pair in enumerate(pairs):
        for side, tokens in enumerate(pair):
            ids = [numbers.get(token, UNKNOWN) for token in tokens] + [END]
            result[side, row, : len(ids)] = ids
    source, target_out = result
    return (source, np.insert(target_out, 0, START, 1)[:, :-1]), target_out


def text_of(ids, numbers):
    """Returns the tokens of ids, as one text."""
    words = {number: word for word, number in numbers.items()}
    return " ".join(words.get(i, "⁇") for i in ids if i not in (PAD, END))
