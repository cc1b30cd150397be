"""Every option of the package, in one place: frozen dataclasses that check themselves.

The command line builds its flags, its help and its defaults from these fields, and a
run directory keeps them as JSON.
"""

from keras_transformer.config.layers import EncoderConfig
from keras_transformer.config.models import LanguageModelConfig, TransformerConfig
from keras_transformer.config.run import (
    DataConfig,
    DecodingConfig,
    RunConfig,
    TokenizerConfig,
)
from keras_transformer.config.training import TrainingConfig

__all__ = [
    "DataConfig",
    "DecodingConfig",
    "EncoderConfig",
    "LanguageModelConfig",
    "RunConfig",
    "TokenizerConfig",
    "TrainingConfig",
    "TransformerConfig",
]
