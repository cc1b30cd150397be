"""What is refused: one table of calls and one of commands, with the words of each.

A row of `ERRORS` is a call, its exception where that is no `ValueError`, and parts of
the message in their order, with "..." between them.
"""

import dataclasses
import functools
import gzip
import inspect
import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import layers, masks, search, testing, training
from keras_transformer.apps import bulk, cli
from keras_transformer.apps.serving import server
from keras_transformer.config.layer_config import SublayerConfig
from tests import tiny_run
from tests.examples.test_examples import load

# Layers.
X, OTHER = np.ones((2, 5, 6), "float32"), np.ones((2, 7, 6), "float32")
IDS = np.array([[3, 4, 5, 0, 0], [6, 7, 8, 9, 10]])
INTEGERS = np.ones((2, 5, 6), "int32")
PAIRS = np.array([[1, 0, 1], [1, 1, 0]], bool)
RAGGED_IDS = tf.ragged.constant([[3, 4, 5], [6, 7]])
SHAPE = (None, None, 4)
OPEN, WIDE = keras.Input((None, None)), keras.Input((None, 6))
ID = keras.Input((None,), dtype="int32")
# Models.
ENCODER = kt.EncoderConfig(num_layers=1, d_model=6, d_ff=8, num_heads=2)
SIZES = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 8, "num_heads": 2}
PAIR = {"source": IDS, "target": IDS}


def full(*shape, dtype=bool):
    return np.ones(shape, dtype)


def built(layer, *shapes):
    layer.build(*shapes)
    return layer


class OtherAttention(keras.layers.MultiHeadAttention):
    def _compute_attention(self, *args, **kwargs):
        return super()._compute_attention(*args, **kwargs)


def with_part(part, width):
    """An `EncoderLayer` with a sub-layer that returns vectors of a width."""

    class Changed(kt.EncoderLayer):
        def make_attention(self, name, d_model):
            if name != part:
                return super().make_attention(name, d_model)
            return kt.MultiHeadAttention(2, 3, output_shape=width, name=name)

        def make_feed_forward(self, name):
            is_kept = name != part
            return kt.FeedForward(8) if is_kept else keras.layers.Dense(width)

    return Changed(2, 8)


def theirs(layer_class=keras.layers.MultiHeadAttention, rounded=False):
    layer = built(layer_class(2, 3), SHAPE, SHAPE)
    if rounded:
        layer.query_dense.quantize("int8")
    return layer


def transformer(**options):
    vocabularies = {"source_vocabulary_size": 11, "target_vocabulary_size": 11}
    options = SIZES | vocabularies | {"d_model": 6} | options
    return kt.Transformer(kt.TransformerConfig(**options))


def language_model(**options):
    sizes = {"num_layers": 1, "d_model": 6, "d_ff": 8, "num_heads": 2}
    options = {"vocabulary_size": 11} | sizes | options
    return kt.LanguageModel(kt.LanguageModelConfig(**options))


def functional():
    inputs = keras.Input((5,))
    return keras.Model(inputs, keras.layers.Dense(3)(inputs))


def compiled(loss=None, pad_id=0, optimizer="sgd", **options):
    others = {1: {"start_id": 0}, 0: {}}[pad_id]
    model = transformer(pad_id=pad_id, **others)
    model.compile(optimizer, loss or kt.MaskedCrossentropy(pad_id=pad_id), **options)
    return model


def step(ids, parents, state):
    return keras.ops.ones((len(ids), 11)), state


LIMITS = {"max_lengths": [7], "limit": 7, "special_ids": kt.SpecialIds()}
DRAWN = {"temperature": [1.0], "uniforms": np.zeros((1, 7))}


def find(step=step, constraints=None, **options):
    options = LIMITS | {"beam_size": 3} | options
    if constraints:
        options["constraints"] = search.Constraints(**constraints)
    return search.beam_search(step, (), **options)


def constrained(**constraints):
    return find(constraints=constraints)


def draw(step=step, **options):
    return search.sample_tokens(step, (), **LIMITS | DRAWN | options)


def generator():
    return kt.Generator(transformer(), kt.DecodingConfig(max_output_length=7))


def text_of(prompts, length=5, **options):
    model = language_model(positions="learned", max_positions=19)
    return kt.LanguageSampler(model)(prompts, length, **options)


def without_steps():
    """A model of a layer that cannot decode one position after another."""

    class Model(kt.LanguageModel):
        def make_layer(self, name):
            return kt.EncoderLayer(2, 8, name="own")

    return Model(language_model().config)


def translator(**options):
    model = kt.Transformer(tiny_run.model().config.replace(**options))
    return kt.Translator(model, tiny_run.tokenizers())


