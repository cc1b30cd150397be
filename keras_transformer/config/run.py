"""The options of a run: data, tokenizer, decoding, and all of them together."""

from __future__ import annotations

import dataclasses

from keras_transformer.config.models import TransformerConfig
from keras_transformer.config.options import (
    MOST_HYPOTHESES,
    MOST_TOKENS,
    Config,
    documented,
    option,
)
from keras_transformer.config.training import TrainingConfig


@documented
@dataclasses.dataclass(frozen=True)
class TokenizerConfig(Config):
    """How the SentencePiece vocabulary is learned from the training text."""

    vocabulary_size: int = option(
        10000, "pieces of each vocabulary, special ones and bytes included", minimum=8
    )
    algorithm: str = option("bpe", "sub-word algorithm", choices=("bpe", "unigram"))
    joint_vocabulary: bool = option(True, "one vocabulary for both languages")
    byte_fallback: bool = option(True, "spell unknown characters as bytes")
    character_coverage: float = option(
        1.0, "share of the characters that get a piece", minimum=0.9, maximum=1.0
    )
    normalization: str = option(
        "nmt_nfkc",
        "SentencePiece's normalisation rule",
        choices=("nmt_nfkc", "nfkc", "identity"),
    )
    learning_sentences: int = option(
        1000000, "sentences per side to learn the vocabulary from, at most", minimum=1
    )


@documented
@dataclasses.dataclass(frozen=True)
class DataConfig(Config):
    """How a corpus becomes batches."""

    batch_tokens: int | None = option(
        None,
        "tokens per batch on the longer side, padding counted; default 4096, of a run "
        "that trains on a GPU the paper's 25000",
        minimum=1,
    )
    max_length: int = option(
        128,
        "tokens per side, the end token counted; longer pairs are bad lines",
        minimum=2,
    )
    batch_shapes: int | None = option(
        None,
        "shapes of batches, chosen so that the corpus's lengths need little padding: "
        "XLA compiles the training step for each; default one a length bucket, of a "
        "run that XLA compiles 6",
        minimum=1,
    )
    shuffle_buffer: int = option(200000, "pairs shuffled at a time", minimum=1)
    subword_sampling: float = option(
        0.0,
        "randomness of the pieces in training: the share of merges that BPE-dropout "
        "leaves out, or alpha of a unigram vocabulary; 0 is none. The pieces differ "
        "from run to run, and in a resumed run from those of one not interrupted",
        minimum=0.0,
        below=1.0,
    )
    bad_line_budget: int = option(
        100, "bad lines that are skipped before the run stops (lines)", minimum=0
    )


@documented
@dataclasses.dataclass(frozen=True)
class DecodingConfig(Config):
    """How translations are searched for; the defaults are the paper's (section 6.1)."""

    beam_size: int = option(
        4, "hypotheses per sentence; 1 is greedy", minimum=1, maximum=MOST_HYPOTHESES
    )
    n_best: int | None = option(
        None,
        "translations that an export's `nbest` returns; default beam_size",
        minimum=1,
    )
    length_penalty: float = option(
        0.6, "alpha of the length penalty; 0 is none", minimum=0.0
    )
    length_penalty_form: str = option(
        "gnmt",
        "what a log-probability is divided by: ((5 + length) / 6)^alpha (gnmt) or "
        "length^alpha (power)",
        choices=("gnmt", "power"),
    )
    ends_within_beam: bool = option(
        False,
        "let an output end only where its end is among the beam_size best "
        "continuations, as other systems do, and not among twice as many",
    )
    coverage_penalty: float = option(
        0.0,
        "beta of the penalty for source tokens that get little attention",
        minimum=0.0,
    )
    no_repeat_ngram_size: int = option(
        0,
        "never repeat an n-gram of this size in an output; 0 allows all",
        minimum=0,
        maximum=MOST_TOKENS,
    )
    allow_unknown: bool = option(True, "let outputs have the unknown piece")
    min_output_length: int = option(
        1, "shortest output (tokens, the end token counted)", minimum=1
    )
    max_output_length: int | None = option(
        None, "longest output (tokens, the end token counted)", minimum=1
    )
    max_extra_length: int = option(
        50, "longest output beyond the source (tokens)", minimum=0, maximum=MOST_TOKENS
    )
    max_source_length: int = option(
        256,
        "longest source; the rest is cut off (tokens, the end token counted)",
        minimum=2,
        maximum=MOST_TOKENS,
    )
    top_k: int | None = option(
        None, "sample among this many most probable tokens", minimum=1
    )
    top_p: float | None = option(
        None,
        "sample among the most probable tokens that reach this probability together",
        above=0.0,
        maximum=1.0,
    )
    alignment_layer: int = option(
        -1, "decoder layer that alignments are taken from; -1 is the last"
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
    def longest_output(self) -> int:
        """Most tokens of any output, the end token counted."""
        longest = self.max_source_length + self.max_extra_length
        return min(longest, self.max_output_length or longest)


@documented
@dataclasses.dataclass(frozen=True)
class RunConfig(Config):
    """All options of a training run; `config.json` of its directory."""

    model: TransformerConfig = option(TransformerConfig(), "sizes of the model")
    tokenizer: TokenizerConfig = option(
        TokenizerConfig(), "how the vocabulary is learned"
    )
    data: DataConfig = option(DataConfig(), "how the corpus becomes batches")
    training: TrainingConfig = option(TrainingConfig(), "how the model is trained")
    decoding: DecodingConfig = option(
        DecodingConfig(), "how translations are searched for"
    )

    def __post_init__(self):
        super().__post_init__()
        model = self.model
        ids = (model.pad_id, model.start_id, model.end_id, model.unknown_id)
        if ids != (0, 1, 2, 3):
            raise ValueError(
                "The tokenizer of a run has `pad_id`, `start_id`, `end_id` and "
                f"`unknown_id` 0, 1, 2 and 3. Received: {ids}"
            )
        is_joint = self.tokenizer.joint_vocabulary
        model.check_tied_embeddings(is_joint, f"joint_vocabulary={is_joint}")
        if self.data.subword_sampling and self.training.distribute == "multi_worker":
            raise ValueError(
                "`subword_sampling` must be 0 with `distribute` 'multi_worker': every "
                "worker would draw other pieces, and all need the same batches. "
                f"Received: subword_sampling={self.data.subword_sampling}"
            )
        longest = max(
            self.data.max_length,
            self.decoding.max_source_length,
            self.decoding.longest_output,
        )
        model.check_positions(
            longest, "`max_length` and `max_source_length` + `max_extra_length`"
        )
