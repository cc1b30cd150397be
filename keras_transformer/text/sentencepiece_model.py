"""SentencePiece models as bytes: learned from text, made from pieces, renumbered."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.config import TokenizerConfig
from keras_transformer.text.subwords import END_ID, PAD_ID, START_ID, UNKNOWN_ID

SPECIAL_IDS = (PAD_ID, START_ID, END_ID, UNKNOWN_ID)
_NAMES = ("<pad>", "<s>", "</s>", "<unk>")
_Proto = sentencepiece_model_pb2.ModelProto
Piece = _Proto.SentencePiece


def loaded(model: bytes, origin: str) -> sentencepiece.SentencePieceProcessor:
    """Returns the SentencePiece processor of a model.

    Raises:
        ValueError: If `model` is no SentencePiece model; `origin` names it.
    """
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
        raise ValueError(f"{origin} is not a SentencePiece model.") from error
    return processor


def special_ids(processor: sentencepiece.SentencePieceProcessor) -> tuple:
    """Returns the ids of padding, start, end and unknown; -1 is none."""
    return (
        processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id()
    )  # fmt: skip


def renumbered(model: bytes, special: Sequence[int]) -> bytes:
    """Returns a model whose ids 0 to 3 are padding, start, end and unknown.

    The other pieces follow in their order. Text is cut into the same pieces: neither
    the pieces nor their scores change. What the model lacks is added.

    Args:
        model: Serialised SentencePiece model.
        special: Its ids of padding, start, end and unknown; -1 is none.
    """
    proto = _Proto.FromString(model)
    pieces = list(proto.pieces)
    names = {piece.piece for piece in pieces}
    first, taken = [], set()
    for number, name in zip(special, _NAMES, strict=True):
        if number < 0 or number in taken:
            while name in names:
                name += "_"
            first.append(Piece(piece=name, type=Piece.CONTROL))
        else:
            taken.add(number)
            first.append(pieces[number])
    rest = [piece for number, piece in enumerate(pieces) if number not in taken]
    return _with_pieces(proto, first, rest)


def made_of(
    pieces: Sequence[Piece], algorithm: str, special: Sequence[str] = _NAMES, **options
) -> bytes:
    """Returns a model of some pieces, which follow the four special ones.

    Args:
        pieces: All but the special ones, with their scores.
        algorithm: "bpe" or "unigram".
        special: Names of padding, start, end and unknown.
        **options: Fields of SentencePiece's `NormalizerSpec`, and `byte_fallback`.
    """
    proto = _Proto()
    spec = proto.trainer_spec
    spec.model_type = {"unigram": spec.UNIGRAM, "bpe": spec.BPE}[algorithm]
    spec.byte_fallback = options.pop("byte_fallback", False)
    for name, value in options.items():
        setattr(proto.normalizer_spec, name, value)
    return _with_pieces(proto, [Piece(piece=name) for name in special], pieces)


def _with_pieces(proto, special, rest):
    """Returns the serialised model with the four special pieces first."""
    for piece in special[:3]:
        piece.type = Piece.CONTROL
    special[3].type = Piece.UNKNOWN
    pieces = [*special, *rest]
    del proto.pieces[:]
    proto.pieces.extend(pieces)
    spec = proto.trainer_spec
    spec.vocab_size = len(pieces)
    spec.pad_id, spec.bos_id, spec.eos_id, spec.unk_id = SPECIAL_IDS
    spec.pad_piece, spec.bos_piece, spec.eos_piece, spec.unk_piece = (
        piece.piece for piece in special
    )
    return proto.SerializeToString()


def learned(
    sentences: Iterable[str], config: TokenizerConfig, most_sentences: int
) -> bytes:
    """Returns the serialised SentencePiece model learned from some text.

    Args:
        sentences: Text, read once.
        config: Size and kind of the vocabulary.
        most_sentences: Sentences to learn from, at most.

    Raises:
        ValueError: If the text does not suit the vocabulary's size.
    """
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
