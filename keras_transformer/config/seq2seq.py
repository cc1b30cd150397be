"""Sizes of the models from sequences to sequences."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Self

from keras_transformer.config.layers import RELATIVE_POSITIONS, LayerConfig
from keras_transformer.config.options import (
    MOST_LAYERS,
    MOST_ROWS,
    MOST_UNITS,
    Config,
    documented,
    option,
    reject_unknown,
)


@documented
@dataclasses.dataclass(frozen=True)
class Seq2SeqConfig(Config):
    """What every such model has: vocabularies, embeddings, special ids."""

    source_vocabulary_size: int = option(
        37000, "source pieces, V", minimum=1, maximum=MOST_ROWS
    )
    target_vocabulary_size: int = option(
        37000, "target pieces, V", minimum=1, maximum=MOST_ROWS
    )
    d_model: int = option(512, "width of the model", minimum=1, maximum=MOST_UNITS)
    tied_embeddings: str = option(
        "three-way",
        "one matrix for source, target and output (three-way), for target and "
        "output (two-way), or none",
        choices=("three-way", "two-way", "none"),
    )
    dropout_rate: float = option(
        0.1, "dropout of sub-layer outputs and embeddings", minimum=0.0, below=1.0
    )
    pad_id: int = option(0, "id of padding", minimum=0)
    start_id: int = option(1, "id that starts a sentence", minimum=0)
    end_id: int = option(2, "id that ends a sentence", minimum=0)
    unknown_id: int = option(3, "id of an unknown piece", minimum=0)

    output_bias: ClassVar[bool] = False
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}

    def __post_init__(self):
        super().__post_init__()
        sizes = self.source_vocabulary_size, self.target_vocabulary_size
        self.check_tied_embeddings(
            sizes[0] == sizes[1],
            "source_vocabulary_size={}, target_vocabulary_size={}".format(*sizes),
        )
        ids = (self.pad_id, self.start_id, self.end_id, self.unknown_id)
        if len(set(ids)) < 4 or max(ids) >= min(sizes):
            raise ValueError(
                "`pad_id`, `start_id`, `end_id` and `unknown_id` must be four "
                f"different ids below the vocabulary size. Received: {ids}, "
                f"vocabulary size {min(sizes)}"
            )

    def check_tied_embeddings(self, is_joint: bool, received: str):
        """Raises `ValueError` if matrices are shared by two vocabularies.

        Args:
            is_joint: Whether source and target have one vocabulary.
            received: The values that say so, for the message.
        """
        if self.tied_embeddings == "three-way" and not is_joint:
            raise ValueError(
                "Three-way `tied_embeddings` needs one joint vocabulary; use 'two-way' "
                "or 'none' for separate ones. Received: "
                f"tied_embeddings='three-way', {received}"
            )

    def check_positions(self, longest: int, what: str):
        """Raises `ValueError` if learned positions are fewer than needed.

        Args:
            longest: Positions needed (tokens).
            what: What needs them, for the message.
        """
        limit = self.most_positions
        if limit is not None and longest > limit:
            raise ValueError(
                f"Learned positions must cover {what}. Received: {longest} tokens, "
                f"max_positions={limit}"
            )

    @property
    def most_positions(self) -> int | None:
        """Longest source and target (tokens), or `None` if there is no limit."""
        return None

    @property
    def num_attending_layers(self) -> int:
        """Number of the decoder's layers that attend to the source."""
        return self.num_decoder_layers

    def fewest_weights(self) -> int:
        """Returns how many weights a model of these sizes has at least.

        Counts its matrices alone; a subclass of the model may have fewer.
        """
        rows = self.target_vocabulary_size
        if self.tied_embeddings != "three-way":
            rows += self.source_vocabulary_size
        if self.tied_embeddings == "none":
            rows += self.target_vocabulary_size
        return rows * self.d_model

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """Returns the sizes called `name`, such as "tiny".

        Args:
            name: A key of the class' `PRESETS`.
            **overrides: Options that replace the preset's.

        Returns:
            The options, of this class.

        Raises:
            ValueError: If no preset has that name.

        Example:
            >>> TransformerConfig.preset("tiny").d_model
            128
        """
        values = cls.preset_options(name) | overrides
        reject_unknown(cls, values)
        return cls(**values)

    @classmethod
    def preset_options(cls, name: str) -> dict[str, Any]:
        """Returns the options that the preset `name` sets.

        Raises:
            ValueError: If no preset has that name.
        """
        if name not in cls.PRESETS:
            raise ValueError(
                f"`preset` must be one of {', '.join(cls.PRESETS)}. Received: {name!r}"
            )
        return cls.PRESETS[name]


