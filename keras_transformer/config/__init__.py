"""Every option of the package: frozen dataclasses that check themselves.

The flags of the command line, with their help and defaults, are made from these fields.
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
