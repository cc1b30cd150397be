"""SentencePiece models as bytes: learning and renumbering them."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterable, Sequence

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.config import TokenizerConfig
from keras_transformer.text.spans import PIECES

SPECIAL_IDS = PAD_ID, START_ID, END_ID, UNKNOWN_ID = 0, 1, 2, 3
SPECIAL_NAMES = ("<pad>", "<s>", "</s>", "<unk>")
_Proto = sentencepiece_model_pb2.ModelProto
Piece = _Proto.SentencePiece
# The types that text can become.
_CUT = (Piece.NORMAL, Piece.USER_DEFINED, Piece.BYTE)
# SentencePiece's message about a text with fewer pieces, or with more characters.
_POSSIBLE_SIZE = re.compile(r"(?:size too high.*<=|required_chars. \d+ vs) (\d+)")


def cut_pieces(model: bytes) -> list[str]:
    """Returns the pieces that text can become, in order."""
    pieces = _Proto.FromString(model).pieces
    return [piece.piece for piece in pieces if piece.type in _CUT]


def renumbered(model: bytes, special: Sequence[int]) -> bytes:
    """Returns a model whose ids 0 to 3 are padding, start, end and unknown.

    `special` has the model's own ids of them, as `special_ids` returns them.
    """
    names = [piece.piece for piece in _Proto.FromString(model).pieces]
    first = []
    for number, name in zip(special, SPECIAL_NAMES, strict=True):
        is_own = number >= 0 and names[number] not in first
        while not is_own and name in names:
            name += "_"
        first.append(names[number] if is_own else name)
    return fitted(model, first + [name for name in names if name not in first])


def fitted(model: bytes, names: Sequence[str], hidden: Collection[str] = ()) -> bytes:
    """Returns a model with the piece `names[id]` for each id, the special four first.

    `names` include all pieces that text can become. Others become "unused", or if in
    `hidden` control symbols; one that would change the tokens is a `ValueError`.
    """
    proto = _Proto.FromString(model)
    known = {name: Piece(piece=name, type=Piece.CONTROL) for name in hidden}
    known |= {p.piece: p for p in proto.pieces if p.type != Piece.UNKNOWN}
    added = {name for name in names[4:] if name not in known}
    if proto.trainer_spec.model_type == sentencepiece_model_pb2.TrainerSpec.BPE:
        # SentencePiece merges an unused piece and only splits it at the end, when it
        # may have led to other merges.
        for name in added:
            for i in range(1, len(name)):
                if all(len(h) == 1 or h in known for h in (name[:i], name[i:])):
                    raise ValueError(
                        f"the SentencePiece model has no piece {name!r}, and byte-pair "
                        "merges could produce it"
                    )
    pieces = [Piece(piece=name, type=Piece.CONTROL) for name in names[:4]]
    pieces[UNKNOWN_ID].type = Piece.UNKNOWN
    for name in names[4:]:
        pieces.append(known.get(name) or Piece(piece=name, type=Piece.UNUSED))
    del proto.pieces[:]
    proto.pieces.extend(pieces)
    spec = proto.trainer_spec
    spec.vocab_size = len(pieces)
    spec.pad_id, spec.bos_id, spec.eos_id, spec.unk_id = SPECIAL_IDS
    spec.pad_piece, spec.bos_piece, spec.eos_piece, spec.unk_piece = names[:4]
    return proto.SerializeToString()


def learned(
    read: Callable[[], Iterable[str]], config: TokenizerConfig, size: int | None = None
) -> bytes:
    """Returns the model learned from the sentences of `read()`.

    It has `config.vocabulary_size` pieces, or the nearest possible number, `size`.
    """
    size = size or config.vocabulary_size
    sides = 2 if config.joint_vocabulary else 1
    model = io.BytesIO()
    failures = []

    def guarded():
        # SentencePiece replaces an error of its iterator; this keeps the original.
        try:
            yield from read()
        except Exception as error:
            failures.append(error)
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=guarded(),
            model_writer=model,
            model_type=config.algorithm,
            vocab_size=size,
            byte_fallback=config.byte_fallback,
            character_coverage=min(config.character_coverage, 1.0),
            normalization_rule_name=config.normalization,
            # SentencePiece rejects a sample of 100 sentences or fewer.
            input_sentence_size=max(101, config.learning_sentences * sides),
            pad_id=PAD_ID,
            bos_id=START_ID,
            eos_id=END_ID,
            unk_id=UNKNOWN_ID,
            user_defined_symbols=list(PIECES),
            # The unigram vocabulary depends on the number of threads.
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        if failures:
            raise failures[0] from None
        possible = _POSSIBLE_SIZE.search(str(error))
        if possible and int(possible[1]) != size:
            return learned(read, config, int(possible[1]))
        if "sentences_.empty()" in str(error):
            raise ValueError(
                "There is no text to learn a vocabulary from: every sentence is empty "
                "or longer than 4192 bytes."
            ) from error
        raise ValueError(
            f"SentencePiece could not learn a vocabulary: {error}. Received: "
            f"vocabulary_size={size}"
        ) from error
    return model.getvalue()