INPUTS = "`inputs` must be a pair, (source, target_in). Received: "
SAME_MASK = "`mask` must be the same for all queries"
PADDING = "`pad_id` of ... must be the model's, 1. Received: ...(pad_id=0)"
NO_FLASH = "`flash_attention` must be None or False"
ERRORS = {
    # Shapes of layers.
    "kt.MultiHeadAttention(2, 3)(X[0])":
        "`query`, ... must have the shapes (B, T, D) ...Received: (5, 6)",
    "kt.MultiHeadAttention(2, 3)(X[:, None])": "`query`...Received: (2, 1, 5, 6)",
    "kt.MultiHeadAttention(2, 3)(X, OTHER[0])": "`value`...(2, 5, 6), (7, 6)",
    "kt.MultiHeadAttention(2, 3)(X, OTHER, OTHER[0])": "`key` must..., (7, 6)",
    "kt.EncoderLayer(2, 8)(X[0])": "`inputs`...(B, T, D)",
    "kt.EncoderLayer(2, 8)(IDS)": "`inputs`...(B, T, D): embed ids first",
    "built(kt.EncoderLayer(2, 8), X.shape)(X[0])": "expected ndim=3, found ndim=2",
    "built(kt.MultiHeadAttention(2, 3), X.shape)(X[0])": "expected ndim=3",
    "built(kt.MultiHeadAttention(2, 3), X.shape, OTHER.shape)(X, OTHER[0])":
        "`value`...(7, 6)",
    "built(kt.DecoderLayer(2, 8), X.shape, OTHER.shape)(X, OTHER[0])":
        "`value`...(7, 6)",
    **{
        f"{layer}(INTEGERS{others})": (TypeError, "`inputs` must be float...embed ids")
        for layer, others in (
            ("kt.EncoderLayer(2, 8)", ""), ("kt.CausalLayer(2, 8)", ""),
            ("kt.DecoderLayer(2, 8)", ", OTHER"), ("kt.PositionalEncoding()", ""),
            ("kt.EncoderStack(ENCODER)", ""),
        )
    },
    # Names of other systems.
    **{
        f"kt.{call}": (TypeError, f"has no argument `{theirs}`. Here it is {ours}")
        for call, theirs, ours in (
            ("EncoderLayer(intermediate_dim=8, num_heads=2)", "intermediate_dim",
             "`d_ff`"),
            ("EncoderLayer(2, 8, dropout=0.1)", "dropout", "`dropout_rate`"),
            ("DecoderLayer(d_model=6, num_heads=2, d_ff=8)", "d_model",
             "`d_model` of an embedding or a configuration"),
            ("MultiHeadAttention(num_heads=2, head_dim=3)", "head_dim", "`key_dim`"),
            ("PositionalEmbedding(vocab_size=9, d_model=6)", "vocab_size",
             "`vocabulary_size`"),
            ("FeedForward(dim_feedforward=8)", "dim_feedforward", "`d_ff`"),
            ("SSRU(units=8, hidden_size=8)", "hidden_size", "`d_model` of"),
            *((f"{call}num_layers=4)", "num_layers", "in the configuration of a mo")
              for call in ("Transformer(", "LanguageModel(", "TransformerConfig(",
                           "TransformerConfig.preset('tiny', ")),
            ("LanguageModelConfig(vocab_size=9)", "vocab_size", "`vocabulary_size`"),
        )
    },
    "kt.CausalLayer(2, 8)(X[None])": "`inputs`...(B, T, D",
    "kt.DecoderLayer(2, 8)(X, OTHER[0])": "`value`...(7, 6)",
    "kt.FeedForward(8)(X[0, 0])": "ndim",
    "kt.DecoderLayer(2, 8)(X)": (TypeError, "encoder_output"),
    # Widths: unknown ones, and sub-layers of another one.
    **{
        f"kt.{layer}(OPEN)":
            f"`{name}` must have a last axis of known size...{layer.partition('(')[0]}"
            " is built for. Received: shape (None, None, None)"
        for name, layers in {
            "query": ("MultiHeadAttention(2, 3)",),
            "inputs": ("EncoderLayer(2, 8)", "CausalLayer(2, 8)", "SSRU()",
                       "FeedForward(8)", "PositionalEncoding('learned', 9)"),
        }.items()
        for layer in layers
    },
    "kt.DecoderLayer(2, 8)(WIDE, OPEN)":
        "`encoder_output` must have a last axis of known size...DecoderLayer is built",
    "kt.EncoderStack(ENCODER)(OPEN)": "`inputs`...EncoderLayer is built for",
    **{
        f"built({layer}, (None, None, 9))(X)": "axis -1 of input shape to have value 9"
        for layer in
        ("kt.MultiHeadAttention(2, 3)", "kt.EncoderLayer(3, 8)", "kt.FeedForward(8)")
    },
    "with_part('feed_forward', 9)(X)":
        "`feed_forward` must return outputs as wide as its inputs...width 9 ...width 6",
    "with_part('feed_forward', 1)(X)": "width 1 for inputs of width 6",
    "with_part('self_attention', 9)(X)": "`self_attention` must return outputs as",
    "kt.PositionalEncoding()(X[0])": "expected ndim=3",
    'kt.PositionalEncoding("learned", 9)(X[None])': "expected ndim=3",
    # Masks.
    'kt.MultiHeadAttention(2, 3)(X, attention_mask=full(5, 5, dtype="float32"))':
        (TypeError, "`attention_mask` must be boolean or of integers...: dtype float3"),
    'kt.MultiHeadAttention(2, 3)(X, value_mask=full(2, 5, dtype="float32"))':
        (TypeError, "`value_mask` must be boolean or of integers"),
    "kt.MultiHeadAttention(2, 3)(X, mask=full(2, 5, dtype=int))":
        (TypeError, "`mask` must be boolean, Tr"),
    "kt.MultiHeadAttention(2, 3)(X, mask=full(2, 4))":
        "`mask` must fit the inputs, (B, H, T, S) = (2, None, 5, 5)...(2, 1, 1, 4",
    "kt.MultiHeadAttention(2, 3)(X, mask=full(3, 5))": "`mask` must fit...(3, 1, ",
    "kt.MultiHeadAttention(2, 3)(X, mask=full(2, 4, 5))": "`mask` must fit the inp",
    "kt.MultiHeadAttention(2, 3)(X, mask=full(2, 2, 5, 5))": "`mask`...(B, S) or (B, T",
    "kt.MultiHeadAttention(2, 3)(X, attention_mask=full(2, 5))":
        "`attention_mask` must fit...1, 2, 5",
    "kt.MultiHeadAttention(2, 3)(X, attention_mask=full(5))":
        "`attention_mask` must fit the inputs",
    "kt.MultiHeadAttention(2, 3)(X, OTHER, OTHER, key_mask=full(2, 5))":
        "`key_mask` must fit the inputs",
    "kt.EncoderLayer(2, 8)(X, mask=full(2, 4))": "`mask` must fit the inputs",
    "kt.DecoderLayer(2, 8)(X, OTHER, encoder_output_mask=full(2, 5))":
        "`mask` must fit the inputs, ... = (2, None, 5, 7)",
    "kt.SSRU()(X, mask=full(1, 5, 5))": SAME_MASK,
    "masks.valid_length_mask(3, 3)": "`valid_lengths` must have the shape",
    "masks.valid_length_mask([[[1]]], 3)": "`valid_lengths` must have the sh",
    "masks.attention_mask(IDS * 1.0)": (TypeError, "`mask` must be boolean...float64"),
    "masks.attention_mask(PAIRS[0])": "`mask` must have the shape...(3,)",
    "masks.mask_of_keys(masks.causal_mask(3))": SAME_MASK,
    # Options of attention.
    "kt.MultiHeadAttention(6, 3, num_key_value_heads=4)":
        "`num_heads` must be a multiple...=6, ...=4",
    'kt.MultiHeadAttention(2, 5, positions="rotary")':
        "`key_dim` must be even...key_dim=5",
    'kt.MultiHeadAttention(2, 4, positions="sinusoidal")':
        "`positions` must be 'rotary', 'alibi'",
    "kt.MultiHeadAttention(2, 4, positions=3)": "`positions` must be 'rotary",
    'kt.MultiHeadAttention(2, 4, positions="alibi")(X, OTHER)':
        "`positions` need self-attention",
    "kt.RotaryPositions(base=1)": "`base` must be above 1",
    "kt.AlibiPositions(after=0)": "`after` must be above 0",
    "example('relu_attention').ReluAttention(2, 4, flash_attention=True)(X)":
        NO_FLASH + "...`weigh` is another function",
    "example('additive_attention').MultiHeadAdditiveAttention(2, 4, "
    "flash_attention=True)(X)": NO_FLASH + "...`score` is another function",
    "kt.MultiHeadAttention(2, 4, dropout=0.1, flash_attention=True)":
        NO_FLASH + "...no attention weights",
    "kt.SSRU()(X, use_causal_mask=False)": "`use_causal_mask` must be True",
    # Options of layers, which come from one table.
    "kt.EncoderLayer(2, 11)(np.ones((1, 3, 15)))": "multiple of `num_heads`...=15",
    'kt.EncoderLayer(2, d_ff="wide")': (TypeError, "`d_ff` must be int. Rec"),
    "kt.EncoderLayer(2, 8, d_f=3)": "Unrecognized...d_f",
    'kt.FeedForward(7, activation="nonsense")': "nonsense",
    # Embeddings.
    **{
        f"{model}({ids})": (error, f"`ids` must {words}")
        for model in ("kt.PositionalEmbedding(11, 6)", "language_model()")
        for ids, error, words in (
            ("IDS[0]", ValueError, "have the shape (B, T)...shape (5,)"),
            ("IDS[..., None]", ValueError, "have the shape (B, T)...shape (2, 5, 1)"),
            ("{'ids': IDS}", TypeError, "be one tensor...a dictionary with the keys '"),
            ("RAGGED_IDS", TypeError, "be a padded dense tensor"),
            ("IDS > 3", TypeError, "be integers...Received: dtype bool"),
            ("IDS - 10", ValueError, "be ids from 0 to 10. Received: the id -7"),
            ("IDS + 1", ValueError, "be ids from 0 to 10...Received: the id 11"),
        )
    },
    'kt.PositionalEmbedding(11, 6, dtype="mixed_bfloat16")(IDS.astype("float32"))':
        (TypeError, "`ids` must be integers; in a functional model use...bfloat16"),
    "kt.PositionalEmbedding(11, 6)(np.ones((2, 3, 5)), reverse=True)":
        "`ids` must be states (B, T, 6) with `reverse`. Received: shape (2, 3, 5)",
    "kt.PositionalEmbedding(11, 6)(keras.Input((6,)), reverse=True)":
        "`ids` must be states (B, T, 6) with `reverse`. Received: shape (None, 6)",
    'kt.PositionalEmbedding(11, 6, positions="learned", max_length=4)(IDS)':
        "longer than the learned...max_length=4",
    'kt.PositionalEmbedding(11, 6, positions="learned", '
    "max_length=7)(IDS, start=3)": "5 positions, start=3, max_length=7",
    'kt.PositionalEncoding("learned", 4)(X)': "longer than the learned...h=4",
    'kt.PositionalEmbedding(11, 6, positions="learned")':
        "`max_length` must be a positive integer",
    'kt.PositionalEmbedding(11, 6, positions="rotary", max_length=3)':
        "`positions` must be one of sinusoidal",
    'kt.PositionalEmbedding(11, 7, positions="sinusoidal-halves")':
        "`d_model` must be even...d_model=7",
    'kt.TransformerConfig(d_model=7, num_heads=1, positions="sinusoidal-marian")':
        "`d_model` must be even...d_model=7",
    'kt.sinusoidal_encoding(np.arange(3), 8, "learned")':
        "`positions` must be one of sinusoidal, sinus",
    # Layers of others.
    "kt.MultiHeadAttention.from_keras(keras.layers.Dense(2))":
        (TypeError, "Received: Dense"),
    "kt.MultiHeadAttention.from_keras(keras.layers.MultiHeadAttention(2, 3))":
        "`layer` must be built",
    "kt.MultiHeadAttention.from_keras(theirs(OtherAttention))":
        (TypeError, "`layer` must be a ...and no subclass...OtherAttention"),
    "kt.MultiHeadAttention.from_keras(theirs(rounded=True))":
        "convert it first, then quantize",
    "example('relu_attention').ReluAttention.from_keras(theirs())":
        (TypeError, "no counterpart of ReluAttention"),
    # Adapters.
    "kt.enable_lora(built(kt.FeedForward(8), (None, 5, 6)), 0)":
        "`rank` must be a positive integer",
    "kt.enable_lora(built(kt.PositionalEmbedding(9, 4), (None, 5)), 2)":
        "`model` must have layers of the class `keras.layers.Dense`",
    "kt.enable_lora(kt.FeedForward(8), 2)": "'hidden_dense', which is not built",
    'kt.enable_lora(built(kt.FeedForward(8, kernel_constraint="non_neg"), '
    "(None, 5, 6)), 2)": "which has a constraint",
    # What a model is called with.
    "transformer()((IDS[0], IDS))":
        "`source` must have the shape (B, S). Received: shape (5,)",
    "transformer()((IDS, IDS[:1]))":
        "`source` and `target_in` must have the same number of rows. Received: 2 and 1",
    "transformer()(IDS)": (TypeError, INPUTS + "one tensor of shape (2, 5)"),
    "transformer()(PAIR)":
        (TypeError, INPUTS + "a dictionary with the keys 'source', 'target'"),
    "transformer()((IDS, IDS, IDS))": (TypeError, INPUTS + "a tuple of 3"),
    **{
        f"{model}(IDS, IDS)": (TypeError, INPUTS + "2 arguments")
        for model in ("transformer()", "kt.Ensemble([transformer(), transformer()])")
    },
    "compiled().fit(PAIR, IDS, verbose=0)": (TypeError, INPUTS + "a dictionary"),
    **{
        f"{model}({inputs})": (TypeError, INPUTS + received)
        for model in ("transformer()", "kt.Ensemble([transformer(), transformer()])")
        for inputs, received in (
            ("{'source': ID, 'target': ID}", "a dictionary with the keys 'source', 't"),
            ("ID", "one tensor of shape (None, None)"),
            ("(ID, ID, ID)", "a tuple of 3"),
        )
    },
    "transformer()((IDS, RAGGED_IDS))":
        (TypeError, "`target_in` must be a padded dense tensor"),
    # Arguments of models.
    "kt.Transformer({'d_model': 16})":
        (TypeError, "`config` must be of the class `TransformerConfig`"),
    "kt.LanguageModel({'d_model': 16})":
        (TypeError, "`config` must be of the class `LanguageModelConfig`"),
    "kt.EncoderStack({'num_layers': 2})": (TypeError, "of the class `EncoderConfig`"),
    "language_model(end_id=1)": "must be different ids below the vocabulary size",
    "language_model(vocabulary_size=2)": "vocabulary size 2",
    "language_model(d_model=7)": "`d_model` must be a multiple",
    "language_model(positions='learned', max_positions=19).start_decoding(1, 20)":
        "Learned positions must cover `length`. Received: 20 tokens, max_positions=19",
    "kt.Ensemble([transformer()])": "at least two members. Received: 1",
    "kt.Ensemble([transformer(), transformer(tied_embeddings='two-way', "
    "target_vocabulary_size=9)])":
        "must have one `target_vocabulary_size`. Received: 11, 9",
    "kt.Ensemble([transformer(), kt.Ensemble([transformer(), transformer()])])":
        (TypeError, "another `Seq2Seq`. Received: Ensemble"),
    # Losses, schedules and `compile`.
    **{
        f"kt.MaskedCrossentropy({value})":
            "`label_smoothing` must be a number in [0, 1). Received: "
            f"label_smoothing={shown}"
        for value, shown in (("-0.1", "-0.1"), ("1.0", "1.0"), ("2", "2"))
    },
    "kt.TransformerSchedule(0)": "`d_model` must be a positive number. Received: d_mod",
    "kt.TransformerSchedule(16, warmup_steps=0)":
        "`warmup_steps` must be a positive number",
    "compiled(gradient_accumulation_steps=0)": "`gradient_...` must be at least 1",
    "compiled(nonfinite='ignore')": "`nonfinite` must be one of 'stop', 'skip'",
    "compiled(optimizer=keras.optimizers.Adam(gradient_accumulation_steps=2))":
        "Give `gradient_accumulation_steps` to `compile`",
    "compiled(optimizer=keras.optimizers.LossScaleOptimizer("
    "keras.optimizers.Adam(gradient_accumulation_steps=2)))":
        "Give `gradient_...` to `compile`",
    "kt.split_batches_over_cores(0)": "num_cores",
    "compiled(loss_weights=[1.0, 2.0]).fit((IDS, IDS), IDS, verbose=0)":
        "must match the number of losses",
    **{
        f"compiled({options}, pad_id=1)": PADDING
        for options in (
            "kt.MaskedCrossentropy()", "[kt.MaskedCrossentropy()]",
            "{'logits': kt.MaskedCrossentropy()}",
            "metrics=[kt.MaskedAccuracy(1), kt.Perplexity()]",
            "metrics=[['accuracy', kt.MaskedAccuracy()]]",
            "metrics={'logits': [kt.MaskedAccuracy()]}",
            "weighted_metrics=[kt.Perplexity()]",
        )
    },
    "language_model(pad_id=1, start_id=0).compile('sgd', kt.MaskedCrossentropy())":
        PADDING,
    # Decoding.
    "find(beam_size=0)": "`beam_size` must be at least 1",
    "find(limit=0)": "`limit` must be at least 1",
    "find(n_best=5)": "`n_best` must be from 1 to `beam_size`",
    "find(n_best=0)": "`n_best` must be from 1 to `beam_size`",
    "find(length_penalty_form='log')": "`length_penalty_form` must be 'gnmt' or 'po",
    "find(max_lengths=np.array(7))": "`max_lengths` must have one number a sentence",
    "find(max_lengths='7')": "`max_lengths` must have one number a sentence",
    "find(constraints={'min_output_length': 0})":
        "`min_output_length` must be at least 1",
    "find(constraints={'prefix': np.zeros(3)})":
        "`prefix` must have one row a sentence",
    "find(lambda ids, parents, state: (np.zeros((1, 1, 7)), state))":
        "`step` must return logits of shape",
    "draw(limit=0)": "`limit` must be at least 1",
    "draw(length_penalty_form='log')": "`length_penalty_form` must be 'gnmt' or 'po",
    "draw(max_lengths=np.array(7))": "`max_lengths` must have one number a sentence",
    **{
        f"draw(temperature={value})": "`temperature` must have one number a sentence"
        for value in ("1.0", "None", "'1.0'", "['1.0']", "[[1.0]]")
    },
    "draw(uniforms=np.zeros((1, 6)))": "`uniforms` must have one number a sentence",
    "draw(uniforms=np.zeros(7))": "`uniforms` must have one number a sentence",
    "draw(top_k=0)": "`top_k` must be at least 1",
    "draw(top_p=0.0)": "`top_p` must be above 0 and at most 1",
    "draw(top_p=1.1)": "`top_p` must be above 0 and at most 1",
    "draw(constraints=search.Constraints(min_output_length=0))":
        "`min_output_length` must be at least 1",
    "draw(lambda ids, parents, state: (np.zeros((1, 1, 7)), state))":
        "`step` must return logits of shape",
    "text_of(IDS[0])": "`prompts` must have one row a text...shape (5,)",
    "text_of(IDS - 1)": "`prompts` must be ids from 0 to 10...Received: the id -1",
    "text_of(IDS + 1)": "`prompts` must be ids from 0 to 10...Received: the id 11",
    "text_of(IDS, 2)": "`length` must be at least that of the prompts",
    "text_of(IDS, 20)": "max_positions=19",
    "kt.LanguageSampler(functional())":
        (TypeError, "`model` must be a `LanguageModel`...Received: a Functional"),
    "kt.LanguageSampler(tiny_run.model())": (TypeError, "Received: a Transformer"),
    "kt.LanguageSampler(None)": (TypeError, "Received: a NoneType"),
    "without_steps().decoding_weights()":
        (TypeError, "each must be a `CausalLayer`...'own' of the class EncoderLayer"),
    "kt.Generator(language_model(), kt.DecodingConfig())":
        (TypeError, "`model` must be a Keras model that maps (source, target_in)"),
    "Nobody().translate(['a'], dont_translate=['Acme'])": (
        "`terms` and `dont_translate` need a vocabulary with pieces for spans, as"
    ),
    "Nobody().translate([], dont_translate='Acme')": (
        TypeError, "`dont_translate` must be a sequence of strings, such as",
    ),
    "Nobody().translate([], {' ': 'a'})": (
        "`terms` and `dont_translate` must be texts with a visible character"
    ),
    "Nobody().translate([], {'a': '\ufdd0'})": "Received: terms={'a': '\\ufdd0'}, ",
    "Nobody().translate([], {'a': 3})":
        (TypeError, "`terms` must be a sequence of strings...Received: ['a', 3]"),
    "kt.Translator(language_model(), tiny_run.tokenizers())":
        (TypeError, "`model` must be a Keras model that maps (source, target_in)"),
    "kt.LanguageSampler(language_model(), top_k=0)": "`top_k` must be at least 1",
    "kt.LanguageSampler(language_model(), top_p=1.5)": "`top_p` must be at most 1.0",
    "kt.LanguageSampler(language_model(), min_output_length=0)":
        "`min_output_length` must be at least 1. Received: min_output_length=0",
    "generator().score(IDS, IDS - 10)":
        "`target_out` must be ids from 0 to 10...Received: the id -7, pad_id=0",
    "generator().attention(IDS, IDS + 1)": "`target_out`...the id 11, pad_id=0",
    "generator().search(IDS, prefix=IDS - 10)": "`prefix` must be ids...the id -7",
    # Losses and metrics.
    **{
        f"{function}({ids}, full(2, 5, 11, dtype=float))": f"`y_true` must {words}"
        for function in (
            "kt.MaskedCrossentropy(0.1)", "kt.MaskedAccuracy().update_state",
            "kt.Perplexity().update_state",
        )
        for ids, words in {
            "IDS - 103": "be ids from 0 to 10, or `pad_id`...the id -100, pad_id=0",
            "(IDS + 1).tolist()": "be ids...Received: the id 11, pad_id=0",
            "IDS[..., None]": "be ids of the shape (2, 5), for logits of the shape "
                "(2, 5, 11)...y_true of the shape (2, 5, 1)",
            "np.eye(11)[IDS]": "be ids of the shape...one-hot...(2, 5, 11)",
            "IDS[:, :3].tolist()": "be ids of the shape (2, 5)...shape (2, 3)",
        }.items()
    },
    "compiled(run_eagerly=True).fit((IDS, IDS), IDS[..., None], verbose=0)":
        "`y_true` must be ids of the shape (2, 5), for logits...y_true of...(2, 5, 1)",
    "compiled(run_eagerly=True).fit((IDS, IDS), IDS - 103, verbose=0)":
        "`y_true` must be ids from 0 to 10...: the id -100, pad_id=0",
    "kt.TokenDistillation().compute_loss(full(2, 5, 7), transformer()((IDS, IDS)))":
        "must have one shape (B, T, V)...teacher_outputs of the shape (2, 5, 7), stu",
    # Text.
    **{
        f"tiny_run.translator().nbest({texts})":
            (TypeError, "`texts` must be a sequence of strings")
        for texts in ("'a dog'", "b'a dog'", "[b'a dog']", "[None]", "['a', 1]")
    },
    **{
        f"tiny_run.translator(){method}({texts})":
            (TypeError, "`texts` must be a sequence of strings")
        for method in ("", ".sample", ".align")
        for texts in ("{'text': ['a']}", "{'a'}", "b'a'", "3", "None", "[['a']]",
                      "np.array('a')", "np.array([['a']])")
    },
    "tiny_run.translator().complete(['a', 'b'], ['c'])":
        "the same number of texts. Received: 2, 1",
    "tiny_run.translator().score(['a', 'b'], ['c'])":
        "the same number of texts. Received: 2, 1",
    "tiny_run.translator().score(['a'], [b'c'])":
        (TypeError, "`targets` must be a sequence of strings"),
    "tiny_run.translator().complete(['a'], {'a': 'b'})":
        (TypeError, "`prefixes` must be a sequence of strings"),
    "tiny_run.translator().nbest(['a'], n_best=4)":
        "from 1 to 3, the beam size or the `n_best` of the export. Received: n_best=",
    "tiny_run.translator().nbest(['a'], n_best=0)": "`n_best` must be",
    "tiny_run.translator()([chr(0xd800)])": "`texts` must be Unicode: a lone ",
    "setattr(t := translator(), 'batch_size', 0) or t(['a'])": (
        "`batch_size` must be at least 1"
    ),
    "translator(pad_id=3, unknown_id=0)": "must have the same `pad_id`",
    "translator(source_vocabulary_size=307, target_vocabulary_size=307)":
        "Received: 308 pieces, source_vocabulary_size=307",
    "translator(positions='learned', max_positions=9)": "306 tokens, max_positions=9",
}  # fmt: skip


