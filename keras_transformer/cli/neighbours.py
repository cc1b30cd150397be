"""The verb `neighbours`: which pieces a trained model holds for alike."""

from __future__ import annotations

from pathlib import Path

from keras_transformer.cli.flags import add_verb, sentence
from keras_transformer.cli.loading import load_module
from keras_transformer.terminal import print_message, print_result


def add_verbs(verbs):
    """Adds the verb to what `add_subparsers` of the parser returned."""
    parser = add_verb(
        verbs,
        "neighbours",
        _neighbours,
        "Show the pieces nearest to words in a run's embedding.",
        "Show the pieces of the vocabulary whose vectors are nearest to words', "
        'by cosine similarity. "▁" stands for a space: a piece without it continues a '
        "word. A word that is cut into several pieces has no vector and is named.",
        examples=(
            "neighbours runs/en-de man blue",
            "neighbours runs/en-de --analogy king man woman --count 5",
        ),
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="directory of the run")
    parser.add_argument(
        "words", nargs="*", type=sentence, metavar="WORD", help="words to look up"
    )
    parser.add_argument(
        "--analogy",
        nargs=3,
        type=sentence,
        action="append",
        default=[],
        metavar=("A", "B", "C"),
        help="find the pieces nearest to A - B + C: what is to C as A is to B, such as "
        "--analogy king man woman; may be given several times",
    )
    parser.add_argument(
        "--side",
        choices=("source", "target"),
        default="source",
        help="whose embedding; with a joint vocabulary both are one (default: source)",
    )
    parser.add_argument(
        "--count", type=int, default=10, help="pieces to show (default: 10)"
    )


def _neighbours(options):
    if not options.words and not options.analogy:
        raise ValueError("Give words, or `--analogy A B C`. Received: neither")
    translator = load_module("translator").Translator.load(options.run)
    vectors = load_module("neighbours").PieceVectors.of(translator, options.side)
    answers = {}
    for word in options.words:
        if _have_vectors(vectors, [word]):
            answers[word] = vectors.neighbours(word, options.count)
    for a, b, c in options.analogy:
        if _have_vectors(vectors, (a, b, c)):
            answers[f"{a} - {b} + {c}"] = vectors.analogy(a, b, c, options.count)
    if not answers:
        raise ValueError("Nothing was found: give words that are one piece each.")
    for asked, found in answers.items():
        _print(asked, found)
    return {
        asked: [near._asdict() for near in found] for asked, found in answers.items()
    }


def _have_vectors(vectors, words):
    """Whether each word is one piece; says so of the first that is not."""
    for word in words:
        try:
            vectors.id_of(word)
        except ValueError as error:
            print_message(str(error))
            return False
    return True


def _print(asked, found):
    answers = "  ".join(f"{piece} {similarity:.2f}" for piece, similarity in found)
    print_result(f"{asked}: {answers}")
