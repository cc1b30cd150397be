"""Sizes of the models: `TransformerConfig` and `LanguageModelConfig`."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, ClassVar, Literal, Self

from keras_transformer.config.layer_config import (
    CAUSAL_KINDS,
    CausalKind,
    LayerConfig,
    PositionsInside,
    Sinusoids,
    check_even,
    check_ssru,
)
from keras_transformer.config.options import (
    LAYERS,
    ROWS,
    check_choice,
    check_number,
    documented,
    option,
)

Positions = Literal[Sinusoids, "learned", PositionsInside]
LanguagePositions = Literal["sinusoidal", "learned", PositionsInside]


@documented
@dataclasses.dataclass(frozen=True)
class TokenModelConfig(LayerConfig):
    """Options of every model of token ids."""

    max_positions: int = option(
        512, "number of learned position vectors (tokens)", **ROWS
    )
    pad_id: int = option(0, "id of padding", minimum=0)
    start_id: int = option(1, "id before the first token", minimum=0)
    end_id: int = option(2, "id after the last token", minimum=0)

    normalize_embeddings: ClassVar[bool] = False  # an option of `TransformerConfig`

    @property
    def special_ids(self) -> tuple[int, ...]:
        """Ids of padding, start, end and, in a `Transformer`, unknown pieces."""
        return self.pad_id, self.start_id, self.end_id

    def _check_special_ids(self, size):
        ids = self.special_ids
        if len(set(ids)) < len(ids) or max(ids) >= size:
            raise ValueError(
                "`pad_id`, `start_id`, `end_id` and a Transformer's `unknown_id` must "
                "be different ids below the vocabulary size. Received: "
                f"{ids}, vocabulary size {size}"
            )

    def check_positions(self, longest: int, what: str) -> None:
        """Raises `ValueError` if there are fewer learned positions than `longest`."""
        check_number("longest", longest, int, minimum=0)
        if self.positions == "learned" and longest > self.max_positions:
            raise ValueError(
                f"Learned positions must cover {what}. Received: {longest} tokens, "
                f"max_positions={self.max_positions}"
            )


@documented
@dataclasses.dataclass(frozen=True)
class TransformerConfig(TokenModelConfig):
    """Sizes of a `Transformer`; the defaults are the paper's base model (Table 3)."""

    source_vocabulary_size: int = option(37000, "source pieces, V", **ROWS)
    target_vocabulary_size: int = option(37000, "target pieces, V", **ROWS)
    num_encoder_layers: int = option(6, "encoder layers", **LAYERS)
    num_decoder_layers: int = option(6, "decoder layers", **LAYERS)
    tied_embeddings: str = option(
        "three-way",
        "one matrix for source, target and output (three-way), for target and "
        "output (two-way), or none",
        choices=("three-way", "two-way", "none"),
    )
    positions: Positions = option(
        "sinusoidal",
        "position vectors (sinusoidal-halves: Hugging Face's Marian), or rotary or "
        "alibi positions inside self-attention",
        choices=typing.get_args(Positions),
    )
    normalize_embeddings: bool = option(
        False, "normalise the sum of embedding and position, before its dropout"
    )
    decoder_self_attention: CausalKind = option(
        "dot-product",
        "self-attention of decoder layers: the paper's, or an SSRU, whose state does "
        "not grow with the length",
        choices=CAUSAL_KINDS,
    )
    output_bias: bool = option(False, "add a bias to the logits")
    unknown_id: int = option(3, "id of an unknown piece", minimum=0)

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        # The Multi30k setting of Wu et al., 2021, https://arxiv.org/abs/2105.14462.
        "tiny": dict(
            num_encoder_layers=4,
            num_decoder_layers=4,
            d_model=128,
            d_ff=256,
            num_heads=4,
        ),
        "small": dict(
            num_encoder_layers=3,
            num_decoder_layers=3,
            d_model=256,
            d_ff=1024,
            num_heads=4,
        ),
        # Table 3 of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762.
        "base": dict(),
        "big": dict(
            d_model=1024,
            d_ff=4096,
            num_heads=16,
            dropout_rate=0.3,
            attention_dropout_rate=0.1,
            activation_dropout_rate=0.1,
        ),
        # The students of Bergamot, https://github.com/browsermt/students, and wider.
        "student": dict(
            num_decoder_layers=2,
            d_model=256,
            d_ff=1536,
            decoder_self_attention="ssru",
        ),
        "student-384": dict(
            num_decoder_layers=4,
            d_model=384,
            d_ff=1536,
            decoder_self_attention="ssru",
        ),
    }

    def __post_init__(self):
        super().__post_init__()
        source = self.source_vocabulary_size
        target = self.target_vocabulary_size
        self.check_tied_embeddings(
            source == target,
            f"source_vocabulary_size={source}, target_vocabulary_size={target}",
        )
        kind = self.decoder_self_attention
        check_ssru("decoder_self_attention", kind, self.relative_positions)
        self._check_special_ids(min(source, target))
        if not self.relative_positions:
            check_even("d_model", self.d_model, self.positions)

    @property
    def special_ids(self) -> tuple[int, ...]:
        """Ids of padding, start, end and unknown pieces."""
        return *super().special_ids, self.unknown_id

    def check_tied_embeddings(self, is_joint: bool, received: str) -> None:
        """Raises `ValueError` if all matrices are tied and no vocabulary is joint."""
        if self.tied_embeddings == "three-way" and not is_joint:
            raise ValueError(
                "Three-way `tied_embeddings` needs one joint vocabulary; use 'two-way' "
                "or 'none' for separate vocabularies. Received: "
                f"tied_embeddings='three-way', {received}"
            )

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """Returns the sizes of a preset, with `overrides`.

        The names are "tiny", "small", "base", "big", "student" and "student-384".
        `RunConfig.preset` returns all options of a run.

        Example:
            >>> TransformerConfig.preset("tiny").d_model
            128
        """
        check_choice("name", name, cls.PRESETS)
        return cls(**cls.PRESETS[name]).replace(**overrides)


@documented
@dataclasses.dataclass(frozen=True)
class LanguageModelConfig(TokenModelConfig):
    """Sizes of a `LanguageModel`."""

    num_layers: int = option(6, "layers", **LAYERS)
    vocabulary_size: int = option(37000, "tokens, V", **ROWS)
    positions: LanguagePositions = option(
        "sinusoidal",
        "position vectors, or rotary or alibi positions inside self-attention",
        choices=typing.get_args(LanguagePositions),
    )
    tied_embeddings: bool = option(True, "one matrix for input and output")
    attention: CausalKind = option(
        "dot-product", "the paper's self-attention, or an SSRU", choices=CAUSAL_KINDS
    )

    def __post_init__(self):
        super().__post_init__()
        check_ssru("attention", self.attention, self.relative_positions)
        self._check_special_ids(self.vocabulary_size)

    def layer_options(self) -> dict[str, Any]:
        """Returns the arguments of a `CausalLayer`."""
        return super().layer_options() | {"attention": self.attention}
