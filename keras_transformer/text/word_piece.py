"""WordPiece, as BERT's, in the TensorFlow graph, with KerasHub's tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import tensorflow as tf

from keras_transformer.text.special_names import special_names
from keras_transformer.text.subwords import UNKNOWN_ID, Subwords, as_utf8

# What Hugging Face's `BertNormalizer` does before KerasHub cuts at spaces of ASCII.
_CLEANING = ((r"[\t\n\r]", " "), (r"[\x00\x{fffd}\p{C}]", ""), (r"\p{Z}", " "))


class WordPieceTokenizer(Subwords):
    """A WordPiece vocabulary with our special ids; KerasHub's tokenizer inside.

    Ids 0 to 3 are padding, start, end and unknown; the other pieces follow in the order
    of their own ids. Cutting loses what lay between words: joined again, words have one
    space between them and none before `.`, `,`, `!` and `?`.

    Args:
        vocabulary: Pieces in the order of their ids.
        oov_token: The unknown piece.
        suffix_indicator: What pieces within a word begin with.
        lowercase: Whether text is lowercased.
        strip_accents: Whether accents are dropped.
        split_on_cjk: Whether each Chinese character is a word.
        cleaned: Whether invisible characters are dropped and any space is one, and
            lowercasing keeps "ß", as with Hugging Face's `BertNormalizer`. Otherwise
            text is cut as KerasHub's own `WordPieceTokenizer` cuts it.

    Raises:
        ValueError: If the vocabulary lacks `oov_token`.
    """

    suffix = ".json"

    def __init__(
        self,
        vocabulary: Sequence[str],
        oov_token: str = "[UNK]",
        suffix_indicator: str = "##",
        lowercase: bool = False,
        strip_accents: bool = False,
        split_on_cjk: bool = True,
        cleaned: bool = False,
    ):
        # Seconds to import, and few need it.
        import keras_hub

        self.cleaned, self.lowercase = cleaned, lowercase
        options = {
            "oov_token": oov_token,
            "suffix_indicator": suffix_indicator,
            "strip_accents": strip_accents,
            "split_on_cjk": split_on_cjk,
        }
        self._spec = {"vocabulary": list(vocabulary), **options}
        self._spec |= {"lowercase": lowercase, "cleaned": cleaned}
        self._layer = keras_hub.tokenizers.WordPieceTokenizer(
            list(vocabulary), lowercase=lowercase and not cleaned, **options
        )
        names = special_names(set(vocabulary), oov_token)
        self._pieces = [*names, *(p for p in vocabulary if p not in names)]
        ours = {piece: id for id, piece in enumerate(self._pieces)}
        self._ours_of_theirs = [ours[piece] for piece in vocabulary]
        theirs = {piece: id for id, piece in enumerate(vocabulary)}
        unknown = theirs[oov_token]
        self._theirs_of_ours = [theirs.get(piece, unknown) for piece in self._pieces]

    @property
    def content(self) -> bytes:
        """What `given.as_tokenizer` reads: JSON."""
        return json.dumps({"word_piece": self._spec}, ensure_ascii=False).encode()

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, the special ones counted."""
        return len(self._pieces)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns the piece of each id, for plots and debugging."""
        return [self._pieces[int(id)] for id in ids]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def _tokenize(self, texts):
        texts = as_utf8(texts)
        if self.cleaned:
            for pattern, replacement in _CLEANING:
                texts = tf.strings.regex_replace(texts, pattern, replacement)
            if self.lowercase:
                texts = tf.strings.lower(texts, encoding="utf-8")
        ids = self._layer.tokenize(texts)
        ids = tf.ragged.map_flat_values(tf.gather, self._ours_of_theirs, ids)
        # A special piece that a text spells is no special id.
        special = ids.values < UNKNOWN_ID
        return ids.with_values(tf.where(special, UNKNOWN_ID, ids.values))

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)])
    def _detokenize(self, ids):
        ids = tf.ragged.map_flat_values(tf.gather, self._theirs_of_ours, ids)
        return tf.strings.regex_replace(
            self._layer.detokenize(ids), r" ([.,!?])", r"\1"
        )
