"""Translation with a SavedModel, without keras_transformer.

It needs only TensorFlow and tensorflow-text, as TensorFlow Serving does.

    python examples/serve_saved_model.py saved_models/quickstart-en-de/1 "She is tired."
"""

import argparse

import tensorflow as tf
import tensorflow_text  # noqa: F401, registers the operations of the tokenizer


def translate(path, texts):
    """Returns the translation and the score of each text.

    Args:
        path: Directory of the SavedModel, NAME/VERSION.
        texts: Sentences.

    Returns:
        Pairs of a string and a number.
    """
    signature = tf.saved_model.load(path).signatures["serving_default"]
    outputs = signature(text=tf.constant(texts))
    translations = [text.decode("utf-8") for text in outputs["translation"].numpy()]
    return list(zip(translations, outputs["score"].numpy().tolist(), strict=True))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", help="directory of the SavedModel")
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="sentences")
    options = parser.parse_args(arguments)
    for translation, score in translate(options.path, options.texts):
        print(f"{score:.3f}  {translation}")


if __name__ == "__main__":
    main()
