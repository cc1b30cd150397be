"""Translation with a SavedModel, without keras_transformer.

It needs only TensorFlow and tensorflow-text, as TensorFlow Serving does.

    python examples/serve_saved_model.py saved_models/quickstart-en-de/1 "She is tired."
"""

import argparse
import sys

import tensorflow as tf
import tensorflow_text  # noqa: F401, registers the operations of the tokenizer


def translate(path, texts):
    """Returns of each text its translation, score, if it was cut, doubts, and losses.

    Args:
        path: Directory of the SavedModel, NAME/VERSION.
        texts: Sentences.

    Returns:
        Tuples of a string, a number, a boolean, a string of words such as "loop", and
        a list of what the translation lacks, such as a URL.
    """
    signature = tf.saved_model.load(path).signatures["serving_default"]
    outputs = signature(text=tf.constant(texts))
    # An imported model may carry no spans, and then has no such output.
    nothing = tf.constant("", shape=[len(texts), 1])
    outputs = {"lost": nothing} | outputs
    names = ("translation", "score", "truncated", "doubts", "lost")
    columns = [outputs[name].numpy().tolist() for name in names]
    results = []
    for text, score, is_cut, doubts, lost in zip(*columns, strict=True):
        spans = [span.decode() for span in lost if span]  # Padded.
        results.append((text.decode(), score, is_cut, doubts.decode(), spans))
    return results


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", help="directory of the SavedModel")
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="sentences")
    options = parser.parse_args(arguments)
    results = translate(options.path, options.texts)
    for i, (translation, score, is_cut, doubts, lost) in enumerate(results, start=1):
        print(f"{score:.3f}  {translation}")
        if is_cut:
            print(f"sentence {i} is too long and was cut", file=sys.stderr)
        if doubts:
            print(f"translation {i} is doubtful: {doubts}", file=sys.stderr)
        if lost:
            print(f"translation {i} lacks {', '.join(lost)}", file=sys.stderr)


if __name__ == "__main__":
    main()
