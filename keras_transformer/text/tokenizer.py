"""Text to ids and back, in the TensorFlow graph.

A vocabulary is learned with SentencePiece and applied by an operation that stock
TensorFlow Serving includes, so that training and serving cut text alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import sentencepiece
import tensorflow as tf

from keras_transformer.config import TokenizerConfig
from keras_transformer.text.operations import tensorflow_text
from keras_transformer.text.sentencepiece_model import (
    SPECIAL_IDS,
    additions,
    language_symbols,
    learned,
    loaded,
    renumbered,
    special_ids,
)
from keras_transformer.text.subwords import Subwords, as_utf8

# The name of a target language, as OPUS-MT's models have it, of RE2.
_LANGUAGE = r">>(?s:.*?)<<"
# So many that two pieces hardly share one.
_BUCKETS = 2**62


class Tokenizer(Subwords):
    """One SentencePiece vocabulary.

    The ids 0, 1, 2 and 3 are padding, start, end and unknown; a model that has others
    is renumbered, with its other pieces in their order. The special ids are control
    symbols: no text is ever cut into them; the text "</s>" is ordinary characters.
    Text is normalised first, and loses leading, trailing and doubled spaces.
    SentencePiece writes a space as "▁" (U+2581), so a "▁" in a text becomes a space.
    Only a control symbol whose name is that of a target language, such as ">>fra<<",
    may stand in a text, at its start: it is one id, and the rest is cut as usual. Where
    a model has any, another name of that form is unknown.
    Pieces of the type "unused" are no part of the cutting; characters that are unknown
    to it and spell one become its id.
    A `tf.function` that calls a tokenizer carries the vocabulary within its graph: it
    can be saved as a SavedModel with nothing else to track.
    Method: Kudo and Richardson, 2018, https://arxiv.org/abs/1808.06226.

    Args:
        model: Serialised SentencePiece model, the content of a `.model` file.
        origin: Name of the model in error messages.

    Attributes:
        languages: Ids of the target languages by their names.
        additions: Ids of the pieces of the type "unused" by their names.

    Raises:
        ValueError: If `model` is no SentencePiece model.

    Example:
        >>> tokenizer = Tokenizer.learn(sentences, TokenizerConfig())
        >>> ids = tokenizer.tokenize(["Two young men."])
        >>> tokenizer.detokenize(ids)
        <tf.Tensor: shape=(1,), dtype=string, numpy=array([b'Two young men.'])>
    """

    suffix = ".model"

    def __init__(self, model: bytes, origin: str = "`model`"):
        self._processor = loaded(model, origin)
        special = special_ids(self._processor)
        if special != SPECIAL_IDS:
            model = renumbered(model, special)
            self._processor = loaded(model, origin)
        self.content = model
        self.languages = language_symbols(self._processor)
        self.additions = additions(self._processor)

    @classmethod
    def learn(cls, sentences: Iterable[str], config: TokenizerConfig) -> Tokenizer:
        """Learns a vocabulary; the same sentences always give the same one.

        `config.vocabulary_size` counts everything: the 4 special ids, the 256 bytes
        if `config.byte_fallback` is on, the single characters and the longer pieces.
        SentencePiece ignores sentences longer than 4192 bytes, and learns from a sample
        of at most `config.learning_sentences` (at least 101), held in memory.

        Args:
            sentences: Text, read once.
            config: Size and kind of the vocabulary.

        Returns:
            A `Tokenizer`.

        Raises:
            ValueError: If the text does not suit the vocabulary's size.
        """
        return cls(learned(sentences, config, config.learning_sentences))

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Reads a SentencePiece `.model` file."""
        return cls(Path(path).read_bytes(), origin=str(path))

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, the special ones and the bytes counted."""
        return self._processor.get_piece_size()

    def sample(self, texts: Sequence[str], rate: float, seed: int) -> list[np.ndarray]:
        """Cuts training texts into random pieces, against overfitting.

        The seed alone determines the pieces: with BPE-dropout (Provilkov et al., 2020,
        https://arxiv.org/abs/1910.13267) for a vocabulary learned with `algorithm`
        "bpe"; for "unigram" a segmentation x with probability proportional to
        P(x)^`rate` (Kudo, 2018, https://arxiv.org/abs/1804.10959, section 3.3, where it
        is alpha). `detokenize` still gives the text back.

        Args:
            texts: Strings.
            rate: Share of the merges left out, or alpha; above 0 and below 1.
            seed: Seed of SentencePiece's generator, 0 to 2**32 - 2.

        Returns:
            int32 ids of each text, without start and end, shape [None] each.

        Raises:
            ValueError: If `rate` is out of range.
        """
        if not 0 < rate < 1:
            raise ValueError(
                f"`rate` must be above 0 and below 1. Received: rate={rate}"
            )
        parts = [self._without_language(text) for text in texts]
        rests = [rest for _, rest in parts]
        # The one thread that SentencePiece makes for a call begins with this seed.
        sentencepiece.set_random_generator_seed(seed)
        # -1: among all segmentations, not the n best.
        rows = self._processor.encode(
            rests, out_type=str if self.additions else int, enable_sampling=True,
            nbest_size=-1, alpha=rate, num_threads=1,
        )  # fmt: skip
        if self.additions:
            rows = [[self._id_of(piece) for piece in row] for row in rows]
        whole = (code + row for (code, _), row in zip(parts, rows, strict=True))
        return [np.array(ids, np.int32) for ids in whole]

    def _id_of(self, piece):
        """The id of what a text was cut into, which may be characters of no piece."""
        id = self._processor.piece_to_id(piece)
        return self.unknown_id if self._processor.is_control(id) else id

    def _without_language(self, text):
        """Returns the id of the target language that a text names, and the rest."""
        end = text.find("<<") + 2 if self.languages and text[:2] == ">>" else 1
        if end < 2:
            return [], text
        return [self.languages.get(text[:end], self.unknown_id)], text[end:]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns the piece of each id, for plots and debugging."""
        return [self._processor.id_to_piece(int(id)) for id in ids]

    # The operation lives in these graphs and not in an attribute: one made outside a
    # graph stops working when TensorFlow drops its cache of kernels, which
    # `keras.utils.set_random_seed` and `tf.random.set_seed` make it do.

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def _tokenize(self, texts):
        return self._cut_with_language(texts) if self.languages else self._cut(texts)

    def _cut(self, texts):
        """Ragged ids of texts; unknown characters may spell a piece that is added."""
        ids = self._operation().tokenize(texts)
        if not self.additions:
            return ids
        strings = tensorflow_text.SentencepieceTokenizer(
            model=self.content, out_type=tf.string
        ).tokenize(texts)
        # A table of TensorFlow's would be one more thing to save with a graph.
        names = np.array([name.encode() for name in self.additions], object)
        with tf.init_scope():
            hashes = tf.strings.to_hash_bucket_fast(names, _BUCKETS).numpy()
        order = np.argsort(hashes)
        names, added = names[order], np.array([*self.additions.values()])[order]
        found = tf.strings.to_hash_bucket_fast(strings.values, _BUCKETS)
        places = tf.minimum(tf.searchsorted(hashes[order], found), len(names) - 1)
        spelled = tf.gather(names, places) == strings.values
        unknown = ids.values == self.unknown_id
        added = tf.gather(added.astype(np.int32), places)
        return ids.with_values(tf.where(unknown & spelled, added, ids.values))

    def _cut_with_language(self, texts):
        """As `_cut`; what a text begins with may name its target language."""
        texts = as_utf8(texts)  # A pattern matches no other bytes.
        named = tf.strings.regex_full_match(texts, f"(?s){_LANGUAGE}.*")
        names = tf.strings.regex_replace(texts, f"(?s)^({_LANGUAGE}).*$", r"\1")
        rest = tf.strings.regex_replace(texts, f"^{_LANGUAGE}", "")
        known = tf.expand_dims(names, 1) == tf.constant(list(self.languages))
        ids = tf.gather(list(self.languages.values()), tf.argmax(known, axis=1))
        ids = tf.where(tf.reduce_any(known, axis=1), ids, self.unknown_id)
        first = tf.RaggedTensor.from_row_lengths(ids[named], tf.cast(named, tf.int64))
        return tf.concat([first, self._cut(rest)], axis=1)

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)])
    def _detokenize(self, ids):
        return self._operation().detokenize(ids)

    def _operation(self):
        return tensorflow_text.SentencepieceTokenizer(model=self.content)