@pytest.mark.parametrize("call", ERRORS)
def test_what_cannot_be_meant_is_refused(call):
    given = ERRORS[call]
    error, words = given if isinstance(given, tuple) else (ValueError, given)
    words = ".*".join(map(re.escape, words.split("...")))
    with pytest.raises(error, match=words):
        eval(call, globals() | {"masks": masks, "example": load})


class Nobody(search.TextTranslator):
    """A translator of which nothing is asked that can be answered."""

    most, path = 3, "nobody"


def listen(port):
    return server.listening("127.0.0.1", port)


def numbers_of(config_class):
    """The options of a configuration that are numbers, as a row of `NUMBERS`."""
    whole, others = [], []
    for field in dataclasses.fields(config_class):
        kinds = set(field.type.split(" | "))
        name = field.name + "?" * ("None" in kinds)
        name += "-" * (field.name == "alignment_layer")
        whole += [name] * ("int" in kinds)
        others += [name] * ("float" in kinds)
    return f"{' '.join(whole)}; {' '.join(others)}"


# What takes numbers: a function and what else it gets, the names of its whole numbers
# and, after ";", those of the others. With "?" it may be `None`, with "-" negative and
# with "+" infinite.
SIZED, SUBLAYER = {"num_heads": 2, "key_dim": 4}, {"num_heads": 2, "d_ff": 8}
HEADS = "num_heads key_dim value_dim? output_shape? num_key_value_heads? seed?-"
TABLE = {"vocabulary_size": 9, "d_model": 6}
CHECKED = "ids_below? seed; tolerance"
CONFIGS = (
    "TransformerConfig LanguageModelConfig EncoderConfig TokenizerConfig DataConfig "
    "TrainingConfig DecodingConfig"
)
NUMBERS = {
    # Layers.
    "kt.MultiHeadAttention, **SIZED": f"{HEADS}; dropout",
    "kt.EncoderLayer, **SUBLAYER": numbers_of(SublayerConfig),
    "kt.CausalLayer, **SUBLAYER": numbers_of(SublayerConfig),
    "kt.DecoderLayer, **SUBLAYER": numbers_of(SublayerConfig),
    "kt.FeedForward, d_ff=8": "d_ff; dropout_rate",
    "kt.PositionalEncoding, positions='learned'": "max_length; dropout_rate",
    "kt.PositionalEncoding(), X": "start",
    "kt.PositionalEmbedding, **TABLE":
        "vocabulary_size d_model max_length? pad_id?-; dropout_rate",
    "kt.RotaryPositions": "; base",
    "kt.AlibiPositions": "; after",
    "kt.sinusoidal_encoding, [0]": "d_model",
    "layers.rotate, X, [0]": "; base",
    "layers.alibi_slopes": "num_heads",
    "kt.enable_lora, None, rank=2": "rank; lora_alpha?-",
    # Masks.
    "kt.padding_mask, IDS": "pad_id-",
    "kt.causal_mask, length=3": "length num_keys?",
    "kt.valid_length_mask, [1]": "length",
    # Losses, metrics, optimizers.
    "kt.MaskedCrossentropy": "pad_id-; label_smoothing",
    "kt.TokenDistillation": "; temperature",
    "kt.MaskedAccuracy": "pad_id-",
    "kt.Perplexity": "pad_id-",
    "kt.TransformerSchedule, d_model=8": "; d_model warmup_steps scale",
    "kt.WarmupSchedule, learning_rate=0.1, warmup_steps=9":
        "; learning_rate warmup_steps",
    "training.make_optimizer, kt.TrainingConfig()": "; d_model",
    "compiled": "gradient_accumulation_steps",
    "kt.split_batches_over_cores": "num_cores?",
    # Configurations.
    **{f"kt.{name}": numbers_of(getattr(kt, name)) for name in CONFIGS.split()},
    "kt.RunConfig().fitted_to": "planned_updates",
    "kt.TrainingConfig().planned_updates": "num_batches",
    "kt.TransformerConfig().check_positions, what=''": "longest",
    # Models.
    "transformer().attention, *[None] * 3": "layer-",
    # Decoding.
    "kt.beam_search, step, (), **LIMITS": "limit beam_size n_best; length_penalty",
    "kt.sample_tokens, step, (), **LIMITS, **DRAWN":
        "limit top_k?; top_p? length_penalty",
    "search.length_penalty, length=3, alpha=1": "; length alpha",
    "kt.reordering, step, ()": "beam_size",
    "constrained": "min_output_length no_repeat_ngram_size never?",
    "kt.LanguageSampler, language_model()":
        "top_k? min_output_length no_repeat_ngram_size; top_p?",
    "text_of, IDS": "length seed; temperature+",
    "Nobody().nbest, []": "n_best",
    "Nobody().sample, []": "seed-; temperature+",
    "kt.LiteTranslator, 'no'": "threads?",
    # Text.
    "kt.Corpus, [], None": "seed",
    "lambda boundaries: kt.Corpus([], None, boundaries=[boundaries])": "boundaries",
    "kt.Corpus.batch, None": "step",
    "kt.Corpus.dataset, None": "first_epoch",
    "kt.Corpus.batches, None, first=0, number=1": "first number",
    "kt.learn_tokenizers, []": "; bad_line_share",
    "training.average_run, 'no', 'never'": "last?-",
    "bulk.distill, Nobody(), [], 'never'": "best_of; bad_line_share",
    "bulk.write_pairs, [], 'never'": "; by_share bad_line_share",
    "bulk.translate_file, None, [], 'never'": "window",
    "lambda window: next(bulk.translate_lines(None, [], window=window))": "window",
    "listen": "port",
    # Checks.
    "testing.assert_causal, None": CHECKED,
    "testing.assert_serializable, None": CHECKED,
    "testing.assert_padding_invariant, None": f"pad_id {CHECKED}",
    "testing.assert_cached_equals_uncached, language_model()":
        "length beam_size seed; tolerance",
}  # fmt: skip


