"""Every option of the package: frozen dataclasses that check themselves.

The flags of the command line, with their help and defaults, are made from these fields.
Read `options.py` first.
"""

from keras_transformer.config.layer_config import EncoderConfig
from keras_transformer.config.model_config import LanguageModelConfig, TransformerConfig
from keras_transformer.config.run_config import (
    DataConfig,
    DecodingConfig,
    RunConfig,
    TokenizerConfig,
)
from keras_transformer.config.training_config import TrainingConfig

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
