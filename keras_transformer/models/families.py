"""The model of each family of `keras_transformer.config`."""

from __future__ import annotations

from keras_transformer.config import RecurrentConfig, Seq2SeqConfig, TransformerConfig
from keras_transformer.models.recurrent_seq2seq import RecurrentSeq2Seq
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.models.transformer import Transformer

MODELS = {TransformerConfig: Transformer, RecurrentConfig: RecurrentSeq2Seq}


def make_model(config: Seq2SeqConfig, **options) -> Seq2Seq:
    """Returns a new model of the family and the sizes of its config.

    Args:
        config: A `TransformerConfig` or a `RecurrentConfig`.
        **options: Arguments of every Keras model, such as `dtype`.

    Example:
        >>> make_model(RecurrentConfig.preset("tiny"))  # a RecurrentSeq2Seq
    """
    return MODELS[type(config)](config, **options)
