"""Text to ids and back, in the TensorFlow graph.

A vocabulary is learned with SentencePiece and applied by the operation that stock
TensorFlow Serving has linked in, so that training and serving cut text alike.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import sentencepiece
import tensorflow as tf
import tensorflow_text

from keras_transformer.config import TokenizerConfig
from keras_transformer.files import replacing
from keras_transformer.text.digests import check_digests, write_digests

PAD_ID, START_ID, END_ID, UNKNOWN_ID = 0, 1, 2, 3


class Tokenizer:
    """One SentencePiece vocabulary.

    The ids 0, 1, 2 and 3 are padding, start, end and unknown. They are control
    symbols: no text is ever cut into them, the text "</s>" is ordinary characters.
    Text is normalised first, and loses its outer and doubled spaces. SentencePiece
    writes a space as "▁" (U+2581), so that this character comes back as a space.
    A `tf.function` that calls a tokenizer carries the vocabulary within its graph: it
    can be saved as a SavedModel with nothing else to track.
    Method: Kudo and Richardson, 2018, https://arxiv.org/abs/1808.06226.

    Args:
        model: Serialised SentencePiece model, the content of a `.model` file.
        origin: Name of the model in error texts.

    Raises:
        ValueError: If `model` is no SentencePiece model or has other special ids.

    Example:
        >>> tokenizer = Tokenizer.learn(sentences, TokenizerConfig())
        >>> ids = tokenizer.tokenize(["Two young men."])
        >>> tokenizer.detokenize(ids)
        <tf.Tensor: shape=(1,), dtype=string, numpy=array([b'Two young men.'])>
    """

    pad_id, start_id, end_id, unknown_id = PAD_ID, START_ID, END_ID, UNKNOWN_ID

    def __init__(self, model: bytes, origin: str = "`model`"):
        self._model = model
        self._processor = _processor(model, origin)

    @classmethod
    def learn(cls, sentences: Iterable[str], config: TokenizerConfig) -> Tokenizer:
        """Learns a vocabulary; the same sentences always give the same one.

        `config.vocabulary_size` counts everything: the 4 special ids, the 256 bytes
        if `config.byte_fallback` is on, the single characters and the longer pieces.
        SentencePiece leaves sentences beyond 4192 bytes out of the learning, and takes
        a sample of at most `config.learning_sentences` (in memory), but at least 101.

        Args:
            sentences: Text, read once.
            config: Size and kind of the vocabulary.

        Returns:
            A `Tokenizer`.

        Raises:
            ValueError: If the text cannot support the vocabulary.
        """
        return cls(_learn(sentences, config, config.learning_sentences))

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Reads a SentencePiece `.model` file."""
        return cls(Path(path).read_bytes(), origin=str(path))

    def save(self, path: str | Path):
        """Writes the `.model` file, whole or not at all."""
        _write(Path(path), self._model)

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, the special ones and the bytes counted."""
        return self._processor.get_piece_size()

    def tokenize(self, texts) -> tf.RaggedTensor:
        """Cuts texts into pieces, without start and end.

        Args:
            texts: Strings, shape [B]; bytes that are not UTF-8 count as U+FFFD.

        Returns:
            Ragged int32 ids, shape [B, None].
        """
        return self._tokenize(texts)

    def sample(self, texts: Sequence[str], rate: float) -> list[np.ndarray]:
        """Cuts training texts into random pieces, for a model that spells robustly.

        SentencePiece draws them, others in every call and in every process: BPE-dropout
        (Provilkov et al., 2020, https://arxiv.org/abs/1910.13267) for a vocabulary
        learned with `algorithm` "bpe"; for "unigram" a segmentation x with probability
        proportional to P(x)^`rate` (Kudo, 2018, https://arxiv.org/abs/1804.10959,
        section 3.3, whose alpha this is). `detokenize` gives the text as ever.

        Args:
            texts: Strings.
            rate: Share of the merges left out, or alpha; above 0 and below 1.

        Returns:
            int32 ids of each text, without start and end, shape [None] each.

        Raises:
            ValueError: If `rate` is out of range.
        """
        if not 0 < rate < 1:
            raise ValueError(
                f"`rate` must be above 0 and below 1. Received: rate={rate}"
            )
        # -1: among all segmentations, not the n best.
        rows = self._processor.encode(
            list(texts), enable_sampling=True, nbest_size=-1, alpha=rate, num_threads=1
        )
        return [np.array(row, np.int32) for row in rows]

    def detokenize(self, ids) -> tf.Tensor:
        """Joins pieces to texts.

        Args:
            ids: Ids, a dense or ragged integer tensor of shape [B, T]. Padding and
                start ids vanish, and so does all from the first end id of a row on.

        Returns:
            Strings, shape [B].
        """
        if isinstance(ids, tf.RaggedTensor):
            ids = ids.to_tensor(self.pad_id)
        ids = tf.cast(ids, tf.int32)
        ended = tf.cumsum(tf.cast(ids == self.end_id, tf.int32), axis=1) > 0
        special = (ids == self.pad_id) | (ids == self.start_id)
        kept = tf.ragged.boolean_mask(ids, ~(ended | special))
        return self._detokenize(kept)

    def piece_strings(self, ids) -> tf.Tensor:
        """Returns the piece of each id, as `pieces` does, inside a graph.

        Args:
            ids: Integer tensor of any shape.

        Returns:
            Strings of the same shape, "" for padding.
        """
        pieces = self.pieces(range(self.vocabulary_size))
        pieces[self.pad_id] = ""
        return tf.gather(tf.constant(pieces), ids)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns the piece of each id, for plots and debugging."""
        return [self._processor.id_to_piece(int(id)) for id in ids]

    # The operation lives in these graphs and not in an attribute, because one made
    # outside of a graph dies when TensorFlow drops its cache of kernels, which
    # `keras.utils.set_random_seed` and `tf.random.set_seed` make it do.

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def _tokenize(self, texts):
        return self._operation().tokenize(texts)

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)])
    def _detokenize(self, ids):
        return self._operation().detokenize(ids)

    def _operation(self):
        return tensorflow_text.SentencepieceTokenizer(model=self._model)