@pytest.mark.parametrize("call", NUMBERS)
def test_what_is_no_number_is_refused_by_the_name_of_its_argument(call):
    function = eval(f"functools.partial({call})")
    whole, _, others = NUMBERS[call].partition(";")
    problems = []
    for word in (*whole.split(), *others.split()):
        name = word.rstrip("?-+")
        wrong = ["3", True, math.nan]
        wrong += [None] * ("?" not in word) + [-1] * ("-" not in word)
        wrong += [math.inf] * ("+" not in word) + [2.5] * (word in whole.split())
        for value in wrong:
            try:
                function(**{name: value})
            except (TypeError, ValueError) as error:
                if f"`{name}`" not in str(error):
                    problems.append(f"{name}={value!r}: {error}")
            else:
                problems.append(f"{name}={value!r} is taken")
    assert not problems, "\n".join(problems)


# Records that take what they get, and what other rows and tests try.
NOT_TRIED = {
    "SpecialIds",
    "search.Constraints",
    "search.Score",
    "search.Sentence",
    "search.Translation",
    "mixed_pairs",
    "layers.TransformerLayer",
    "bulk.BulkSummary",
    "bulk.RayTranslator",
}


def test_every_public_name_that_takes_numbers_has_its_row():
    tried = " ".join(NUMBERS)
    names = [f"kt.{name}" for name in kt.__all__]
    for part in (layers, search, bulk, training, testing):
        folder = part.__name__.rpartition(".")[2]
        names += [f"{folder}.{x}" for x in part.__all__ if x not in kt.__all__]
    missing = set()
    for name in names:
        thing = eval(name)
        if callable(thing) and not re.search(rf"{re.escape(name)}\b", tried):
            parameters = inspect.signature(thing).parameters.values()
            hints = " ".join(str(parameter.annotation) for parameter in parameters)
            if re.search(r"\b(int|float)\b", hints):
                missing.add(name.removeprefix("kt."))
    assert missing == NOT_TRIED


