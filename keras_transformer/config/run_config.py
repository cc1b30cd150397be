"""Options of a training run."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Self

from keras_transformer.config.model_config import TransformerConfig
from keras_transformer.config.options import (
    MOST_HYPOTHESES,
    MOST_TOKENS,
    Config,
    check_choice,
    check_number,
    documented,
    option,
)
from keras_transformer.config.training_config import TrainingConfig

# What cleaning looks for in training pairs, by its rules.
CLEANING = {
    "entities": "entities and misread quotation marks",
    "empty": "one side is empty",
    "control": "control characters",
    "mojibake": "characters that were read in a wrong encoding",
    "identical": "not translated",
    "script": "another script than nearly all pairs have there",
    "ratio": "one side is much too long for the other",
    "cut": "one side ends early, without the mark that ends the other",
    "duplicates": "the same pair again",
    "swapped": "each side is in the language of the other",
    "language": "one side is in another language than nearly all pairs have there",
}
# Enough for the 256 bytes and some letters.
_FEWEST_PIECES = 300


@documented
@dataclasses.dataclass(frozen=True)
class TokenizerConfig(Config):
    """How the SentencePiece vocabulary is learned from the training text."""

    vocabulary_size: int | None = option(
        None,
        "pieces of each vocabulary, special pieces and bytes included; the nearest "
        "number possible if the text is too small; default half as many as pairs, from "
        "300 to `most_pieces`",
        minimum=8,
        maximum=10**6,
    )
    most_pieces: int = option(
        10000, "most pieces where `vocabulary_size` is not given", minimum=300
    )
    algorithm: str = option("bpe", "sub-word algorithm", choices=("bpe", "unigram"))
    joint_vocabulary: bool = option(True, "one vocabulary for both languages")
    byte_fallback: bool = option(True, "spell unknown characters as bytes")
    character_coverage: float = option(
        1.0, "share of the characters that get a piece", minimum=0.9, maximum=1.0
    )
    normalization: str = option(
        "nmt_nfkc", "text normalisation", choices=("nmt_nfkc", "nfkc", "identity")
    )
    learning_sentences: int = option(
        1000000, "most sentences per side to learn the vocabulary from", minimum=1
    )

    def size_for(self, num_pairs: int) -> int:
        """Returns the number of pieces for a corpus of this size."""
        half = max(_FEWEST_PIECES, num_pairs // 2)
        return self.vocabulary_size or min(half, self.most_pieces)


@documented
@dataclasses.dataclass(frozen=True)
class DataConfig(Config):
    """How a corpus becomes batches."""

    batch_tokens: int | None = option(
        None,
        "tokens per batch on the longer side, padding counted; default 4096, or in a "
        "run on a GPU the paper's 25000",
        minimum=1,
    )
    max_length: int = option(
        128,
        "tokens per side, the end token counted; longer pairs are left out",
        minimum=2,
    )
    batch_shapes: int | None = option(
        None,
        "batch shapes, for each of which XLA compiles a step; default 6 with XLA, else "
        "one per length bucket",
        minimum=1,
    )
    bad_line_share: float = option(
        0.01,
        "largest share of bad lines to skip, long pairs not counted; unless it is 0, "
        "ten lines are always skipped",
        minimum=0.0,
        maximum=1.0,
    )
    replay: float = option(
        1.0,
        "pairs that the run of `init` was trained on, for each new pair of an epoch",
        minimum=0.0,
    )
    keep: str | None = option(
        None,
        "what cleaning keeps in spite of its rule, separated by commas: "
        f"{', '.join(CLEANING)}; or all",
    )

    def __post_init__(self):
        super().__post_init__()
        cleaning_rules(self.keep)


def cleaning_rules(keep: str | None) -> list[str]:
    """Returns the rules of cleaning without those to `keep`, separated by commas."""
    kept = keep.replace(" ", "").split(",") if keep else []
    for name in kept:
        check_choice("keep", name, (*CLEANING, "all"))
    return [name for name in CLEANING if not {name, "all"} & {*kept}]


@documented
@dataclasses.dataclass(frozen=True)
class DecodingConfig(Config):
    """How translations are decoded; the defaults are the paper's (section 6.1)."""

    beam_size: int = option(
        4, "hypotheses per sentence; 1 is greedy", minimum=1, maximum=MOST_HYPOTHESES
    )
    n_best: int | None = option(
        None, "translations that `nbest` of an export returns; default all", minimum=1
    )
    length_penalty: float = option(0.6, "alpha of the length penalty", minimum=0.0)
    length_penalty_form: str = option(
        "gnmt",
        "divisor of log-probabilities: ((5 + length) / 6)^alpha (gnmt) or length^alpha "
        "(power)",
        choices=("gnmt", "power"),
    )
    ends_within_beam: bool = option(
        False, "end an output only if that is one of the beam_size best continuations"
    )
    no_repeat_ngram_size: int = option(
        0, "repeat no n-gram of this size; 0 allows all", minimum=0, maximum=MOST_TOKENS
    )
    allow_unknown: bool = option(True, "allow the unknown piece in outputs")
    min_output_length: int = option(
        1, "shortest output (tokens, the end token counted)", minimum=1
    )
    max_output_length: int | None = option(
        None, "longest output (tokens, the end token counted)", minimum=1
    )
    max_extra_length: int = option(
        50, "most tokens of an output beyond its source", minimum=0, maximum=MOST_TOKENS
    )
    max_source_length: int = option(
        256,
        "longest sentence (tokens, its end counted); `translate` halves a longer one",
        minimum=2,
        maximum=MOST_TOKENS,
    )
    top_k: int | None = option(
        None, "sample from the k most probable tokens", minimum=1
    )
    top_p: float | None = option(
        None,
        "sample from the fewest most probable tokens with this total probability",
        above=0.0,
        maximum=1.0,
    )
    doubt_above: float = option(
        0.5,
        "share of wrong translations at its score above which one is doubtful",
        minimum=0.0,
        maximum=1.0,
    )
    doubt_steps: list | None = option(
        None,
        "that share by the score, as a run learns it: rows [lowest score, share], the "
        "scores ascending",
    )
    alignment_layer: int = option(
        -1, "decoder layer of alignments, counted from 0; -1 is the last"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.n_best is not None and self.n_best > self.beam_size:
            raise ValueError(
                "`n_best` must be from 1 to `beam_size`. Received: "
                f"n_best={self.n_best}, beam_size={self.beam_size}"
            )
        longest = self.max_output_length
        if longest is not None and self.min_output_length > longest:
            raise ValueError(
                "`min_output_length` must not exceed `max_output_length`. Received: "
                f"min_output_length={self.min_output_length}, "
                f"max_output_length={longest}"
            )

    @property
    def num_best(self) -> int:
        """Translations that `nbest` of an export returns."""
        return self.n_best or self.beam_size

    @property
    def longest_output(self) -> int:
        """Most tokens of any output, the end token counted."""
        longest = self.max_source_length + self.max_extra_length
        return min(longest, self.max_output_length or longest)


# For pairs of the verb `distill`. A GPU's larger batches learned 29,000 pairs worse.
_STUDENT = dict(
    most_pairs=math.inf,
    most_pieces=32_000,
    batch_tokens=4_096,
    norm_first=True,
    attention_dropout_rate=0.0,
    activation_dropout_rate=0.0,
    warmup_steps=1_000,
)
# What few pairs need: much dropout, many passes and an average of many checkpoints.
_FEW_PAIRS = dict(
    sizes="tiny",
    norm_first=True,
    dropout_rate=0.3,
    attention_dropout_rate=0.0,
    activation_dropout_rate=0.0,
    average_checkpoints=10,
    length_penalty=1.0,
)
# Runs for corpora of up to `most_pairs`, of the size in `TransformerConfig.PRESETS`.
# An option that is not named has its default, which is the paper's where it has one.
PRESETS = {
    "micro": _FEW_PAIRS
    | dict(
        most_pairs=8_000,
        most_pieces=2_000,
        batch_tokens=1_024,
        warmup_steps=200,
        epochs=100,
    ),
    "tiny": _FEW_PAIRS
    | dict(
        most_pairs=60_000,
        most_pieces=6_000,
        batch_tokens=4_096,
        warmup_steps=1_000,
        learning_rate=0.004,
        epochs=110,
    ),
    "small": dict(
        most_pairs=500_000,
        sizes="small",
        most_pieces=8_000,
        batch_tokens=4_096,
        norm_first=True,
        warmup_steps=1_000,
        length_penalty=1.0,
    ),
    "base": dict(most_pairs=math.inf, sizes="base", most_pieces=32_000),
    # Never chosen by the number of pairs: a GPU's step takes up to 47 GB.
    "big": dict(
        most_pairs=math.inf,
        sizes="big",
        most_pieces=32_000,
        average_checkpoints=20,
    ),
    "student": _STUDENT | dict(sizes="student", learning_rate=0.003),
    "student-384": _STUDENT | dict(sizes="student-384"),
}
# Options of a run that begins with another run.
FINE_TUNING = {
    "batch_tokens": 2048,
    "schedule": "constant",
    "learning_rate": 2e-4,
    "warmup_steps": 100,
    "doubt_steps": None,  # The others' scores are not its own.
}
# Options of a run that begins with an import.
FINE_TUNING_IMPORTED = FINE_TUNING | {
    "learning_rate": 1e-4,
    "epochs": 5,
    "label_smoothing": 0.0,
    "robust": False,
}
# A warm-up is at most this share of a run's updates.
WARMUP_SHARE = 0.2


def preset_for(num_pairs: int) -> str:
    """Returns the name of the preset for a corpus of this size."""
    return next(n for n, preset in PRESETS.items() if num_pairs <= preset["most_pairs"])


@documented
@dataclasses.dataclass(frozen=True)
class RunConfig(Config):
    """All options of a training run, kept as `config.json` in its directory."""

    model: TransformerConfig = option(TransformerConfig(), "sizes of the model")
    tokenizer: TokenizerConfig = option(TokenizerConfig(), "the vocabulary")
    data: DataConfig = option(DataConfig(), "how the corpus becomes batches")
    training: TrainingConfig = option(TrainingConfig(), "how the model is trained")
    decoding: DecodingConfig = option(DecodingConfig(), "the search")

    def __post_init__(self):
        super().__post_init__()
        model = self.model
        if model.special_ids != (0, 1, 2, 3):
            raise ValueError(
                "`pad_id`, `start_id`, `end_id` and `unknown_id` of a run must be "
                f"0, 1, 2 and 3. Received: {model.special_ids}"
            )
        is_joint = self.tokenizer.joint_vocabulary
        model.check_tied_embeddings(is_joint, f"joint_vocabulary={is_joint}")
        longest = max(
            self.data.max_length,
            self.decoding.max_source_length,
            self.decoding.longest_output,
        )
        model.check_positions(
            longest, "`max_length` and `max_source_length` + `max_extra_length`"
        )

    @classmethod
    def preset(cls, name: str, **options: Any) -> Self:
        """Returns the options of a preset.

        Args:
            name: {presets}.
            **options: Options of any section that replace the preset's.

        Example:
            >>> config = RunConfig.preset("tiny", epochs=3)
            >>> config.tokenizer.most_pieces, config.training.epochs
            (6000, 3)
        """
        check_choice("name", name, PRESETS)
        preset = dict(PRESETS[name])
        del preset["most_pairs"]
        sizes = TransformerConfig.PRESETS[preset.pop("sizes")]
        return cls().with_options(**sizes | preset | options)

    def with_options(self, **options: Any) -> Self:
        """Returns a copy with other options, whatever section they are in.

        Example:
            >>> RunConfig().with_options(epochs=3, beam_size=5).decoding.beam_size
            5
        """
        sections = {}
        for section in dataclasses.fields(self):
            part = getattr(self, section.name)
            names = options.keys() & vars(part).keys()
            changes = {name: options.pop(name) for name in names}
            sections[section.name] = part.replace(**changes)
        if options:
            raise ValueError(f"A run has no option {', '.join(map(repr, options))}.")
        return self.replace(**sections)

    def fitted_to(self, planned_updates: int) -> Self:
        """Returns the options with a schedule that fits this number of updates.

        The warm-up takes at most a fifth of them and keeps its peak. A cosine without
        `decay_steps` ends with the run.
        """
        check_number("planned_updates", planned_updates, int, minimum=0)
        training = self.training
        changes = {}
        warmup = min(training.warmup_steps, max(1, int(WARMUP_SHARE * planned_updates)))
        if warmup < training.warmup_steps:
            peak = (self.model.d_model * training.warmup_steps) ** -0.5
            peak = training.learning_rate or peak
            changes = {"warmup_steps": warmup, "learning_rate": peak}
        if training.schedule == "cosine" and training.decay_steps is None:
            changes["decay_steps"] = max(1, planned_updates - warmup)
        return self.with_options(**changes)


# Python's option -OO leaves none.
RunConfig.preset.__func__.__doc__ = (RunConfig.preset.__doc__ or "").replace(
    "{presets}", "One of " + ", ".join(f'"{name}"' for name in PRESETS)
)
