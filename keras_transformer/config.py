"""Every option of the package, once: frozen dataclasses that check themselves.

The command line builds its flags, its help and its defaults from these fields, and a
run directory keeps them as JSON, so an option is written down in this file alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from keras_transformer.options import Config, option, reject_unknown
from keras_transformer.training_config import TrainingConfig


@dataclasses.dataclass(frozen=True)
class TransformerConfig(Config):
    """Sizes of a `Transformer`; the defaults are the paper's base model (Table 3)."""

    source_vocabulary_size: int = option(37000, "source pieces, V", minimum=1)
    target_vocabulary_size: int = option(37000, "target pieces, V", minimum=1)
    num_encoder_layers: int = option(6, "encoder layers, N", minimum=1)
    num_decoder_layers: int = option(6, "decoder layers, N", minimum=1)
    d_model: int = option(512, "width of the model", minimum=1)
    d_ff: int = option(2048, "width of the feed-forward layer", minimum=1)
    num_heads: int = option(8, "attention heads, h", minimum=1)
    key_dim: int | None = option(
        None, "width of a head's query and key; default d_model / num_heads", minimum=1
    )
    value_dim: int | None = option(
        None, "width of a head's value; default key_dim", minimum=1
    )
    activation: str = option("relu", "feed-forward activation, a Keras name")
    norm_first: bool = option(False, "normalise before each sub-layer (pre-norm)")
    use_bias: bool = option(False, "add biases to the attention projections")
    positions: str = option(
        "sinusoidal", "kind of position vector", choices=("sinusoidal", "learned")
    )
    max_positions: int = option(
        512, "most positions of learned position vectors (tokens)", minimum=1
    )
    tied_embeddings: str = option(
        "three-way",
        "one matrix for source, target and output (three-way), for target and "
        "output (two-way), or none",
        choices=("three-way", "two-way", "none"),
    )
    dropout_rate: float = option(
        0.1, "dropout of sub-layer outputs and embeddings", minimum=0.0, below=1.0
    )
    attention_dropout_rate: float = option(
        0.1, "dropout of attention weights", minimum=0.0, below=1.0
    )
    activation_dropout_rate: float = option(
        0.1, "dropout inside the feed-forward network", minimum=0.0, below=1.0
    )
    pad_id: int = option(0, "id of padding", minimum=0)
    start_id: int = option(1, "id that starts a sentence", minimum=0)
    end_id: int = option(2, "id that ends a sentence", minimum=0)
    unknown_id: int = option(3, "id of an unknown piece", minimum=0)

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        # The Multi30k setting of Wu et al., 2021, https://arxiv.org/abs/2105.14462.
        "tiny": dict(
            num_encoder_layers=4, num_decoder_layers=4, d_model=128, d_ff=256,
            num_heads=4,
        ),
        "small": dict(
            num_encoder_layers=3, num_decoder_layers=3, d_model=256, d_ff=1024,
            num_heads=4,
        ),
        # Table 3 of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762.
        "base": dict(),
        "big": dict(d_model=1024, d_ff=4096, num_heads=16, dropout_rate=0.3),
    }  # fmt: skip

    def __post_init__(self):
        super().__post_init__()
        if self.key_dim is None and self.d_model % self.num_heads:
            raise ValueError(
                "`d_model` must be a multiple of `num_heads` unless `key_dim` is "
                f"given. Received: d_model={self.d_model}, num_heads={self.num_heads}"
            )
        if (
            self.tied_embeddings == "three-way"
            and self.source_vocabulary_size != self.target_vocabulary_size
        ):
            raise ValueError(
                "Three-way `tied_embeddings` needs one joint vocabulary; use "
                "'two-way' or 'none' for separate ones. Received: "
                f"source_vocabulary_size={self.source_vocabulary_size}, "
                f"target_vocabulary_size={self.target_vocabulary_size}"
            )
        ids = (self.pad_id, self.start_id, self.end_id, self.unknown_id)
        smallest = min(self.source_vocabulary_size, self.target_vocabulary_size)
        if len(set(ids)) < 4 or max(ids) >= smallest:
            raise ValueError(
                "`pad_id`, `start_id`, `end_id` and `unknown_id` must be four "
                f"different ids below the vocabulary size. Received: {ids}, "
                f"vocabulary size {smallest}"
            )

    @classmethod
    def preset(cls, name: str, **overrides) -> TransformerConfig:
        """Returns the sizes called `name` ("tiny", "small", "base" or "big").

        Args:
            name: A key of `TransformerConfig.PRESETS`.
            **overrides: Options that replace the preset's.

        Returns:
            A `TransformerConfig`.

        Raises:
            ValueError: If no preset has that name.

        Example:
            >>> TransformerConfig.preset("tiny").d_model
            128
        """
        if name not in cls.PRESETS:
            raise ValueError(
                f"`preset` must be one of {', '.join(cls.PRESETS)}. Received: {name!r}"
            )
        values = cls.PRESETS[name] | overrides
        reject_unknown(cls, values)
        return cls(**values)