def test_adapters_are_added_once_and_to_nothing_before_all_can_have_them():
    layer = built(kt.EncoderLayer(2, 11), (None, 4, 6))
    layers.enable_lora(layer.feed_forward, 2)
    before = [w.path for w in layer.weights]
    with pytest.raises(ValueError, match="which has adapters already"):
        layers.enable_lora(layer, 2)
    assert [w.path for w in layer.weights] == before


# Commands.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Good and bad files."""
    folder = tmp_path_factory.mktemp("bad")
    good = tiny_run.write_pairs(folder / "good.tsv").read_bytes()
    contents = {
        "three.en": b"a\nb\nc\n",
        "two.de": b"a\nb\n",
        "empty.tsv": b"",
        "latin1.tsv": b"dog\tHund\nb\xe4r\tbear\n",
        "latin1.json": b'{"model": "\xe4"}',
        "no_tab.tsv": b"dog\tHund\ndog Hund\n",
        "bad_terms.tsv": b"dog\tHund\nDog\n \tHund\n",
        "no_target.tsv": b"dog\tHund\nbear\t \n",
        "cut.tsv.gz": gzip.compress(good)[:-20],
        "damaged.tsv.gz": b"\x1f\x8b" + b"\x07" * 50,
        "no_json.json": b'{\n"model": oops}',
        "full/notes.txt": b"mine",
        "broken/model.keras": b"no model",
        "broken/decoding.json": b"{}",
        "broken/tokenizer/tokenizer.json": b"{}",
        "stopped/config.json": b"{}",
        "begun/data.json": b'{"command": "keras-transformer train --run a"}',
        "halved/data.json": b"{",
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(content)
    return folder


# {f} is the folder above, {o} an empty one for output, {s} a SavedModel, {r} a run.
GOOD = "train --train {f}/good.tsv --run {o}/run --vocabulary-size 300 "
RAY = "translate {s} --ray-workers "
STRICT = "--run {o}/run --vocabulary-size 300 --bad-line-share 0"
COMMANDS = {
    # Options.
    GOOD + "--d-model 10 --num-heads 3": "`d_model` must be a multiple of `num_heads`",
    GOOD + "--dropout-rate 1.0": "argument --dropout-rate: must be below 1.0",
    GOOD + "--dropout-rate -0.1": "argument --dropout-rate: must be at least 0.0",
    GOOD + "--activation sharp": "activation",
    GOOD + "--monitor bleu": "`monitor` 'bleu' needs validation pairs: give some (`--",
    GOOD + "--patience 2": "`patience` needs validation pairs: give some (`--valid`)",
    GOOD + "--init {f}/missing": "missing: No such file",
    GOOD + "--init {r} --num-heads 4": "`num_heads` is 4 and was 2",
    GOOD + "--schedule cosine": "`learning_rate` must be given unless `schedule`",
    # Files of options.
    GOOD + "--config {f}/missing.json": "missing.json: No such file or directory",
    GOOD + "--config {f}/full": "full: Is a directory",
    GOOD + "--config {f}/no_json.json": "no_json.json:2: not valid JSON",
    GOOD + "--config {f}/latin1.json": "latin1.json",
    # Training text.
    "train --train {f}/missing.tsv --run {o}/run": "missing.tsv: No such file",
    "train --train {f}/full --run {o}/run": "full must be a regular file",
    "train --train {f}/empty.tsv --run {o}/run": "There are no pairs in ",
    "train --train {f}/three.en {f}/two.de --run {o}/run": "has 3 lines but",
    "train --train {f}/two.de {f}/two.de {f}/two.de --run {o}/run": "two aligned files",
    "train --train {f}/latin1.tsv " + STRICT: "latin1.tsv:2: source is not valid UTF-8",
    "train --train {f}/no_tab.tsv " + STRICT: "no_tab.tsv:2: not source",
    "train --train {f}/no_target.tsv --keep empty " + STRICT: "no_target.tsv:2: target",
    GOOD + "--keep doubles": "`keep` must be one of entities, empty",
    "train --train {f}/cut.tsv.gz " + STRICT: "cut.tsv.gz is a damaged gzip file",
    "train --train {f}/damaged.tsv.gz " + STRICT: "damaged.tsv.gz is a damaged gzip",
    GOOD + "--valid {f}/missing.tsv": "missing.tsv: No such file",
    GOOD + "--valid {f}/no_tab.tsv --bad-line-share 0": "no_tab.tsv:2: not source",
    GOOD + "--max-length 2": "The corpus has no good pair",
    "train --train {f}/good.tsv --run {f}/full": "needs a new or empty directory",
    "train --train {f}/good.tsv --run {f}/good.tsv": "needs a new or empty directory",
    "quickstart --run {f}/full --saved-models {o}": "needs a new or empty directory",
    # Models.
    "translate {f}/missing dog": "missing must be a training run, a SavedModel",
    "translate {f}/full dog": "full must be a training run",
    "translate {f}/stopped dog": "stopped must be a training run",
    "translate {f}/begun dog": "begun is an unfinished run. To finish it: keras-tr",
    "translate {f}/halved dog": "halved/data.json is damaged: ",
    "translate {f}/broken dog": "model.keras",
    "translate {s} --beam-size 2 dog": "Received: beam_size",
    "evaluate {f}/full --test {f}/good.tsv": "full must be a training run",
    "export {f}/full --output {o}/1": "full holds no",
    "export {s} --output {o}/1": "holds no trained translator",
    "export {r} --output {s}": "exists, and is never overwritten",
    "export {r} --output {o}/[1]/a": "must have none of [ ] * ? and \\, in which",
    "quickstart --run {o}/run --saved-models {o}/a?": "must have none of [ ] * ? and",
    "export {r} --output {o}/1 --n-best 9": "`n_best` must be from 1 to `beam",
    "export {r} --output {o}/1 --top-p 0": "argument --top-p: must be above 0.0",
    "export {r} --output {o}/1 --format web --litert-js {f} --quiet": "a node_modul",
    "export {r} --output {o}/1 --dtype int8": "argument --dtype: invalid choice",
    # Serving.
    "serve {r}": "run is a training run. First: keras-transformer export ",
    "serve {f}/full": "full must be a version, NAME/1, or hold SavedModels in dir",
    "serve {s}/variables": "variables must be a version, NAME/1, or hold Saved",
    "serve {s}/.. --port 65536": "`port` must be at least 0 and at most 65535",
    # Text to translate.
    "translate {s} --input {f}/good.tsv dog": "or `--input`, not both",
    "translate {s} --input {f}/missing": "missing: No such file or directory",
    "translate {s} --input {f}/latin1.tsv": "latin1.tsv:2: not valid UTF-8",
    "translate {s} dog --output {f}/full": "full is a directory",
    "translate {s} --terms {f}/bad_terms.tsv dog": "bad_terms.tsv:3: a line must be a",
    "translate {s} --terms {f}/good.tsv --n-best 2 dog": "`--terms` needs whole texts",
    "translate {s} --n-best 4 dog": "`n_best` must be from 1 to 3, the beam",
    "translate {r} --n-best 3 dog": "`n_best` must be from 1 to 2, the beam",
    "translate {s} --input {f}/latin1.tsv --output {o}/out": "not valid UTF-8",
    "translate {s} --input {f}/good.tsv --output {f}/good.tsv": "another file",
    "evaluate {s} --test {f}/good.tsv --output {f}/good.tsv": "another file than the",
    "distill {r} --train {f}/good.tsv --output {f}/good.tsv": "another file than the",
    "clean {f}/good.tsv --output {f}/good.tsv": "another file than the",
    "clean {f}/good.tsv --output {o}/a --by {f}/full": "full must be a training run",
    "clean {f}/good.tsv --output {o}/a --keep x": "`keep` must be one of entities",
    "clean {f}/good.tsv --output {o}/a --by-share 2": "--by-share: must be at most 1",
    "clean {f}/no_tab.tsv --output {o}/a --bad-line-share 0": "no_tab.tsv:2: not",
    "clean {f}/good.tsv --output {o}/a --encoding x": "`encoding` must be the name",
    # Ray.
    RAY + "0 --input {f}/good.tsv --output b": "--ray-workers: must be at least 1",
    RAY + "2 dog": "`--ray-workers` needs `--input` and `--output`",
    "translate {r} --ray-workers 2 --input {f}/good.tsv --output b": "no SavedModel",
    RAY + "2 --input {f}/good.tsv --output b --beam-size 2": "Received: beam_size",
    "evaluate {s} --test {f}/missing.tsv": "missing.tsv: No such file",
    "evaluate {s} --test {f}/no_tab.tsv --bad-line-share 0": "no_tab.tsv:2: not",
    "evaluate {s} --test {f}/good.tsv --bad-line-share -1": "must be at least 0",
    "evaluate {s} --test {f}/empty.tsv --output {o}/out": "There are no pairs",
}


LOAD_ONCE = functools.cache(tf.saved_model.load)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_ends_with_one_clear_line_and_leaves_nothing(
    command, folder, tmp_path, saved_model, run_directory, capsys, monkeypatch
):
    monkeypatch.setattr(tf.saved_model, "load", LOAD_ONCE)
    places = {"f": folder, "o": tmp_path, "s": saved_model, "r": run_directory}
    before = sorted(folder.rglob("*"))
    try:
        status = cli.main([word.format(**places) for word in command.split()])
    except SystemExit as stop:
        status = stop.code
    lines = capsys.readouterr().err.splitlines()
    if status == 1:
        assert len(lines) == 1
    else:
        assert status == 2
    assert lines[-1].startswith("keras-transformer")
    assert COMMANDS[command] in lines[-1]
    assert "Traceback" not in "".join(lines)
    # An empty directory does no harm: the same command can be given again.
    # The ids of a corpus that was read are kept for the next try.
    files = [path for path in tmp_path.rglob("*") if not path.is_dir()]
    assert not [path for path in files if "corpus" not in path.parts]
    assert sorted(folder.rglob("*")) == before
