"""What is refused: one table of calls and one of commands, with the words of each.

A row of `ERRORS` is a call, its exception where that is no `ValueError`, and parts of
the message in their order, with "..." between them.
"""

import functools
import gzip
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import cli, decoding, layers, masks
from tests import tiny_run

# Layers.
X, OTHER = np.ones((2, 5, 6), "float32"), np.ones((2, 7, 6), "float32")
IDS = np.array([[3, 4, 5, 0, 0], [6, 7, 8, 9, 10]])
IMAGES = np.ones((2, 4, 6, 3), "float32")
PATCHES = {"image_shape": (4, 6, 3), "patch_size": 2, "d_model": 8}
PAIRS = np.array([[1, 0, 1], [1, 1, 0]], bool)
RAGGED_IDS = tf.ragged.constant([[3, 4, 5], [6, 7]])
SHAPE = (None, None, 4)
# Models.
ENCODER = kt.EncoderConfig(num_layers=1, d_model=6, d_ff=8, num_heads=2)
LINEAR = ENCODER.replace(attention="linear", attention_dropout_rate=0.0)
SIZES = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 8, "num_heads": 2}
MASKING = {"mask_id": 4, "first_id": 5, "vocabulary_size": 29}
PAIR = {"source": IDS, "target": IDS}


def full(*shape, dtype=bool):
    return np.ones(shape, dtype)


def built(layer, *shapes):
    layer.build(*shapes)
    return layer


class OtherAttention(keras.layers.MultiHeadAttention):
    def _compute_attention(self, *args, **kwargs):
        return super()._compute_attention(*args, **kwargs)


def theirs(layer_class=keras.layers.MultiHeadAttention, rounded=False):
    layer = built(layer_class(2, 3), SHAPE, SHAPE)
    if rounded:
        layer.query_dense.quantize("int8")
    return layer


def transformer(**options):
    vocabularies = {"source_vocabulary_size": 11, "target_vocabulary_size": 11}
    options = SIZES | vocabularies | {"d_model": 6} | options
    return kt.Transformer(kt.TransformerConfig(**options))


def encoder(config=ENCODER):
    return kt.Encoder(config, 11)


def language_model(**options):
    sizes = {"num_layers": 1, "d_model": 6, "d_ff": 8, "num_heads": 2}
    options = {"vocabulary_size": 11} | sizes | options
    return kt.LanguageModel(kt.LanguageModelConfig(**options))


def functional():
    inputs = keras.Input((5,))
    return keras.Model(inputs, keras.layers.Dense(3)(inputs))


def of_features():
    return kt.Encoder(ENCODER, kt.FeatureEmbedding(11, 6))


def compiled(loss=None, pad_id=0, optimizer="sgd", **options):
    others = {1: {"start_id": 0}, 0: {}}[pad_id]
    model = transformer(pad_id=pad_id, **others)
    model.compile(optimizer, loss or kt.MaskedCrossentropy(pad_id=pad_id), **options)
    return model


def masked(**options):
    return kt.MaskedTokens(IDS, 2, **MASKING | options)


def step(ids, parents, state):
    return keras.ops.ones((len(ids), 11)), state


def search(step=step, constraints=None, **options):
    options = {"max_lengths": [7], "limit": 7, "beam_size": 3} | options
    if constraints:
        options["constraints"] = decoding.Constraints(**constraints)
    return decoding.beam_search(step, (), special_ids=kt.SpecialIds(), **options)


def draw(step=step, **options):
    options = {"max_lengths": [7], "limit": 7, "temperature": [1.0]} | options
    options = {"uniforms": np.zeros((1, 7))} | options
    return decoding.sample(step, (), special_ids=kt.SpecialIds(), **options)


def text_of(prompts, length=5, **options):
    model = language_model(positions="learned", max_positions=19)
    return kt.LanguageSampler(model)(prompts, length, **options)


def translator(**options):
    model = kt.Transformer(tiny_run.model().config.replace(**options))
    return kt.Translator(model, tiny_run.tokenizers())


