"""Nearest pieces of a trained model's vocabulary, by cosine.

    python examples/nearest_words.py runs/en-de dog seven
    python examples/nearest_words.py runs/en-de --analogy king man woman --count 5

Pieces that can replace each other have similar vectors. An analogy A B C asks for the
nearest to A - B + C (Mikolov et al., 2013, https://aclanthology.org/N13-1090). A word
of several pieces has no vector. "▁" is a space.
"""

import argparse
import keras_transformer.quiet

import numpy as np
from keras import ops

import keras_transformer as kt


def directions_of(translator, side="source"):
    """Returns the embedding (V, D) of one side, each vector of length 1."""
    tokenizer = getattr(translator.tokenizers, side)
    embedding = getattr(translator.model, f"{side}_embedding")
    vectors = embedding.token_embedding(ops.arange(tokenizer.vocabulary_size))
    vectors = ops.convert_to_numpy(ops.cast(vectors, "float32"))
    # Padding may be a vector of zeros.
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def id_of(tokenizer, word):
    """Returns the id of a word that is one piece of the vocabulary."""
    (ids,) = tokenizer.tokenize([word]).to_list()
    if len(ids) != 1 or ids[0] == tokenizer.unknown_id:
        pieces = " ".join(tokenizer.pieces(ids)) or "nothing"
        raise ValueError(f"{word!r} must be one piece, and is cut into {pieces}")
    return ids[0]


def nearest(directions, tokenizer, vector, given, count):
    """Returns the `count` pieces nearest to a vector (D,), and their cosines.

    Special pieces, those of spans, single bytes and the ids in `given` are left out;
    otherwise the nearest to a - b + c is mostly a or c.
    """
    cosines = directions @ (vector / np.linalg.norm(vector))
    pieces = tokenizer.pieces(range(len(directions)))
    hidden = [i for i, piece in enumerate(pieces) if piece.startswith("<0x")]
    cosines[[0, 1, 2, 3, *tokenizer.spans, *hidden, *given]] = -2
    best = np.argsort(-cosines, kind="stable")[:count]
    return [(pieces[i], float(cosines[i])) for i in best]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="directory of a run of `train` or `import`")
    parser.add_argument("words", nargs="*", help="words to look up")
    parser.add_argument("--analogy", nargs=3, action="append", default=[])
    parser.add_argument("--side", choices=("source", "target"), default="source")
    parser.add_argument("--count", type=int, default=10, help="pieces to show")
    options = parser.parse_args(arguments)
    translator = kt.load(options.run)
    tokenizer = getattr(translator.tokenizers, options.side)
    directions = directions_of(translator, options.side)
    found = {}
    for words in (*([word] for word in options.words), *options.analogy):
        try:
            ids = [id_of(tokenizer, word) for word in words]
        except ValueError as error:
            print(error)
            continue
        signs = np.array([1, -1, 1])[: len(ids), None]
        vector = (signs * directions[ids]).sum(axis=0)
        name = words[0] if len(words) == 1 else "{} - {} + {}".format(*words)
        found[name] = nearest(directions, tokenizer, vector, ids, options.count)
        answers = "  ".join(f"{piece} {cosine:.2f}" for piece, cosine in found[name])
        print(f"{name}: {answers}")
    return found


if __name__ == "__main__":
    main()
