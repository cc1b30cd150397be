"""Translation with a SavedModel, without keras_transformer.

It needs only TensorFlow and tensorflow-text, as TensorFlow Serving does.

    python examples/serve_saved_model.py saved_models/quickstart-en-de/1 "She is tired."
"""

import argparse
import sys

import tensorflow as tf
import tensorflow_text  # noqa: F401, registers the operations of the tokenizer


def translate(path, texts):
    """Returns the translation of each text, its score, if it was cut, and the doubts.

    Args:
        path: Directory of the SavedModel, NAME/VERSION.
        texts: Sentences.

    Returns:
        Tuples of a string, a number, a boolean and a string of words such as "loop".
    """
    signature = tf.saved_model.load(path).signatures["serving_default"]
    outputs = signature(text=tf.constant(texts))
    names = ("translation", "score", "truncated", "doubts")
    columns = [outputs[name].numpy().tolist() for name in names]
    return [
        (translation.decode(), score, is_cut, doubts.decode())
        for translation, score, is_cut, doubts in zip(*columns, strict=True)
    ]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", help="directory of the SavedModel")
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="sentences")
    options = parser.parse_args(arguments)
    results = translate(options.path, options.texts)
    for number, (translation, score, is_cut, doubts) in enumerate(results, start=1):
        print(f"{score:.3f}  {translation}")
        if is_cut:
            print(f"sentence {number} is too long and was cut", file=sys.stderr)
        if doubts:
            print(f"translation {number} is doubtful: {doubts}", file=sys.stderr)


if __name__ == "__main__":
    main()