@dataclasses.dataclass(frozen=True)
class TokenizerConfig(Config):
    """How the SentencePiece vocabulary is learned from the training text."""

    vocabulary_size: int = option(
        10000, "pieces of each vocabulary, with the special ones and bytes", minimum=8
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
        1000000, "most sentences a side that the vocabulary is learned from", minimum=1
    )


@dataclasses.dataclass(frozen=True)
class DataConfig(Config):
    """How a corpus becomes batches."""

    batch_tokens: int = option(
        4096, "tokens a batch on the longer side, padding counted", minimum=1
    )
    max_length: int = option(
        128, "tokens a side, the end token counted; longer pairs are bad", minimum=2
    )
    shuffle_buffer: int = option(200000, "pairs shuffled at a time", minimum=1)
    subword_sampling: float = option(
        0.0,
        "randomness of the pieces in training: BPE-dropout's share of merges, or "
        "alpha of a unigram vocabulary; 0 is none",
        minimum=0.0,
        below=1.0,
    )
    bad_line_budget: int = option(
        100, "bad lines that are skipped before the run stops (lines)", minimum=0
    )


@dataclasses.dataclass(frozen=True)
class DecodingConfig(Config):
    """How translations are searched for; the defaults are the paper's (section 6.1)."""

    beam_size: int = option(4, "hypotheses kept a sentence; 1 is greedy", minimum=1)
    n_best: int | None = option(
        None, "translations an export's `nbest` gives; default beam_size", minimum=1
    )
    length_penalty: float = option(
        0.6, "alpha of ((5 + length) / 6)^alpha", minimum=0.0
    )
    coverage_penalty: float = option(
        0.0, "beta of the penalty for source tokens passed over", minimum=0.0
    )
    no_repeat_ngram_size: int = option(
        0, "no n-gram of this size comes twice in an output; 0 allows all", minimum=0
    )
    min_output_length: int = option(
        1, "shortest output (tokens, the end token counted)", minimum=1
    )
    max_output_length: int | None = option(
        None, "longest output (tokens, the end token counted)", minimum=1
    )
    max_extra_length: int = option(
        50, "longest output beyond the source (tokens)", minimum=0
    )
    max_source_length: int = option(
        256, "source tokens, the end token counted, kept of a sentence", minimum=2
    )
    top_k: int | None = option(
        None, "most probable tokens that sampling draws among", minimum=1
    )
    top_p: float | None = option(
        None, "probability that sampling draws among", above=0.0, maximum=1.0
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


@dataclasses.dataclass(frozen=True)
class RunConfig(Config):
    """All options of a training run; `config.json` of its directory."""

    model: TransformerConfig = TransformerConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    decoding: DecodingConfig = DecodingConfig()

    def __post_init__(self):
        super().__post_init__()
        model = self.model
        ids = (model.pad_id, model.start_id, model.end_id, model.unknown_id)
        if ids != (0, 1, 2, 3):
            raise ValueError(
                "The tokenizer of a run has `pad_id`, `start_id`, `end_id` and "
                f"`unknown_id` 0, 1, 2 and 3. Received: {ids}"
            )
        if (
            not self.tokenizer.joint_vocabulary
            and self.model.tied_embeddings == "three-way"
        ):
            raise ValueError(
                "Three-way `tied_embeddings` needs one joint vocabulary; use "
                "'two-way' or 'none' for separate ones. Received: "
                "joint_vocabulary=False, tied_embeddings='three-way'"
            )
        longest = max(
            self.data.max_length,
            self.decoding.max_source_length,
            self.decoding.longest_output,
        )
        if self.model.positions == "learned" and longest > self.model.max_positions:
            raise ValueError(
                "Learned positions must cover `max_length` and `max_source_length` + "
                f"`max_extra_length` tokens. Received: {longest} tokens, "
                f"max_positions={self.model.max_positions}"
            )
