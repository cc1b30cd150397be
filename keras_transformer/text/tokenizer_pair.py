"""The tokenizers of source and target."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer.config import TokenizerConfig
from keras_transformer.config.options import check_number
from keras_transformer.files import write_json
from keras_transformer.text.pairs import open_pairs
from keras_transformer.text.parallel_text import SIDES
from keras_transformer.text.sentencepiece_model import learned
from keras_transformer.text.sentences import learned_abbreviations
from keras_transformer.text.tokenizer import Subwords, Tokenizer, as_tokenizer

_ABBREVIATIONS = "abbreviations.txt"
# Of which abbreviations are learned: enough, and soon read.
_SENTENCES = 200_000


class TokenizerPair:
    """The tokenizers of source and target.

    Args:
        source: Tokenizer of the source, a `Subwords`.
        target: Tokenizer of the target. The vocabulary is joint if its pieces are the
            source's.
        config: Options that the vocabularies were learned with, if known.
        abbreviations: Words of the source, without their point, that end no sentence.

    Example:
        >>> tokenizers = learn_tokenizers(pairs, TokenizerConfig())
        >>> tokenizers.save("run/tokenizer")
        >>> tokenizers = TokenizerPair.of("source.spm", "target.spm")  # made elsewhere
    """

    def __init__(
        self,
        source: Subwords,
        target: Subwords,
        config: TokenizerConfig | None = None,
        abbreviations: Sequence[str] = (),
    ) -> None:
        size = source.vocabulary_size
        is_joint = source is target or (
            size == target.vocabulary_size
            and source.pieces(range(size)) == target.pieces(range(size))
        )
        config = config or TokenizerConfig(max(8, size))
        self.source = source
        self.target = target
        self.config = config.replace(joint_vocabulary=is_joint)
        self.abbreviations = tuple(abbreviations)

    def __repr__(self):
        sides = dict.fromkeys((self.source, self.target))
        sizes = (f"{side.vocabulary_size:,} pieces" for side in sides)
        return f"<TokenizerPair: {' and '.join(sizes)}>"

    @classmethod
    def of(cls, source: Any, target: Any = None) -> TokenizerPair:
        """Returns a pair of existing tokenizers.

        Args:
            source: A SentencePiece model (its file, the content or a processor), a
                KerasHub tokenizer, or a `Subwords`. Padding, start, end and unknown
                become the ids 0 to 3; other pieces keep their order.
            target: The same for the target; default the source's.

        Raises:
            FileNotFoundError: If a file is missing.
            TypeError: If an argument is none of these.
            ValueError: If a file is damaged or of another kind.
        """
        source = as_tokenizer(source)
        return cls(source, source if target is None else as_tokenizer(target))

    @classmethod
    def load(cls, directory: str | Path) -> TokenizerPair:
        """Reads the directory that `save` wrote.

        Raises:
            FileNotFoundError: If a file is missing.
            ValueError: If a file is damaged.
        """
        directory = Path(directory)
        config = TokenizerConfig.load(directory / "tokenizer.json")
        sides = [as_tokenizer(path) for path in _files(directory)]
        words = directory / _ABBREVIATIONS
        abbreviations = words.read_text("utf-8").split() if words.exists() else ()
        return cls(sides[0], sides[-1], config, abbreviations)

    def save(self, directory: str | Path) -> None:
        """Writes joint.model, or source.model and target.model, and tokenizer.json.

        A KerasHub tokenizer has the suffix .json in place of .model. The words in
        abbreviations.txt, one a line, may be changed by hand.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        written = self.save_files(directory).values()
        for name, end in itertools.product(("joint", *SIDES), (".model", ".json")):
            if name + end not in written:
                (directory / f"{name}{end}").unlink(missing_ok=True)
        write_json(directory / "tokenizer.json", self.config.to_dict())
        path = directory / _ABBREVIATIONS
        if self.abbreviations:
            path.write_text("\n".join(self.abbreviations) + "\n", encoding="utf-8")
        else:
            path.unlink(missing_ok=True)

    def save_files(self, directory: Path) -> dict[str, str]:
        """Writes the tokenizers; returns the name of the file of each side."""
        names = {}
        for side in SIDES:
            tokenizer = getattr(self, side)
            name = "joint" if self.source is self.target else side
            names[side] = name + tokenizer.suffix
            tokenizer.save(directory / names[side])
        return names

    def same_as(self, other: TokenizerPair) -> bool:
        """Returns whether another pair has the same tokenizers."""
        contents = (self.source.content, self.target.content)
        return contents == (other.source.content, other.target.content)

    @property
    def carry_spans(self) -> bool:
        """Whether both have the pieces that stand for spans."""
        return bool(self.source.spans and self.target.spans)

    @property
    def vocabulary_sizes(self) -> dict[str, int]:
        """`source_vocabulary_size` and `target_vocabulary_size`, a model's options.

        Example:
            >>> TransformerConfig.preset("tiny", **tokenizers.vocabulary_sizes)
        """
        return {
            "source_vocabulary_size": self.source.vocabulary_size,
            "target_vocabulary_size": self.target.vocabulary_size,
        }

    def check_sentencepiece(self, what: str) -> None:
        """Raises `ValueError` unless both are SentencePiece models without languages.

        `what` names the feature that needs them.
        """
        for side in SIDES:
            tokenizer = getattr(self, side)
            if not isinstance(tokenizer, Tokenizer):
                raise ValueError(
                    f"{what} needs SentencePiece tokenizers; a SavedModel takes any. "
                    f"Received: a {type(tokenizer).__name__} for the {side}"
                )
            if tokenizer.languages:
                raise ValueError(
                    f"{what} does not support target languages at the start of a text, "
                    f"such as {next(iter(tokenizer.languages))}; a SavedModel does. "
                    f"Received: a {side} tokenizer with {len(tokenizer.languages)}"
                )


