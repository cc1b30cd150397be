"""SentencePiece models as bytes: learned, made from pieces, renumbered, fitted."""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterable, Sequence

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.config import TokenizerConfig
from keras_transformer.text.subwords import END_ID, PAD_ID, START_ID, UNKNOWN_ID

SPECIAL_IDS = (PAD_ID, START_ID, END_ID, UNKNOWN_ID)
_NAMES = ("<pad>", "<s>", "</s>", "<unk>")
_Proto = sentencepiece_model_pb2.ModelProto
Piece = _Proto.SentencePiece
# Those that a text can be cut into.
_CUT = (Piece.NORMAL, Piece.USER_DEFINED, Piece.BYTE)
_ALGORITHMS = {"unigram": 1, "bpe": 2, "word": 3}  # Of its TrainerSpec.


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


def language_symbols(
    processor: sentencepiece.SentencePieceProcessor,
) -> dict[str, int]:
    """Returns the ids of control symbols that name a language, such as ">>fra<<"."""
    names = {id: processor.id_to_piece(id) for id in range(processor.get_piece_size())}
    return {
        name: id
        for id, name in names.items()
        if is_language(name) and processor.is_control(id)
    }


def additions(
    processor: sentencepiece.SentencePieceProcessor,
) -> dict[str, int]:
    """Returns the ids of pieces that are not used to cut text: `fitted` adds them."""
    ids = range(processor.get_piece_size())
    return {processor.id_to_piece(id): id for id in ids if processor.is_unused(id)}


def is_language(name: str) -> bool:
    """Whether a piece's name is that of a target language, such as ">>fra<<"."""
    return name.startswith(">>") and name.endswith("<<") and len(name) > 4


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
        algorithm: "bpe", "unigram", or "word", which cuts at spaces alone.
        special: Names of padding, start, end and unknown.
        **options: Fields of SentencePiece's `NormalizerSpec`, and `byte_fallback` and
            `unk_surface` of its `TrainerSpec`.
    """
    proto = _Proto()
    spec = proto.trainer_spec
    spec.model_type = _ALGORITHMS[algorithm]
    spec.byte_fallback = options.pop("byte_fallback", False)
    if "unk_surface" in options:
        spec.unk_surface = options.pop("unk_surface")
    for name, value in options.items():
        setattr(proto.normalizer_spec, name, value)
    return _with_pieces(proto, [Piece(piece=name) for name in special], pieces)


def cut_pieces(model: bytes) -> list[str]:
    """Returns the pieces that a model cuts text into, in their order."""
    pieces = _Proto.FromString(model).pieces
    return [piece.piece for piece in pieces if piece.type in _CUT]


def fitted(model: bytes, names: Sequence[str], hidden: Collection[str] = ()) -> bytes:
    """Returns a model whose pieces are numbered as another vocabulary numbers them.

    Text is cut into the same pieces as before, of which those that are unknown to the
    model, by their characters, may be in the vocabulary: `additions` has them. Joined,
    they stand for themselves.

    Args:
        model: Serialised SentencePiece model.
        names: All pieces by their ids, the four special ones first; every piece that
            the model cuts text into is among them.
        hidden: Names without a piece that are control symbols: no text has them, and
            joined they are nothing.

    Raises:
        ValueError: If a name would change how the model cuts text.
    """
    proto = _Proto.FromString(model)
    known = {piece.piece: piece for piece in proto.pieces if piece.type in _CUT}
    controls = {p.piece for p in proto.pieces if p.type == Piece.CONTROL}
    others = known.keys() | controls | set(hidden)
    added = {name for name in names[4:] if name not in others}
    if proto.trainer_spec.model_type == _ALGORITHMS["bpe"]:
        _check_not_merged(added, known)
    rest = [
        known[name]
        if name in known
        else Piece(piece=name, type=Piece.UNUSED if name in added else Piece.CONTROL)
        for name in names[4:]
    ]
    return _with_pieces(proto, [Piece(piece=name) for name in names[:4]], rest)


def _check_not_merged(added, known):
    """Checks that byte-pair merges never come by a piece that is added.

    A piece that is not used is merged all the same and taken apart at the end, after
    it may have led to others.
    """
    for name in added:
        for i in range(1, len(name)):
            halves = name[:i], name[i:]
            if all(len(half) == 1 or half in known for half in halves):
                raise ValueError(
                    f"the vocabulary's piece {name!r} is none of the SentencePiece "
                    "model's, and its byte-pair merges would come by it"
                )


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
