"""Tagged sentences, read or generated, and their ids."""

import gzip
import random

import keras

BOTH = "cut hit set cast split bet bid spread".split()  # Nouns; verbs of any time.
NOUNS = ["dog", "cat", "tree", "house", "river", "saw", *BOTH]
LONGEST = 48  # Words; longer sentences are left out.


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