class TokenizerPair:
    """The tokenizers of the source and of the target side.

    Args:
        source: Tokenizer of the source.
        target: Tokenizer of the target; the same object if the vocabulary is joint.
        config: Options that the vocabularies were learned with.

    Raises:
        ValueError: If the tokenizers are not as joint as `config` says.

    Example:
        >>> tokenizers = TokenizerPair.learn(english, german, TokenizerConfig())
        >>> tokenizers.save("run/tokenizer")
    """

    def __init__(self, source: Tokenizer, target: Tokenizer, config: TokenizerConfig):
        if config.joint_vocabulary != (source is target):
            raise ValueError(
                "`source` and `target` must be one tokenizer if and only if the "
                "vocabulary is joint. Received: "
                f"joint_vocabulary={config.joint_vocabulary}, "
                f"{'one tokenizer' if source is target else 'two tokenizers'}"
            )
        self.source = source
        self.target = target
        self.config = config

    @classmethod
    def learn(
        cls, sources: Iterable[str], targets: Iterable[str], config: TokenizerConfig
    ) -> TokenizerPair:
        """Learns one joint vocabulary or two, as `config.joint_vocabulary` says.

        Args:
            sources: Text of the source side, read once.
            targets: Text of the target side, read once, after `sources`.
            config: Size and kind of the vocabularies.

        Returns:
            A `TokenizerPair`.

        Raises:
            ValueError: If the text cannot support a vocabulary.
        """
        if config.joint_vocabulary:
            both = itertools.chain(sources, targets)
            joint = Tokenizer(_learn(both, config, 2 * config.learning_sentences))
            return cls(joint, joint, config)
        return cls(
            Tokenizer.learn(sources, config), Tokenizer.learn(targets, config), config
        )

    def save(self, directory: str | Path):
        """Writes joint.model, or source.model and target.model, and tokenizer.json."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        paths = _files(directory, self.config)  # One, if the vocabulary is joint.
        for path, side in zip(paths, (self.source, self.target), strict=False):
            side.save(path)
        _write(directory / "tokenizer.json", self.config.to_json().encode("utf-8"))

    def save_digests(self, directory: str | Path):
        """Writes beside what `save` wrote that the model there is made with it."""
        write_digests(_files(Path(directory), self.config))

    @classmethod
    def load(cls, directory: str | Path) -> TokenizerPair:
        """Reads what `save` wrote.

        Raises:
            ValueError: If a file is damaged or not the one that `save_digests` saw.
        """
        directory = Path(directory)
        config = TokenizerConfig.load(directory / "tokenizer.json")
        paths = _files(directory, config)
        check_digests(paths)
        sides = [Tokenizer.load(path) for path in paths]
        return cls(sides[0], sides[-1], config)


def _files(directory, config):
    """Returns the paths of the source's and the target's model, or of the joint one."""
    names = ("joint",) if config.joint_vocabulary else ("source", "target")
    return [directory / f"{name}.model" for name in names]


def _learn(sentences, config, most_sentences):
    """Returns the serialised SentencePiece model learned from `sentences`."""
    model = io.BytesIO()
    failures = []

    def guarded():
        # SentencePiece turns an error of its iterator into text; keep the original.
        try:
            yield from sentences
        except Exception as error:
            failures.append(error)
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=guarded(),
            model_writer=model,
            model_type=config.algorithm,
            vocab_size=config.vocabulary_size,
            byte_fallback=config.byte_fallback,
            character_coverage=min(config.character_coverage, 1.0),
            normalization_rule_name=config.normalization,
            # SentencePiece rejects a sample of 100 sentences or fewer.
            input_sentence_size=max(101, most_sentences),
            pad_id=PAD_ID,
            bos_id=START_ID,
            eos_id=END_ID,
            unk_id=UNKNOWN_ID,
            # The unigram vocabulary depends on the number of threads.
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        if failures:
            raise failures[0] from None
        raise ValueError(_explain(str(error), config)) from error
    return model.getvalue()


def _explain(message, config):
    """Returns SentencePiece's error `message` in terms of our options."""
    received = f"Received: vocabulary_size={config.vocabulary_size}"
    if match := re.search(r"Vocabulary size too high.*<= (\d+)", message):
        return (
            f"`vocabulary_size` must be at most {match[1]} for this text, which has "
            f"no more pieces; lower it or give more text. {received}"
        )
    if match := re.search(r"smaller than required_chars. \d+ vs (\d+)", message):
        return (
            f"`vocabulary_size` must be at least {match[1]} for this text: the special "
            "ids, the bytes (`byte_fallback`) and its characters "
            f"(`character_coverage`) all need a place. {received}"
        )
    if "sentences_.empty()" in message:
        return (
            "There is no text to learn a vocabulary from: every sentence is empty or "
            "longer than 4192 bytes."
        )
    return f"SentencePiece could not learn a vocabulary: {message}. {received}"


def _processor(model, origin):
    """Returns the SentencePiece processor of `model`, checked for our special ids."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
        raise ValueError(f"{origin} is not a SentencePiece model.") from error
    special = (
        processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id()
    )  # fmt: skip
    if special != (PAD_ID, START_ID, END_ID, UNKNOWN_ID):
        raise ValueError(
            f"{origin} must have the ids 0, 1, 2 and 3 for padding, start, end and "
            f"unknown. Received: {special}"
        )
    return processor


def _write(path, content):
    with replacing(path) as temporary:
        temporary.write_bytes(content)