@documented
@dataclasses.dataclass(frozen=True)
class TransformerConfig(LayerConfig, Seq2SeqConfig):
    """Sizes of a `Transformer`; the defaults are the paper's base model (Table 3)."""

    num_encoder_layers: int = option(
        6, "encoder layers", minimum=1, maximum=MOST_LAYERS
    )
    num_decoder_layers: int = option(
        6, "decoder layers", minimum=1, maximum=MOST_LAYERS
    )
    positions: str = option(
        "sinusoidal",
        "kind of position vector; those of Hugging Face's Marian are "
        "sinusoidal-halves; rotary and alibi enter self-attention itself",
        choices=(
            "sinusoidal", "sinusoidal-halves", "sinusoidal-marian", "learned",
            *RELATIVE_POSITIONS,
        ),
    )  # fmt: skip
    max_positions: int = option(
        512,
        "most positions of learned position vectors (tokens)",
        minimum=1,
        maximum=MOST_ROWS,
    )
    source_end: bool = option(
        True,
        "attend to the end token of the source, which some systems train without",
    )
    normalize_embeddings: bool = option(
        False, "normalise the sum of embedding and position, before its dropout"
    )
    decoder_self_attention: str = option(
        "attention",
        "what a decoder layer looks back with: attention, or an SSRU, whose state does "
        "not grow with the length",
        choices=("attention", "ssru"),
    )
    output_bias: bool = option(False, "add a bias to the logits")
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
        if self.decoder_self_attention == "ssru":
            self._check_no_attention()
        if self.positions in ("sinusoidal-halves", "sinusoidal-marian"):
            if self.d_model % 2:
                raise ValueError(
                    "`d_model` must be even for position vectors of two halves. "
                    f"Received: d_model={self.d_model}, positions={self.positions!r}"
                )

    def _check_no_attention(self):
        """Raises `ValueError` if options are for what an SSRU takes the place of."""
        if self.attention != "dot-product" or self.relative_positions is not None:
            raise ValueError(
                "`decoder_self_attention` must be 'attention' with another `attention` "
                "or with rotary or alibi `positions`, which an SSRU has not. Received: "
                f"decoder_self_attention='ssru', attention={self.attention!r}, "
                f"positions={self.positions!r}"
            )

    @property
    def most_positions(self) -> int | None:
        """Number of learned position vectors; sinusoidal ones have no end."""
        return self.max_positions if self.positions == "learned" else None

    def fewest_weights(self) -> int:
        """Returns the fewest weights of a `Transformer`: those of its matrices."""
        key_dim = self.key_dim or self.d_model // self.num_heads
        value_dim = self.value_dim or key_dim
        heads = self.num_heads + (self.num_key_value_heads or self.num_heads)
        attention = heads * (key_dim + value_dim)
        is_ssru = self.decoder_self_attention == "ssru"
        look_back = 2 * self.d_model if is_ssru else attention
        if self.attention == "lsh":  # Queries are the keys.
            look_back -= self.num_heads * key_dim
        around = attention if is_ssru else look_back
        encoder = self.num_encoder_layers * (around + 2 * self.d_ff)
        decoder = self.num_decoder_layers * (look_back + attention + 2 * self.d_ff)
        embeddings = 1 if self.tied_embeddings == "three-way" else 2
        positions = embeddings * (self.most_positions or 0)
        rows = encoder + decoder + positions
        return super().fewest_weights() + rows * self.d_model