def learn_tokenizers(
    text: Any,
    config: TokenizerConfig | None = None,
    bad_line_share: float = 0.01,
    robust: bool = False,
) -> TokenizerPair:
    """Learns one joint vocabulary from sentence pairs, or one for each side.

    Args:
        text: Pairs, as `open_pairs` returns or takes them.
        config: Size and kind of the vocabularies.
        bad_line_share: Largest share of bad lines to skip, as in `DataConfig`.
        robust: Learn from a fifteenth of the sentences in capitals too, which a
            `robust` corpus shows.

    Returns:
        A `TokenizerPair`.

    Raises:
        ValueError: If there are too many bad lines, a file is damaged, or the two sides
            differ in number of lines.

    Example:
        >>> pairs = [("Two men are talking.", "Zwei Männer unterhalten sich."), ...]
        >>> tokenizers = learn_tokenizers(pairs, TokenizerConfig(vocabulary_size=4000))
    """
    check_number("bad_line_share", bad_line_share, minimum=0.0, maximum=1.0)
    text = open_pairs(text)
    config = config or TokenizerConfig()
    # Counting checks that the files are aligned.
    config = config.replace(vocabulary_size=config.size_for(text.count()))
    groups = [SIDES] if config.joint_vocabulary else [[side] for side in SIDES]
    tokenizers = []
    for sides in groups:
        read = functools.partial(_sentences, text, sides, bad_line_share, robust)
        tokenizers.append(Tokenizer(learned(read, config)))
    sentences = text.sentences(["source"], bad_line_share)
    abbreviations = learned_abbreviations(itertools.islice(sentences, _SENTENCES))
    return TokenizerPair(tokenizers[0], tokenizers[-1], config, abbreviations)


def _sentences(text, sides, bad_line_share, robust):
    """Yields the sentences of a vocabulary; an odd step takes those of both sides."""
    for number, sentence in enumerate(text.sentences(sides, bad_line_share)):
        yield sentence
        if robust and number % 15 == 0:
            yield sentence.upper()


def _files(directory):
    """Returns the tokenizer files of a directory: one, or source and target."""
    for names in (SIDES, ("joint",)):
        jsons = [directory / f"{name}.json" for name in names]
        paths = [p if p.exists() else p.with_suffix(".model") for p in jsons]
        if any(map(Path.exists, paths)):
            break
    return paths
