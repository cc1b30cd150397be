"""The tokenizers of the two sides of a corpus."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from keras_transformer.config import TokenizerConfig
from keras_transformer.files import replacing
from keras_transformer.text.digests import check_digests, write_digests
from keras_transformer.text.given import as_tokenizer
from keras_transformer.text.sentencepiece_model import learned
from keras_transformer.text.subwords import Subwords
from keras_transformer.text.tokenizer import Tokenizer


class TokenizerPair:
    """The tokenizers of the source and of the target side.

    Args:
        source: Tokenizer of the source.
        target: Tokenizer of the target; the same object if the vocabulary is joint, or
            another one with the same pieces: the two sides may be cut differently.
        config: Options that the vocabularies were learned with, or `None` if they were
            not learned here.

    Raises:
        ValueError: If there is one vocabulary and `config` says two, or the reverse.

    Example:
        >>> tokenizers = TokenizerPair.learn(english, german, TokenizerConfig())
        >>> tokenizers.save("run/tokenizer")
        >>> tokenizers = TokenizerPair.of("tokenizer.json")  # made elsewhere
    """

    def __init__(
        self,
        source: Subwords,
        target: Subwords,
        config: TokenizerConfig | None = None,
    ) -> None:
        if config is None:
            size = max(8, source.vocabulary_size)
            config = TokenizerConfig(size, joint_vocabulary=source is target)
        is_one = source is target
        if config.joint_vocabulary != is_one and not (
            config.joint_vocabulary and _same_pieces(source, target)
        ):
            raise ValueError(
                "`source` and `target` must be one tokenizer, or two with the same "
                "pieces, if and only if the vocabulary is joint. Received: "
                f"joint_vocabulary={config.joint_vocabulary}, "
                f"{'one tokenizer' if is_one else 'two tokenizers'}"
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
            ValueError: If the text does not suit a vocabulary's size.
        """
        if config.joint_vocabulary:
            both = itertools.chain(sources, targets)
            joint = Tokenizer(learned(both, config, 2 * config.learning_sentences))
            return cls(joint, joint, config)
        return cls(
            Tokenizer.learn(sources, config), Tokenizer.learn(targets, config), config
        )

    @classmethod
    def of(cls, source: Any, target: Any = None) -> TokenizerPair:
        """Returns tokenizers that were made elsewhere.

        Each is a SentencePiece model with any ids, a tokenizer of Hugging Face or a
        `WordPieceTokenizer`, `BytePairTokenizer` or `SentencePieceTokenizer` of
        KerasHub: the object or its file, a `.model` or a `tokenizer.json`. Its pieces
        keep their order; padding, start, end and unknown become the ids 0 to 3.

        Args:
            source: Tokenizer of the source.
            target: Tokenizer of the target; by default one for both sides.

        Returns:
            A `TokenizerPair`.

        Raises:
            FileNotFoundError: If a file is missing.
            ImportError: If a library that reads it is not installed.
            TypeError: If it is none of these.
            ValueError: If a file is damaged or of another kind.
        """
        source = as_tokenizer(source)
        return cls(source, source if target is None else as_tokenizer(target))

    @property
    def vocabulary_sizes(self) -> dict[str, int]:
        """`source_vocabulary_size` and `target_vocabulary_size`, for a model's config.

        Example:
            >>> TransformerConfig.preset("tiny", **tokenizers.vocabulary_sizes)
        """
        return {
            "source_vocabulary_size": self.source.vocabulary_size,
            "target_vocabulary_size": self.target.vocabulary_size,
        }

    def check_in_graph(self) -> None:
        """Raises `ValueError` unless both can be part of a graph that is saved."""
        for side in ("source", "target"):
            if problem := getattr(self, side).graph_problem:
                raise ValueError(
                    f"The {side} tokenizer cannot be exported: {problem}. It trains "
                    "and translates in Python; for an export take another."
                )

    def check_sentencepiece(self, what: str) -> None:
        """Raises `ValueError` unless both are SentencePiece models.

        Args:
            what: What needs them, for the message.
        """
        for side in ("source", "target"):
            tokenizer = getattr(self, side)
            if not isinstance(tokenizer, Tokenizer):
                raise ValueError(
                    f"{what} cuts text with SentencePiece alone, so the tokenizers "
                    "must be SentencePiece models; a SavedModel has others too. "
                    f"Received: a {type(tokenizer).__name__} for the {side}"
                )
            if tokenizer.languages:
                raise ValueError(
                    f"{what} has no target languages at the start of a text, such as "
                    f"{next(iter(tokenizer.languages))}; a SavedModel has. Received: a "
                    f"{side} tokenizer with {len(tokenizer.languages)} of them"
                )

    def save(self, directory: str | Path) -> None:
        """Writes joint.model, or source.model and target.model, and tokenizer.json.

        What is no SentencePiece model is a .json in place of the .model.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for name, side in self._sides().items():
            side.save(directory / f"{name}{side.suffix}")
            other = {".model": ".json", ".json": ".model"}[side.suffix]
            (directory / f"{name}{other}").unlink(missing_ok=True)
        with replacing(directory / "tokenizer.json") as temporary:
            temporary.write_bytes(self.config.to_json().encode("utf-8"))

    def _sides(self):
        """Returns the tokenizers by the names of their files, without the end."""
        if self.source is self.target:
            return {"joint": self.source}
        return {"source": self.source, "target": self.target}

    def save_digests(self, directory: str | Path) -> None:
        """Writes digests of what `save` wrote; call it once the model is saved, too."""
        write_digests(_files(Path(directory), self.config))

    def same_as(self, other: TokenizerPair) -> bool:
        """Returns whether another pair cuts and numbers text as this one does."""
        ours, theirs = self._sides(), other._sides()
        return ours.keys() == theirs.keys() and all(
            ours[name].content == theirs[name].content for name in ours
        )

    @classmethod
    def load(cls, directory: str | Path) -> TokenizerPair:
        """Reads what `save` wrote.

        Raises:
            ValueError: If a file is damaged or differs from its digest.
        """
        directory = Path(directory)
        config = TokenizerConfig.load(directory / "tokenizer.json")
        paths = _files(directory, config)
        check_digests(paths)
        sides = [as_tokenizer(path) for path in paths]
        return cls(sides[0], sides[-1], config)


def _same_pieces(source, target):
    """Whether two tokenizers number the same pieces alike."""
    size = source.vocabulary_size
    return size == target.vocabulary_size and (
        source.pieces(range(size)) == target.pieces(range(size))
    )


def _files(directory, config):
    """Returns the paths of the source's and the target's file, or of the joint one."""
    are_two = any((directory / f"source.{end}").exists() for end in ("model", "json"))
    is_one = config.joint_vocabulary and not are_two
    names = ("joint",) if is_one else ("source", "target")
    paths = [
        (directory / f"{name}.model", directory / f"{name}.json") for name in names
    ]
    return [json if json.exists() else model for model, json in paths]
