"""Steps with random logits, and every output of a tiny vocabulary, for the tests."""

import itertools

import numpy as np
from keras import ops

from keras_transformer.search import SpecialIds
from tests.reference.numpy_transformer import log_softmax

PAD, START, END = IDS = SpecialIds(pad_id=0, start_id=1, end_id=2)
HASHES = 97

numpy = ops.convert_to_numpy

# Options of `Constraints` and of `obeys`; a prefix is the same for every sentence.
CONSTRAINTS = {
    "none": {},
    "shortest": {"min_output_length": 3},
    "no token twice": {"no_repeat_ngram_size": 1},
    "no pair twice": {"no_repeat_ngram_size": 2},
    "no triple twice": {"no_repeat_ngram_size": 3},
    "prefix": {"prefix": (4, 3)},
    "prefix that ends": {"prefix": (4, END)},
    "prefix as long as the output": {"prefix": (3, 3, 4, 4, 3)},
    "all": {"min_output_length": 4, "no_repeat_ngram_size": 2, "prefix": (4, 4, 4)},
}


def random_logits(seed, sentences, vocabulary, scale=2.0):
    """Logits of the next token for each sentence and each hash of a history."""
    shape = (sentences, HASHES, vocabulary)
    return np.random.default_rng(seed).normal(0, scale, shape).astype("float32")


def history_step(table):
    """A step whose logits depend on every token so far, through the state."""
    _, hashes, vocabulary = table.shape
    rows = ops.reshape(ops.convert_to_tensor(table), (-1, vocabulary))

    def step(ids, parents, state):
        beam_size = parents.shape[1]
        starts = ops.arange(ops.shape(parents)[0], dtype="int32") * beam_size
        order = ops.reshape(ops.expand_dims(starts, 1) + parents, (-1,))
        history = ops.take(state["history"], order, axis=0)
        history = (history * 31 + ids + state["position"]) % HASHES
        logits = ops.take(rows, state["sentence"] * hashes + history, axis=0)
        return logits, dict(state, history=history, position=state["position"] + 1)

    return step


def history_state(sentences, beam_size=1):
    """The state of `history_step` before the first token, for these sentences."""
    sentences = np.repeat(np.asarray(sentences, "int32"), beam_size)
    return {
        "history": ops.zeros_like(sentences),
        "sentence": ops.convert_to_tensor(sentences),
        "position": ops.zeros((), "int32"),
    }


def next_logits(table, prefix):
    """The logits (V,) of `history_step` recomputed from the tokens alone."""
    history = 0
    for position, token in enumerate((START, *prefix)):
        history = (history * 31 + int(token) + position) % HASHES
    return table[history].astype("float64")


def log_probability(table, ids):
    """The log-probability of an output of one sentence, in float64."""
    return sum(
        log_softmax(next_logits(table, ids[:i]))[token] for i, token in enumerate(ids)
    )


def all_outputs(vocabulary, max_length):
    """Every output: those that end, and those cut at the longest length."""
    tokens = [i for i in range(vocabulary) if i not in IDS]
    for length in range(max_length):
        for ids in itertools.product(tokens, repeat=length):
            yield (*ids, END)
    yield from itertools.product(tokens, repeat=max_length)


def obeys(ids, max_length, min_output_length=1, no_repeat_ngram_size=0, prefix=()):
    """Whether an output is one that the constraints allow.

    No n-gram of it may come twice, but for what the prefix itself repeats.
    """
    if tuple(ids[: len(prefix)]) != tuple(prefix)[: len(ids)]:
        return False
    for length in range(len(prefix) + 1, len(ids) + 1):
        if ids[length - 1] == END and length < min_output_length:
            return False
        size, start = no_repeat_ngram_size, length - no_repeat_ngram_size
        if size and start >= 0:
            earlier = [tuple(ids[i : i + size]) for i in range(start)]
            if tuple(ids[start:length]) in earlier:
                return False
    return len(ids) == max_length or ids[-1] == END