INPUTS = "`inputs` must be a pair, (source, target_in). Received: "
RATE, ORDER = "(0, 1]", "The ids must be 0 < `mask_id` <"
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
    "kt.CausalLayer(2, 8)(X[None])": "`inputs`...(B, T, D",
    "kt.DecoderLayer(2, 8)(X, OTHER[0])": "`value`...(7, 6)",
    "kt.LocalAttention(2, 4, 3)(X[None])": "`query`, `value` and `key` must",
    "kt.FeedForward(8)(X[0, 0])": "ndim",
    "kt.DecoderLayer(2, 8)(X)": (TypeError, "encoder_output"),
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
    "kt.AdditiveAttention(4)(X, OTHER, mask=full(2, 5, dtype=int))":
        (TypeError, "`mask` must be boolean"),
    "kt.LocalAttention(2, 4, 3)(X, mask=full(1, 5, 5))": SAME_MASK,
    "kt.LinearAttention(2, 4)(X, mask=full(1, 5, 5))": SAME_MASK,
    "kt.SSRU()(X, mask=full(1, 5, 5))": SAME_MASK,
    "masks.local_window_mask(3, window=-1)": "`window` must be at least 0...=-1",
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
    "kt.AlibiPositions(after=0)": "`after` must be positive",
    "kt.LocalAttention(2, 4, 0)": "`window` must be a pos",
    "kt.LinearAttention(2, 4, dropout=0.1)": "`dropout` must be left out: L",
    "kt.LinearAttention(2, 4, num_key_value_heads=1)":
        "`num_key_value_heads` must be left out",
    'kt.PerformerAttention(2, 4, positions="alibi")':
        "`positions` must be left out: Performer",
    "kt.LinearAttention(2, 4)(X, return_attention_scores=True)":
        "`return_attention_scores` must be False: LinearAttention has no",
    "kt.LinearAttention(2, 4)(X, OTHER, use_causal_mask=True)":
        "`use_causal_mask` needs as many queries as keys...5 and 7",
    'kt.MultiHeadAdditiveAttention(2, 4, positions="rotary")':
        "`positions` must not be 'rotary'",
    "kt.MultiHeadAdditiveAttention(2, 4, flash_attention=True)":
        NO_FLASH + "...additive",
    "kt.LocalAttention(2, 4, 3, flash_attention=True)": NO_FLASH + "...blocks",
    "kt.LinearAttention(2, 4, flash_attention=True)": NO_FLASH + "...softmax",
    "kt.ReluAttention(2, 4, flash_attention=True)(X)":
        NO_FLASH + "...`weigh` is another function",
    "kt.MultiHeadAttention(2, 4, dropout=0.1, flash_attention=True)":
        NO_FLASH + "...no attention weights",
    "kt.SSRU()(X, use_causal_mask=False)": "`use_causal_mask` must be True",
    # Options of layers, which come from one table.
    "kt.EncoderLayer(2, 11)(np.ones((1, 3, 15)))": "multiple of `num_heads`...width=15",
    'kt.EncoderLayer(2, d_ff="wide")': (TypeError, "`d_ff` must be int. Rec"),
    "kt.EncoderLayer(2, 8, d_f=3)": "Unrecognized...d_f",
    'kt.FeedForward(7, activation="nonsense")': "nonsense",
    # Embeddings.
    "kt.PositionalEmbedding(11, 6)(IDS[0])":
        "`ids` must have the shape (B, T). Received: shape (5,)",
    "kt.PositionalEmbedding(11, 6)(IDS[..., None])": "shape (2, 5, 1)",
    "kt.FeatureEmbedding(11, 6)(IDS)": "`ids`...(B, T, F)...(2, 5)",
    "kt.PositionalEmbedding(11, 6)(IDS > 3)":
        (TypeError, "`ids` must be integers...Received: dtype bool"),
    'kt.PositionalEmbedding(11, 6, dtype="mixed_bfloat16")(IDS.astype("float32"))':
        (TypeError, "`ids` must be integers; in a functional model use...bfloat16"),
    "kt.PositionalEmbedding(11, 6)(RAGGED_IDS)":
        (TypeError, "`ids` must be a padded dense tensor"),
    'kt.PositionalEmbedding(11, 6, positions="learned", max_length=4)(IDS)':
        "longer than the learned...max_length=4",
    'kt.FeatureEmbedding(11, 6, positions="learned", '
    "max_length=7)(IDS[..., None], start=3)": "5 positions, start=3, max_length=7",
    'kt.PositionalEncoding("learned", 4)(X)': "longer than the learned...h=4",
    'kt.PositionalEmbedding(11, 6, positions="learned")':
        "`max_length` must be a positive integer",
    'kt.PositionalEmbedding(11, 6, positions="rotary", max_length=3)':
        "`positions` must be one of 'sinusoidal', ",
    'kt.PositionalEmbedding(11, 7, positions="sinusoidal-halves")':
        "`d_model` must be even...d_model=7",
    'kt.TransformerConfig(d_model=7, num_heads=1, positions="sinusoidal-marian")':
        "`d_model` must be even...d_model=7",
    'kt.sinusoidal_encoding(np.arange(3), 8, "learned")':
        "`kind` must be one of 'sinusoidal', 'sinus",
    "kt.PatchEmbedding((4, 6, 1), 4, 8)": "`patch_size` must divide the hei",
    "kt.PatchEmbedding((4, 6), 2, 8)": "`image_shape` must be (height, wid",
    "kt.PatchEmbedding(**PATCHES)(IMAGES[0])": "is incompatible w",
    "kt.PatchEmbedding(**PATCHES)(IMAGES[:, :, :4])": "is incompatible with",
    # Layers of others.
    "kt.MultiHeadAttention.from_keras(keras.layers.Dense(2))":
        (TypeError, "Received: Dense"),
    "kt.EncoderLayer.from_keras(keras.layers.Dense(2))":
        (TypeError, "`layer` must be a `keras_hub.layers.TransformerEncoder`"),
    "kt.MultiHeadAttention.from_keras(keras.layers.MultiHeadAttention(2, 3))":
        "`layer` must be built",
    "kt.MultiHeadAttention.from_keras(theirs(OtherAttention))":
        "OtherAttention, which overrides it",
    "kt.MultiHeadAttention.from_keras(theirs(rounded=True))":
        "convert it first, then quantize",
    **{
        f"kt.{kind}.from_keras(theirs())": (TypeError, f"no counterpart of {kind}")
        for kind in (
            "ReluAttention", "LocalAttention", "LinearAttention", "PerformerAttention",
            "MultiHeadAdditiveAttention",
        )
    },
    # Adapters.
    "kt.enable_lora(built(kt.FeedForward(8), (None, 5, 6)), 0)":
        "`rank` must be a positive integer",
    "kt.enable_lora(built(kt.PositionalEmbedding(9, 4), (None, 5)), 2)":
        "`model` must have layers of the class `keras.layers.Dense`",
    "kt.enable_lora(kt.FeedForward(8), 2)": "'hidden', which is not built",
    'kt.enable_lora(built(kt.FeedForward(8, kernel_constraint="non_neg"), '
    "(None, 5, 6)), 2)": "which has a constraint",
    # What a model is called with.
    "transformer()((IDS[0], IDS))":
        "`source` must have the shape (B, S). Received: shape (5,)",
    "transformer()((IDS, IDS[:1]))":
        "`source` and `target_in` must have the same number of rows. Received: 2 and 1",
    "kt.Tagger(of_features(), 5)(IDS)":
        "`ids` must have the shape (B, T, F). Received: shape (2, 5)",
    "transformer()(IDS)": (TypeError, INPUTS + "one tensor of shape (2, 5)"),
    "transformer()(PAIR)":
        (TypeError, INPUTS + "a dictionary with the keys 'source', 'target'"),
    "transformer()((IDS, IDS, IDS))": (TypeError, INPUTS + "a tuple of 3"),
    "compiled().fit(PAIR, IDS, verbose=0)": (TypeError, INPUTS + "a dictionary"),
    "transformer()((IDS, RAGGED_IDS))":
        (TypeError, "`target_in` must be a padded dense tensor"),
    # Arguments of models.
    "kt.Transformer({'d_model': 16})":
        (TypeError, "`config` must be of the class `TransformerConfig`"),
    "kt.LanguageModel({'d_model': 16})":
        (TypeError, "`config` must be of the class `LanguageModelConfig`"),
    "kt.EncoderStack({'num_layers': 2})": (TypeError, "of the class `EncoderConfig`"),
    "kt.Encoder({'num_layers': 2}, 9)": (TypeError, "of the class `EncoderConfig`"),
    "kt.Encoder(ENCODER, 0)": "`vocabulary_size` must be a positive",
    "kt.Tagger(encoder(), 0)": "`num_tags` must be a positive integer",
    "kt.Tagger(kt.FeedForward(3), 3)": (TypeError, "must be an `Encoder`"),
    "kt.Tagger(encoder(LINEAR), 3).attention(IDS)":
        "no weights to show: it is a LinearAttention",
    "kt.Tagger(encoder(), 3).attention(IDS, layer=9)":
        (IndexError, "index out of range"),
    "kt.TextClassifier(encoder(), 0)": "`num_classes` must be a positive integer",
    "kt.TextClassifier(encoder(), 3, 'max')":
        "`pooling` must be one of mean, class_token",
    "kt.TextClassifier(None, 3)": (TypeError, "`encoder` must be an `Encoder`"),
    "kt.MaskedLanguageModel(of_features())":
        "must have a `PositionalEmbedding`, one id per",
    "kt.MaskedTokens(IDS, 0, **MASKING)": "`batch_size` must be a positive integer",
    "kt.MaskedTokens(IDS, 2, **MASKING, rate=0)": RATE,
    "kt.MaskedTokens(IDS, 2, **MASKING, rate=1.1)": RATE,
    "masked(mask_id=0)": ORDER,
    "masked(first_id=4)": ORDER,
    "masked(vocabulary_size=5)": ORDER,
    "language_model(end_id=1)": "three different ids below `vocabulary_size`",
    "language_model(vocabulary_size=2)": "vocabulary_size=2",
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
            f"`label_smoothing` must be in [0, 1). Received: label_smoothing={shown}"
        for value, shown in
        (("-0.1", "-0.1"), ("1.0", "1.0"), ("2", "2"), ("float('nan')", "nan"))
    },
    "kt.TransformerSchedule(0)": "`d_model` must be a positive number. Received: d_mod",
    "kt.TransformerSchedule(16, warmup_steps=0)":
        "`warmup_steps` must be a positive number",
    "kt.TransformerSchedule(16, scale=float('nan'))":
        "`scale` must be a positive number. Received: scale=nan",
    "compiled(gradient_accumulation_steps=0)": "`gradient_...` must be at least 1",
    "compiled(gradient_accumulation_steps=1.5)":
        (TypeError, "`gradient_accumulation_steps` must be int"),
    "compiled(nonfinite='ignore')": "`nonfinite` must be one of 'stop', 'skip'",
    "compiled(optimizer=keras.optimizers.Adam(gradient_accumulation_steps=2))":
        "Give `gradient_accumulation_steps` to `compile`",
    "compiled(optimizer=keras.optimizers.LossScaleOptimizer("
    "keras.optimizers.Adam(gradient_accumulation_steps=2)))":
        "Give `gradient_...` to `compile`",
    **{
        f"kt.split_batches_over_cores({number!r})": "num_cores"
        for number in (0, -1, 2.0, "2")
    },
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
    "search(beam_size=0)": "`beam_size` must be at least 1",
    "search(limit=0)": "`limit` must be at least 1",
    "search(n_best=5)": "`n_best` must be from 1 to `beam_size`",
    "search(n_best=0)": "`n_best` must be from 1 to `beam_size`",
    "search(alpha=-0.1)": "`alpha` must be finite and at least 0",
    "search(alpha=float('nan'))": "`alpha` must be finite and at least 0",
    "search(length_penalty_form='log')": "`length_penalty_form` must be 'gnmt' or 'po",
    "search(max_lengths=np.array(7))": "`max_lengths` must have one length a sentence",
    "search(constraints={'min_length': 0})": "`min_length` must be at least 1",
    "search(constraints={'no_repeat_ngram_size': -1})":
        "`no_repeat_ngram_size` must be at",
    "search(constraints={'prefix': np.zeros(3)})":
        "`prefix` must have one row a sentence",
    "search(lambda ids, parents, state: (np.zeros((1, 1, 7)), state))":
        "`step` must return logits of shape",
    "draw(limit=0)": "`limit` must be at least 1",
    "draw(alpha=-0.1)": "`alpha` must be finite and at least 0",
    "draw(length_penalty_form='log')": "`length_penalty_form` must be 'gnmt' or 'po",
    "draw(max_lengths=np.array(7))": "`max_lengths` must have one length a sentence",
    "draw(uniforms=np.zeros((1, 6)))": "`uniforms` must have one number a sentence",
    "draw(uniforms=np.zeros(7))": "`uniforms` must have one number a sentence",
    "draw(top_k=0)": "`top_k` must be at least 1",
    "draw(top_p=0.0)": "`top_p` must be above 0 and at most 1",
    "draw(top_p=1.1)": "`top_p` must be above 0 and at most 1",
    "draw(top_p=float('nan'))": "`top_p` must be above 0 and at most 1",
    "draw(constraints=decoding.Constraints(min_length=0))":
        "`min_length` must be at least 1",
    "draw(lambda ids, parents, state: (np.zeros((1, 1, 7)), state))":
        "`step` must return logits of shape",
    "text_of(IDS[0])": "`prompts` must have one row a text...shape (5,)",
    "text_of(IDS - 1)": "from 0 to 10. Received: ids from -1 to 9",
    "text_of(IDS + 1)": "from 0 to 10. Received: ids from 1 to 11",
    "text_of(IDS, 2)": "`length` must be at least 1 and that of the prompts",
    "text_of(IDS, temperature=-1.0)": "`temperature` must be finite and at least 0",
    "text_of(IDS, 20)": "max_positions=19",
    "kt.LanguageSampler(functional())":
        (TypeError, "`model` must be a `LanguageModel`...Received: a Functional"),
    "kt.LanguageSampler(tiny_run.model())": (TypeError, "Received: a Transformer"),
    "kt.LanguageSampler(None)": (TypeError, "Received: a NoneType"),
    "kt.Generator(language_model(), kt.DecodingConfig())":
        (TypeError, "`model` must be a Keras model that maps (source, target_in)"),
    "kt.Translator(language_model(), tiny_run.tokenizers())":
        (TypeError, "`model` must be a Keras model that maps (source, target_in)"),
    "kt.LanguageSampler(language_model(), top_k=0)": "`top_k` must be at least 1",
    "kt.LanguageSampler(language_model(), top_p=1.5)": "`top_p` must be at most 1.0",
    "kt.LanguageSampler(language_model(), min_length=0)":
        "`min_length` must be at least 1. Received: min_length=0",
    "kt.LanguageSampler(language_model(), no_repeat_ngram_size=-1)":
        "`no_repeat_ngram_size` must be at least 0",
    # Text.
    **{
        f"tiny_run.translator().translate({texts})":
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
    **{
        f"tiny_run.translator().sample(['a'], temperature={value})":
            "`temperature` must be finite and at least 0"
        for value in ("-1.0", "float('nan')", "float('inf')")
    },
    "tiny_run.translator().complete(['a', 'b'], ['c'])":
        "the same number of texts. Received: 2, 1",
    "tiny_run.translator().score(['a', 'b'], ['c'])":
        "the same number of texts. Received: 2, 1",
    "tiny_run.translator().score(['a'], [b'c'])":
        (TypeError, "`targets` must be a sequence of strings"),
    "tiny_run.translator().complete(['a'], {'a': 'b'})":
        (TypeError, "`prefixes` must be a sequence of strings"),
    "tiny_run.translator().translate(['a'], n_best=4)":
        "from 1 to 3, the beam size or the `n_best` of the export. Received: n_best=",
    "tiny_run.translator().translate(['a'], n_best=0)": "`n_best` must be",
    "tiny_run.translator()([chr(0xd800)])": "`texts` must be Unicode. Received: ",
    "tiny_run.translator().translate(['a'], n_best='2')": "Received: n_best='2'",
    "tiny_run.translator().translate(['a'], n_best=None)": "Received: n_best=None",
    "kt.LiteTranslator('lite', threads='2')": "Received: threads='2'",
    "setattr(t := translator(), 'batch_size', 0) or t(['a'])": (
        "`batch_size` must be at least 1"
    ),
    "translator(pad_id=3, unknown_id=0)": "must have the same `pad_id`",
    "translator(source_vocabulary_size=299, target_vocabulary_size=299)":
        "Received: 300 pieces, source_vocabulary_size=299",
    "translator(positions='learned', max_positions=9)": "306 tokens, max_positions=9",
}  # fmt: skip


