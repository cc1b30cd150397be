"""The public names for editors and type checkers, which do not run `__init__.py`."""

from keras_transformer.config import (
    DataConfig,
    DecodingConfig,
    EncoderConfig,
    LanguageModelConfig,
    RunConfig,
    TokenizerConfig,
    TrainingConfig,
    TransformerConfig,
)
from keras_transformer.decoding import (
    SpecialIds,
    beam_search,
    greedy_search,
    reordering,
    sample,
)
from keras_transformer.evaluation import (
    evaluate,
)
from keras_transformer.exact_training import (
    ExactModel,
    split_batches_over_cores,
)
from keras_transformer.export import (
    ExportedTranslator,
    export_litert_model,
)
from keras_transformer.generation import (
    Generator,
    LanguageSampler,
)
from keras_transformer.importers import (
    import_hugging_face,
    import_marian,
    import_model,
)
from keras_transformer.layers import (
    SSRU,
    AdditiveAttention,
    AlibiPositions,
    CausalLayer,
    ClassToken,
    DecoderLayer,
    EncoderLayer,
    FeatureEmbedding,
    FeedForward,
    LinearAttention,
    LocalAttention,
    MultiHeadAdditiveAttention,
    MultiHeadAttention,
    PatchEmbedding,
    PerformerAttention,
    PositionalEmbedding,
    PositionalEncoding,
    ReluAttention,
    RotaryPositions,
    enable_lora,
    scaled_dot_product_attention,
    sinusoidal_encoding,
)
from keras_transformer.lite import (
    LiteTranslator,
)
from keras_transformer.losses import (
    MaskedCrossentropy,
)
from keras_transformer.masks import (
    causal_mask,
    graph_mask,
    local_window_mask,
    padding_mask,
    valid_length_mask,
)
from keras_transformer.metrics import (
    MaskedAccuracy,
    Perplexity,
)
from keras_transformer.models import (
    Encoder,
    EncoderStack,
    Ensemble,
    LanguageModel,
    MaskedLanguageModel,
    MaskedTokens,
    Tagger,
    TextClassifier,
    Transformer,
)
from keras_transformer.optimizers import (
    Adam,
)
from keras_transformer.schedules import (
    TransformerSchedule,
    WarmupSchedule,
)
from keras_transformer.text import (
    Corpus,
    Tokenizer,
    TokenizerPair,
    learn_tokenizers,
    mixed_pairs,
    open_pairs,
)
from keras_transformer.training import (
    train,
)
from keras_transformer.translator import (
    Translator,
)

__version__: str

__all__ = [
    "Adam",
    "AdditiveAttention",
    "AlibiPositions",
    "CausalLayer",
    "ClassToken",
    "Corpus",
    "DataConfig",
    "DecoderLayer",
    "DecodingConfig",
    "Encoder",
    "EncoderConfig",
    "EncoderLayer",
    "EncoderStack",
    "Ensemble",
    "ExactModel",
    "ExportedTranslator",
    "FeatureEmbedding",
    "FeedForward",
    "Generator",
    "LanguageModel",
    "LanguageModelConfig",
    "LanguageSampler",
    "LinearAttention",
    "LiteTranslator",
    "LocalAttention",
    "MaskedAccuracy",
    "MaskedCrossentropy",
    "MaskedLanguageModel",
    "MaskedTokens",
    "MultiHeadAdditiveAttention",
    "MultiHeadAttention",
    "PatchEmbedding",
    "PerformerAttention",
    "Perplexity",
    "PositionalEmbedding",
    "PositionalEncoding",
    "ReluAttention",
    "RotaryPositions",
    "RunConfig",
    "SSRU",
    "SpecialIds",
    "Tagger",
    "TextClassifier",
    "Tokenizer",
    "TokenizerConfig",
    "TokenizerPair",
    "TrainingConfig",
    "Transformer",
    "TransformerConfig",
    "TransformerSchedule",
    "Translator",
    "WarmupSchedule",
    "beam_search",
    "causal_mask",
    "enable_lora",
    "evaluate",
    "export_litert_model",
    "graph_mask",
    "greedy_search",
    "import_hugging_face",
    "import_marian",
    "import_model",
    "learn_tokenizers",
    "local_window_mask",
    "mixed_pairs",
    "open_pairs",
    "padding_mask",
    "reordering",
    "sample",
    "scaled_dot_product_attention",
    "sinusoidal_encoding",
    "split_batches_over_cores",
    "train",
    "valid_length_mask",
]
