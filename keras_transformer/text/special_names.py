"""The names that vocabularies give to padding, start, end and unknown."""

from __future__ import annotations

from collections.abc import Container

_KNOWN = (
    ("<pad>", "[PAD]", "<|padding|>", "<|pad|>"),
    ("<s>", "[START]", "[CLS]", "[BOS]", "<bos>", "<start>", "<|startoftext|>"),
    ("</s>", "[END]", "[SEP]", "[EOS]", "<eos>", "<end>", "<|endoftext|>"),
    ("<unk>", "[UNK]", "<|unk|>"),
)


def special_names(vocabulary: Container[str], unknown: str | None = None) -> list[str]:
    """Returns the names of padding, start, end and unknown.

    Args:
        vocabulary: Pieces. A special one that is not among them gets the usual name.
        unknown: Name of the unknown piece, if the vocabulary says it.

    Example:
        >>> special_names({"[PAD]", "[UNK]", "a"})
        ['[PAD]', '<s>', '</s>', '[UNK]']
    """
    names = [next((n for n in kind if n in vocabulary), kind[0]) for kind in _KNOWN]
    return names if unknown is None else [*names[:3], unknown]