@pytest.mark.parametrize("call", ERRORS)
def test_what_cannot_be_meant_is_refused(call):
    given = ERRORS[call]
    error, words = given if isinstance(given, tuple) else (ValueError, given)
    words = ".*".join(map(re.escape, words.split("...")))
    with pytest.raises(error, match=words):
        eval(call, globals() | {"masks": masks})


# What takes ids (B, S).
OF_IDS = {
    "Encoder": encoder,
    "LanguageModel": language_model,
    "MaskedLanguageModel": lambda: kt.MaskedLanguageModel(encoder()),
    "Tagger": lambda: kt.Tagger(encoder(), 5),
    "TextClassifier": lambda: kt.TextClassifier(encoder(), 2),
    "with a class token": lambda: kt.TextClassifier(encoder(), 2, "class_token"),
}


@pytest.mark.parametrize("name", OF_IDS)
def test_ids_that_cannot_be_taken_are_named(name):
    model = OF_IDS[name]()
    for given, rule, came in (
        (IDS[0], "have the shape (B, ", "shape (5,)"),
        (IDS[..., None], "have the shape (B, ", "shape (2, 5, 1)"),
        ({"ids": IDS}, "be one tensor", "a dictionary with the keys 'ids'"),
        (RAGGED_IDS, "be a padded dense tensor", ""),
        (IDS > 3, "be integers", "dtype bool"),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            model(given)
        assert f"`ids` must {rule}" in str(caught.value) and came in str(caught.value)


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
        "no_target.tsv": b"dog\tHund\nbear\t \n",
        "cut.tsv.gz": gzip.compress(good)[:-20],
        "damaged.tsv.gz": b"\x1f\x8b" + b"\x07" * 50,
        "no_json.json": b'{\n"model": oops}',
        "unknown.json": b'{"training": {"epoch": 3}}',
        "unknown_section.json": b'{"optimizer": {}}',
        "text.json": b'{"training": {"epochs": "3"}}',
        "list.json": b"[1, 2]",
        "null.json": b'{"model": null}',
        "full/notes.txt": b"mine",
        "broken/model.keras": b"no model",
        "broken/decoding.json": b"{}",
        "broken/tokenizer/tokenizer.json": b"{}",
        "stopped/config.json": b"{}",
        "begun/data.json": b'{"command": "keras-transformer train --run a"}',
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(content)
    return folder


# {f} is the folder above, {o} an empty one for output, {s} a SavedModel, {r} a run.
GOOD = "train --train {f}/good.tsv --run {o}/run --vocabulary-size 300 "
RAY = "translate {s} --ray-workers "
STRICT = "--run {o}/run --vocabulary-size 300 --bad-line-budget 0"
COMMANDS = {
    # Options.
    GOOD + "--d-model 10 --num-heads 3": "`d_model` must be a multiple of `num_heads`",
    GOOD + "--dropout-rate 1.0": "argument --dropout-rate: must be below 1.0",
    GOOD + "--dropout-rate -0.1": "argument --dropout-rate: must be at least 0.0",
    GOOD + "--activation sharp": "activation",
    GOOD + "--monitor bleu": "`monitor` 'bleu' needs validation pairs: give some (`--",
    GOOD + "--average best": "`average` 'best' needs validation pairs: give some (`--",
    GOOD + "--patience 2": "`patience` needs validation pairs: give some (`--valid`)",
    GOOD + "--init {f}/missing": "missing: No such file",
    GOOD + "--init {r} --num-heads 4": "`num_heads` is 4 and was 2",
    GOOD + "--schedule cosine": "`learning_rate` must be given unless `schedule`",
    # Files of options.
    GOOD + "--config {f}/missing.json": "missing.json: No such file or directory",
    GOOD + "--config {f}/full": "full: Is a directory",
    GOOD + "--config {f}/no_json.json": "no_json.json:2: not valid JSON",
    GOOD + "--config {f}/latin1.json": "latin1.json",
    GOOD + "--config {f}/unknown.json": "`TrainingConfig` has no option 'epoch'",
    GOOD + "--config {f}/unknown_section.json": "`RunConfig` has no option 'optimizer'",
    GOOD + "--config {f}/text.json": "`epochs` must be int. Received: epochs='3'",
    GOOD + "--config {f}/list.json": "`RunConfig` needs a dictionary of options",
    GOOD
    + "--config {f}/null.json": "`TransformerConfig` needs a dictionary of options",
    # Training text.
    "train --train {f}/missing.tsv --run {o}/run": "missing.tsv: No such file",
    "train --train {f}/full --run {o}/run": "full must be a regular file",
    "train --train {f}/empty.tsv --run {o}/run": "There are no pairs in ",
    "train --train {f}/three.en {f}/two.de --run {o}/run": "has 3 lines but",
    "train --train {f}/two.de {f}/two.de {f}/two.de --run {o}/run": "two aligned files",
    "train --train {f}/latin1.tsv " + STRICT: "latin1.tsv:2: source is not valid UTF-8",
    "train --train {f}/no_tab.tsv " + STRICT: "no_tab.tsv:2: no tab",
    "train --train {f}/no_target.tsv " + STRICT: "no_target.tsv:2: target is empty",
    "train --train {f}/cut.tsv.gz " + STRICT: "cut.tsv.gz is a damaged gzip file",
    "train --train {f}/damaged.tsv.gz " + STRICT: "damaged.tsv.gz is a damaged gzip",
    GOOD + "--valid {f}/missing.tsv": "missing.tsv: No such file",
    GOOD + "--valid {f}/no_tab.tsv --bad-line-budget 0": "no_tab.tsv:2: no tab",
    GOOD + "--max-length 2": "The corpus has no good pair",
    "train --train {f}/good.tsv --run {f}/full": "needs a new or empty directory",
    "train --train {f}/good.tsv --run {f}/good.tsv": "needs a new or empty directory",
    "quickstart --run {f}/full --saved-models {o}": "needs a new or empty directory",
    # Models.
    "translate {f}/missing dog": "missing is not a directory",
    "translate {f}/full dog": "full holds no SavedModel",
    "translate {f}/stopped dog": "stopped holds no",
    "translate {f}/begun dog": "begun is an unfinished run. To finish it: keras-tr",
    "translate {f}/broken dog": "model.keras",
    "translate {s} --beam-size 2 dog": "Received: beam_size",
    "evaluate {f}/full --test {f}/good.tsv": "full holds no SavedModel",
    "export {f}/full --output {o}/1": "full holds no",
    "export {s} --output {o}/1": "holds no trained translator",
    "export {r} --output {s}": "exists, and is never overwritten",
    "export {r} --output {o}/1 --n-best 9": "`n_best` must be from 1 to `beam",
    "export {r} --output {o}/1 --top-p 0": "argument --top-p: must be above 0.0",
    "export {r} --output {o}/1 --format web --litert-js {f} --quiet": "a node_modul",
    "export {r} --output {o}/1 --dtype int8": "argument --dtype: invalid choice",
    # Serving.
    "serve {r}": "run is a training run. First: keras-transformer export ",
    "serve {f}/full": "full must be a version, NAME/1, or hold SavedModels in dir",
    "serve {s}/variables": "variables must be a version, NAME/1, or hold Saved",
    "serve {s}/.. --port 65536": "`port` must be from 0 to 65535",
    # Text to translate.
    "translate {s} --input {f}/good.tsv dog": "or `--input`, not both",
    "translate {s} --input {f}/missing": "missing: No such file or directory",
    "translate {s} --input {f}/latin1.tsv": "latin1.tsv:2: not valid UTF-8",
    "translate {s} dog --output {f}/full": "full is a directory",
    "translate {s} --n-best 4 dog": "`n_best` must be from 1 to 3, the beam",
    "translate {r} --n-best 3 dog": "`n_best` must be from 1 to 2, the beam",
    RAY + "2 --input {f}/good.tsv --output b --scores": "or `--ray-workers`",
    "translate {s} --input {f}/latin1.tsv --output {o}/out": "not valid UTF-8",
    "translate {s} --input {f}/good.tsv --output {f}/good.tsv": "another file",
    # Ray.
    RAY + "0 --input {f}/good.tsv --output b": "`--ray-workers` must be at least 1",
    RAY + "2 dog": "`--ray-workers` needs `--input` and `--output`",
    "translate {r} --ray-workers 2 --input {f}/good.tsv --output b": "a SavedModel",
    RAY + "2 --input {f}/good.tsv --output b --beam-size 2": "Received: beam_size",
    "evaluate {s} --test {f}/missing.tsv": "missing.tsv: No such file",
    "evaluate {s} --test {f}/no_tab.tsv --output {o}/out": "no_tab.tsv:2: no",
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
