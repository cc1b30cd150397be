"""The public names, for type checkers; `__init__.py` loads each when asked for."""

from . import (
    apps as apps,
    config as config,
    formats as formats,
    models as models,
    nn as nn,
    search as search,
    testing as testing,
    text as text,
    training as training,
)
from .apps import plots as plots
from .nn import (
    layers as layers,
    losses as losses,
    masks as masks,
    optimizers as optimizers,
)
from .config import (
    DataConfig as DataConfig,
    DecodingConfig as DecodingConfig,
    EncoderConfig as EncoderConfig,
    LanguageModelConfig as LanguageModelConfig,
    RunConfig as RunConfig,
    TokenizerConfig as TokenizerConfig,
    TrainingConfig as TrainingConfig,
    TransformerConfig as TransformerConfig,
)
from .search import (
    SpecialIds as SpecialIds,
    beam_search as beam_search,
    reordering as reordering,
    sample_tokens as sample_tokens,
)
from .training.evaluation import evaluate_translator as evaluate_translator
from .models import (
    ExactModel as ExactModel,
    split_batches_over_cores as split_batches_over_cores,
)
from .formats import (
    ExportedTranslator as ExportedTranslator,
)
from .search import Generator as Generator, LanguageSampler as LanguageSampler
from .formats import (
    import_hugging_face as import_hugging_face,
    import_marian as import_marian,
    import_model as import_model,
    load as load,
)
from .nn.layers import (
    SSRU as SSRU,
    AlibiPositions as AlibiPositions,
    CausalLayer as CausalLayer,
    DecoderLayer as DecoderLayer,
    EncoderLayer as EncoderLayer,
    FeedForward as FeedForward,
    MultiHeadAttention as MultiHeadAttention,
    PositionalEmbedding as PositionalEmbedding,
    PositionalEncoding as PositionalEncoding,
    RotaryPositions as RotaryPositions,
    enable_lora as enable_lora,
    scaled_dot_product_attention as scaled_dot_product_attention,
    sinusoidal_encoding as sinusoidal_encoding,
)
from .formats import LiteTranslator as LiteTranslator
from .nn.losses import (
    MaskedAccuracy as MaskedAccuracy,
    MaskedCrossentropy as MaskedCrossentropy,
    Perplexity as Perplexity,
    TokenDistillation as TokenDistillation,
)
from .nn.masks import (
    causal_mask as causal_mask,
    padding_mask as padding_mask,
    valid_length_mask as valid_length_mask,
)
from .models import (
    EncoderStack as EncoderStack,
    Ensemble as Ensemble,
    LanguageModel as LanguageModel,
    Transformer as Transformer,
)
from .nn.optimizers import (
    Adam as Adam,
    TransformerSchedule as TransformerSchedule,
    WarmupSchedule as WarmupSchedule,
)
from .text import (
    Corpus as Corpus,
    Tokenizer as Tokenizer,
    TokenizerPair as TokenizerPair,
    clean_pairs as clean_pairs,
    learn_tokenizers as learn_tokenizers,
    mixed_pairs as mixed_pairs,
    open_pairs as open_pairs,
)
from .training import train as train
from .search import Translator as Translator

__version__: str
