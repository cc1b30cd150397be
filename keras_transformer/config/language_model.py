"""Sizes of a language model."""

from __future__ import annotations

import dataclasses

from keras_transformer.config.layers import RELATIVE_POSITIONS, EncoderConfig
from keras_transformer.config.options import MOST_ROWS, documented, option


@documented
@dataclasses.dataclass(frozen=True)
class LanguageModelConfig(EncoderConfig):
    """Sizes of a `LanguageModel`: those of its layers, its vocabulary and positions."""

    vocabulary_size: int = option(37000, "tokens, V", minimum=1, maximum=MOST_ROWS)
    positions: str = option(
        "sinusoidal",
        "kind of position vector; rotary and alibi enter self-attention itself",
        choices=("sinusoidal", "learned", *RELATIVE_POSITIONS),
    )
    max_positions: int = option(
        512,
        "most positions of learned position vectors (tokens)",
        minimum=1,
        maximum=MOST_ROWS,
    )
    tied_embeddings: bool = option(True, "one matrix for input and output")
    pad_id: int = option(0, "id of padding", minimum=0)
    start_id: int = option(1, "id before the first token of a text", minimum=0)
    end_id: int = option(2, "id that ends a text", minimum=0)

    def __post_init__(self):
        super().__post_init__()
        ids = (self.pad_id, self.start_id, self.end_id)
        if len(set(ids)) < 3 or max(ids) >= self.vocabulary_size:
            raise ValueError(
                "`pad_id`, `start_id` and `end_id` must be three different ids below "
                f"`vocabulary_size`. Received: {ids}, "
                f"vocabulary_size={self.vocabulary_size}"
            )
