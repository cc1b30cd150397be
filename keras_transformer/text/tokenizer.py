"""Tokenizers in the TensorFlow graph: SentencePiece and KerasHub.

SentencePiece runs as an operation that stock TensorFlow Serving includes, so that
training and serving tokenise alike.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import sentencepiece
import tensorflow as tf

from keras_transformer.config import TokenizerConfig
from keras_transformer.files import replacing
from keras_transformer.text import keras_hub_private
from keras_transformer.text.sentencepiece_model import (
    END_ID,
    PAD_ID,
    SPECIAL_IDS,
    SPECIAL_NAMES,
    START_ID,
    UNKNOWN_ID,
    learned,
    renumbered,
)
from keras_transformer.text.spans import PIECES

try:
    import tensorflow_text
except ImportError as error:
    raise ImportError(
        "Tokenizers need tensorflow-text, which cannot be imported: pip install "
        "'tensorflow-text>=2.20,!=2.21.0,<2.22'. On Windows it needs the Subsystem for "
        "Linux (WSL). Layers, models and `fit` on arrays work without it."
    ) from error

# RE2's pattern of the name of a target language in OPUS-MT's models.
_LANGUAGE = r">>(?s:.*?)<<"


class Subwords:
    """Base class of the tokenizers.

    The ids 0 to 3 are padding, start, end and unknown; text never becomes one of the
    first three. A subclass has `_tokenize`, `_detokenize`, `pieces` and these:

    Attributes:
        content: Content of the tokenizer's file, bytes.
        suffix: Suffix of the file's name.
        tables: Resources that a `tf.Module` must hold to be saved with the graph.
        spans: Ids of the `PIECES` that stand for spans; none if it has not all of them.
    """

    pad_id, start_id, end_id, unknown_id = SPECIAL_IDS
    tables: Sequence[Any] = ()
    spans: Sequence[int] = ()
    content: bytes
    suffix: str

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, including the special ones."""
        raise NotImplementedError

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns the piece of each id."""
        raise NotImplementedError

    def save(self, path: str | Path) -> None:
        """Writes the tokenizer's file, whole or not at all."""
        with replacing(Path(path)) as temporary:
            temporary.write_bytes(self.content)

    def tokenize(self, texts: str | Sequence[str] | tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of texts, without start and end.

        Args:
            texts: Strings, shape [B]. Invalid UTF-8 becomes U+FFFD.

        Returns:
            Ragged int32 ids, shape [B, None].
        """
        try:
            return self._tokenize(texts)
        except TypeError as error:
            raise TypeError(
                "`texts` must be strings, and a lone surrogate is no character. "
                f"Received: {texts!r:.100}"
            ) from error

    def detokenize(
        self, ids: tf.Tensor | tf.RaggedTensor | Sequence[Sequence[int]]
    ) -> tf.Tensor:
        """Returns the texts of ids.

        Args:
            ids: Dense or ragged integer tensor, shape [B, T]. Padding, start ids and
                everything from a row's first end id on are dropped.

        Returns:
            Strings, shape [B].
        """
        if isinstance(ids, tf.RaggedTensor):
            ids = ids.to_tensor(PAD_ID)
        ids = tf.cast(ids, tf.int32)
        ended = tf.cumsum(tf.cast(ids == END_ID, tf.int32), axis=1) > 0
        special = (ids == PAD_ID) | (ids == START_ID)
        return self._detokenize(tf.ragged.boolean_mask(ids, ~(ended | special)))

    def piece_strings(
        self, ids: tf.Tensor | tf.RaggedTensor | Sequence[Sequence[int]]
    ) -> tf.Tensor:
        """Returns the piece of each id, in the shape of `ids`; "" for padding."""
        pieces = self.pieces(range(self.vocabulary_size))
        pieces[PAD_ID] = ""
        return tf.gather(tf.constant(pieces), ids)


class Tokenizer(Subwords):
    """A SentencePiece tokenizer (Kudo and Richardson, 2018, arXiv 1808.06226).

    A model whose ids of padding, start, end and unknown are not 0 to 3 is renumbered;
    its other pieces keep their order. Text is normalised first, and loses leading,
    trailing and doubled spaces. SentencePiece writes a space as "▁" (U+2581), so a "▁"
    in a text becomes a space.

    Control symbols never match text: "</s>" is four ordinary characters. The exception
    is the name of a target language, such as ">>fra<<", at the start of a text: it
    becomes one id, or the unknown id if the model has other languages only. A run of
    unknown characters that spells a piece of the type "unused" becomes its id.

    Args:
        model: Content of a SentencePiece `.model` file.
        origin: Name of the model in error messages.

    Attributes:
        languages: Ids of the target languages by name.
        additions: Ids of the pieces of the type "unused" by name.

    Raises:
        ValueError: If `model` is not a SentencePiece model.

    Example:
        >>> tokenizer = Tokenizer.learn(sentences, TokenizerConfig())
        >>> ids = tokenizer.tokenize(["Two young men."])
        >>> tokenizer.detokenize(ids)
        <tf.Tensor: shape=(1,), dtype=string, numpy=array([b'Two young men.'])>
    """

    suffix = ".model"

    def __init__(self, model: bytes, origin: str = "`model`"):
        processor = loaded(model, origin)
        if (special := special_ids(processor)) != SPECIAL_IDS:
            model = renumbered(model, special)
            processor = loaded(model, origin)
        self.content = model
        self._processor = processor
        pieces = self.pieces(range(self.vocabulary_size))
        ids = {name: id for id, name in enumerate(pieces)}
        self.languages = {
            name: id
            for name, id in ids.items()
            if is_language(name) and processor.is_control(id)
        }
        if set(PIECES) <= ids.keys():
            self.spans = [ids[piece] for piece in PIECES]
        self.additions = {n: id for n, id in ids.items() if processor.is_unused(id)}
        if named := self.languages | self.additions:
            pairs = tf.lookup.KeyValueTensorInitializer(
                list(named), list(named.values()), tf.string, tf.int32
            )
            self.tables = [tf.lookup.StaticHashTable(pairs, UNKNOWN_ID)]

    @classmethod
    def learn(cls, sentences: Iterable[str], config: TokenizerConfig) -> Tokenizer:
        """Learns a vocabulary from sentences, which are held in memory.

        The same sentences always yield the same one.
        `config.vocabulary_size` includes the 4 special ids, the 8 `PIECES` of spans
        and, with `byte_fallback`, the 256 bytes. If the text has too few pieces or too
        many characters for it, the nearest possible size is learned. SentencePiece
        ignores sentences longer than 4192 bytes and samples `config.learning_sentences`
        (at least 101), or twice as many for a joint vocabulary.

        Raises:
            ValueError: If there is no text.
        """
        sentences = list(sentences)
        return cls(learned(lambda: sentences, config))

    @property
    def vocabulary_size(self) -> int:
        return len(self._processor)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._processor.id_to_piece(int(id)) for id in ids]

    # The operation is created inside these graphs: one created outside a graph fails
    # once `tf.random.set_seed` has made TensorFlow drop its cache of kernels.

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def _tokenize(self, texts):
        if not self.languages:
            return self._cut(texts)
        texts = _as_utf8(texts)  # Patterns only match UTF-8.
        named = tf.strings.regex_full_match(texts, f"(?s){_LANGUAGE}.*")
        names = tf.strings.regex_replace(texts, f"(?s)^({_LANGUAGE}).*$", r"\1")
        rest = tf.strings.regex_replace(texts, f"^{_LANGUAGE}", "")
        ids = self.tables[0].lookup(names[named])
        first = tf.RaggedTensor.from_row_lengths(ids, tf.cast(named, tf.int64))
        return tf.concat([first, self._cut(rest)], axis=1)

    def _cut(self, texts):
        """Returns ragged ids; unknown characters may spell a piece in `additions`."""
        ids = self._operation().tokenize(texts)
        if not self.additions:
            return ids
        strings = self._operation(tf.string).tokenize(texts)
        added = self.tables[0].lookup(strings.values)
        return ids.with_values(tf.where(ids.values == UNKNOWN_ID, added, ids.values))

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)])
    def _detokenize(self, ids):
        return self._operation().detokenize(ids)

    def _operation(self, out_type=tf.int32):
        return tensorflow_text.SentencepieceTokenizer(self.content, out_type)


def loaded(model: bytes, origin: str) -> sentencepiece.SentencePieceProcessor:
    """Returns the processor of a model; a `ValueError` names `origin`."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
        raise ValueError(f"{origin} is not a SentencePiece model.") from error
    return processor


def special_ids(processor: sentencepiece.SentencePieceProcessor) -> tuple:
    """Returns the ids of padding, start, end and unknown; -1 if there is none."""
    return (
        processor.pad_id(),
        processor.bos_id(),
        processor.eos_id(),
        processor.unk_id(),
    )


def is_language(name: str) -> bool:
    """Returns whether a piece names a target language, such as ">>fra<<"."""
    return name.startswith(">>") and name.endswith("<<") and len(name) > 4


class KerasHubTokenizer(Subwords):
    """A tokenizer of KerasHub, with the special ids 0 to 3 before its own.

    KerasHub's id n becomes n + 4, and its `oov_token`, if any, the unknown id. A
    `WordPieceTokenizer` does not keep the spaces of a text: `detokenize` puts one
    between words, but none before `.,!?`. A `BytePairTokenizer` caches every word.

    Raises:
        TypeError: If `layer` is not a tokenizer of KerasHub.
        ValueError: If it does not return ragged ids.
    """

    suffix = ".json"

    def __init__(self, layer: Any):
        import keras_hub  # Seconds to import, and few need it.

        if not isinstance(layer, keras_hub.tokenizers.Tokenizer):
            raise TypeError(
                "A tokenizer must be a SentencePiece model, its file or a tokenizer of "
                f"KerasHub. Received: {type(layer).__name__}"
            )
        if not keras_hub_private.is_ragged(layer):
            raise ValueError(
                "A tokenizer of KerasHub must return ragged ids: leave "
                "`sequence_length` and `split` at their defaults."
            )
        keras_hub_private.make_tables(layer)  # A graph would keep them to itself.
        self._layer = layer
        self.tables = keras_hub_private.tables_of(layer)
        oov = keras_hub_private.unknown_token(layer)
        self._unknown = -1 if oov is None else layer.token_to_id(oov)
        spec = keras.saving.serialize_keras_object(layer)
        spec["config"].pop("name", None)  # Keras numbers names within a process.
        spec["config"] |= keras_hub_private.omitted_options(layer)
        with tempfile.TemporaryDirectory() as folder:
            if hasattr(layer, "save_assets"):
                layer.save_assets(folder)
            files = sorted(Path(folder).iterdir())
            assets = {path.name: path.read_text("utf-8") for path in files}
        spec = {"keras_hub": spec, "assets": assets}
        self.content = json.dumps(spec, ensure_ascii=False).encode()

    @classmethod
    def read(cls, content: bytes, origin: str) -> KerasHubTokenizer:
        """Reads a tokenizer from a file's content; `origin` names it in errors."""
        import keras_hub  # noqa: F401  Registers its classes.

        try:
            spec = json.loads(content)
            layer = keras.saving.deserialize_keras_object(spec["keras_hub"])
            with tempfile.TemporaryDirectory() as folder:
                for name, text in spec["assets"].items():
                    Path(folder, Path(name).name).write_text(text, "utf-8")
                if spec["assets"]:
                    layer.load_assets(folder)
            return cls(layer)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{origin} is not a tokenizer file: {error}") from error

    @property
    def vocabulary_size(self) -> int:
        return self._layer.vocabulary_size() + 4

    def pieces(self, ids):
        name = self._layer.id_to_token
        return [SPECIAL_NAMES[id] if id < 4 else name(int(id) - 4) for id in ids]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def _tokenize(self, texts):
        ids = tf.cast(self._layer.tokenize(_as_utf8(texts)), tf.int32)
        known = tf.where(ids.values == self._unknown, UNKNOWN_ID, ids.values + 4)
        return ids.with_values(known)

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)])
    def _detokenize(self, ids):
        theirs = tf.where(ids.values == UNKNOWN_ID, self._unknown, ids.values - 4)
        ids = ids.with_values(theirs)
        ids = tf.ragged.boolean_mask(ids, ids >= 0)
        texts = _as_utf8(self._layer.detokenize(ids))
        if keras_hub_private.joins_words_by_spaces(self._layer):
            return tf.strings.regex_replace(texts, r" ([.,!?])", r"\1")
        return texts


def _as_utf8(texts):
    """Returns strings with U+FFFD in place of invalid UTF-8."""
    return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")


def as_tokenizer(given: Any) -> Subwords:
    """Returns the `Subwords` of anything that `TokenizerPair.of` takes."""
    if isinstance(given, Subwords):
        return given
    if isinstance(given, (str, os.PathLike)):
        content = Path(given).read_bytes()
        if content.lstrip().startswith(b"{"):
            return KerasHubTokenizer.read(content, str(given))
        return Tokenizer(content, str(given))
    if isinstance(given, bytes):
        return Tokenizer(given)
    if hasattr(given, "serialized_model_proto"):  # a SentencePieceProcessor
        return Tokenizer(given.serialized_model_proto())
    model = keras_hub_private.sentencepiece_model(given)
    return KerasHubTokenizer(given) if model is None else Tokenizer(model)
