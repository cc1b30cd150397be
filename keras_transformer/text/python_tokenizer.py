"""Any tokenizer of Hugging Face's `tokenizers`, in Python and not in the graph."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from keras_transformer.text.special_names import special_names
from keras_transformer.text.subwords import UNKNOWN_ID, Subwords


class PythonTokenizer(Subwords):
    """A tokenizer that trains and translates in Python, and cannot be exported.

    Ids 0 to 3 are padding, start, end and unknown; the other pieces follow in the order
    of their own ids.

    Args:
        content: JSON of Hugging Face's `tokenizers`.
        reason: Why it has no form in TensorFlow's graph.

    Raises:
        ImportError: If `tokenizers` is not installed.
    """

    suffix = ".json"

    def __init__(self, content: bytes, reason: str):
        self.content = content
        self.graph_problem = reason
        self._tokenizer = hugging_face_tokenizer(content.decode())
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        unknown = json.loads(content)["model"].get("unk_token")
        names = special_names(vocabulary, unknown if unknown in vocabulary else None)
        order = sorted(vocabulary, key=vocabulary.get)
        self._pieces = [*names, *(piece for piece in order if piece not in names)]
        ours = {piece: id for id, piece in enumerate(self._pieces)}
        size = max(vocabulary.values()) + 1
        self._ours_of_theirs = np.full(size, UNKNOWN_ID, np.int32)
        self._theirs_of_ours = np.full(len(self._pieces), -1)
        for piece, id in vocabulary.items():
            # A special piece that a text spells is no special id.
            self._ours_of_theirs[id] = max(ours[piece], UNKNOWN_ID)
            self._theirs_of_ours[ours[piece]] = id

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, the special ones counted."""
        return len(self._pieces)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns the piece of each id, for plots and debugging."""
        return [self._pieces[int(id)] for id in ids]

    def ids_of(self, texts: list[str]) -> list[np.ndarray]:
        """Returns the int32 ids of each text."""
        found = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [self._ours_of_theirs[np.array(one.ids, int)] for one in found]

    def _tokenize(self, texts):
        texts = tf.convert_to_tensor(texts, tf.string)
        ids, splits = tf.numpy_function(
            self._cut, [texts], (tf.int32, tf.int64), stateful=False
        )
        ids, splits = tf.ensure_shape(ids, [None]), tf.ensure_shape(splits, [None])
        return tf.RaggedTensor.from_row_splits(ids, splits, validate=False)

    def _detokenize(self, ids):
        texts = tf.numpy_function(
            self._joined, [ids.values, ids.row_splits], tf.string, stateful=False
        )
        return tf.ensure_shape(texts, [None])

    def _cut(self, texts):
        rows = self.ids_of([text.decode("utf-8", "replace") for text in texts])
        splits = np.cumsum([0, *map(len, rows)])
        return np.concatenate([np.zeros(0, np.int32), *rows]), splits.astype("int64")

    def _joined(self, ids, splits):
        theirs = self._theirs_of_ours[ids]
        rows = np.split(theirs, splits[1:-1]) if len(splits) > 1 else []
        texts = self._tokenizer.decode_batch([row[row >= 0].tolist() for row in rows])
        return np.array([text.encode() for text in texts], object)


def hugging_face_tokenizer(text: str):
    """Returns the `tokenizers.Tokenizer` of its JSON.

    Raises:
        ImportError: If `tokenizers` is not installed.
        ValueError: If the text is no such JSON.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            "Reading a tokenizer of Hugging Face needs their library: "
            "pip install tokenizers"
        ) from error
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # The library raises no narrower class.
        raise ValueError(f"not a tokenizer of Hugging Face: {error}") from error
