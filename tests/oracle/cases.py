"""The oracle's cases, and the one place that knows where old and new code differ."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
from typing import Any, NamedTuple

import numpy as np

# Names of weights: all rules apply to either code, one after the other. What they leave
# is the name by which weights of both sides find each other and get their numbers.
OLD_NAMES = [
    (r"(query|key|value|output|hidden|forget|score)_(kernel|bias)$", r"\1/\2"),
    (r"(^|/)output_map/", r"\1output/"),
]
NEW_NAMES = [
    (r"(query|key|value|output|hidden|forget|score)_dense/", r"\1/"),
    (r"(^|/)input/kernel$", r"\1kernel"),  # of an SSRU
    (r"token_embedding/embeddings$", "embeddings"),
    (r"position_embedding/embeddings$", "position_embeddings"),
]
BOTH = [(r"^oracle/", ""), (r"^encoder/", ""), (r"(^|/)stack/", r"\1")]


def canonical(path):
    """Returns a weight's name, as "encoder_layer_0/self_attention/query/kernel"."""
    for pattern, replacement in (*BOTH, *OLD_NAMES, *NEW_NAMES):
        path = re.sub(pattern, replacement, path)
    return path


class Case(NamedTuple):
    """One model or layer: `family` is its class."""

    family: str
    options: Any
    inputs: list = ()  # Of a layer; `data_of` makes a model's.
    call: dict = {}  # noqa: RUF012
    in_full: bool = False  # Compilers make updates, searches and bfloat16 of these.


def make(kt, case, policy):
    """Makes a case's model or layer, of the old code or the new."""
    named = {"dtype": policy, "name": "oracle"}
    family, options = case.family, case.options
    if family == "Transformer":
        return kt.Transformer(kt.TransformerConfig(**options), **named)
    if family == "Ensemble":
        members = [kt.TransformerConfig(**member) for member in options]
        return kt.Ensemble([kt.Transformer(config, **named) for config in members])
    if family == "LanguageModel":
        return kt.LanguageModel(kt.LanguageModelConfig(**options), **named)
    if family == "EncoderStack":
        return kt.EncoderStack(kt.EncoderConfig(**WIDTHS, **options), **named)
    if family in HEADS_OF_ENCODERS:
        head, options = options
        encoder = _make_encoder(kt, dict(options), policy)
        return getattr(kt, family)(encoder, **head, **named)
    cls = getattr(importlib.import_module("keras_transformer.layers"), family)
    if "causal" not in inspect.signature(cls).parameters:
        options = {key: options[key] for key in options if key != "causal"}
    return cls(**options, **named)


def _make_encoder(kt, options, policy):
    named = {"dtype": policy, "name": "encoder"}
    rows, features = (options.pop(key, None) for key in ("rows", "num_features"))
    config = kt.EncoderConfig(**options)
    positions = "none" if config.positions else "sinusoidal"
    table = {"positions": "learned" if rows else positions, "max_length": rows}
    if hasattr(kt, "TextEncoder"):
        table["num_features"] = features
        return kt.TextEncoder(config, VOCABULARY, **table, **named)
    embedding = kt.FeatureEmbedding if features else kt.PositionalEmbedding
    table |= {"pad_id": 0, "dtype": policy, "name": "embedding"}
    return kt.Encoder(config, embedding(VOCABULARY, config.d_model, **table), **named)


def call_options(case, layer):
    """Returns a call's named arguments, with causality if it is one of them."""
    causal = isinstance(case.options, dict) and case.options.get("causal")
    if causal and "causal" not in inspect.signature(type(layer)).parameters:
        return case.call | {"use_causal_mask": True}
    return case.call


# Every size is another prime where it can be.
VOCABULARY, OTHER_VOCABULARY, TAGS = 23, 29, 5
BATCH, SOURCE, TARGET, LONG = 3, 7, 5, 71
NO_DROPOUT = dict.fromkeys(
    ("dropout_rate", "attention_dropout_rate", "activation_dropout_rate"), 0.0
)
LAYER = {"d_ff": 17, "num_heads": 3, "key_dim": 4, **NO_DROPOUT}
WIDTHS = {"d_model": 13, **LAYER}
HEADS_OF_ENCODERS = ("Tagger", "TextClassifier", "MaskedLanguageModel")
UNTIED = dict(tied_embeddings="none", source_vocabulary_size=OTHER_VOCABULARY)
MARIAN = dict(positions="sinusoidal-marian", d_model=14)
KINDS = {
    "local": dict(attention="local", attention_window=2),
    "relu": dict(attention="relu"),
    "additive": dict(attention="additive"),
    "linear": dict(attention="linear"),
    "performer": dict(attention="performer"),
}
TRANSFORMERS = {
    "post_norm": dict(num_encoder_layers=2, num_decoder_layers=2),
    "norm_first": dict(norm_first=True, num_encoder_layers=2),
    "two_way": UNTIED | dict(tied_embeddings="two-way"),
    "untied": UNTIED,
    "output_bias": dict(output_bias=True),
    "untied_output_bias": UNTIED | dict(output_bias=True),
    "normalize_embeddings": dict(normalize_embeddings=True, layer_norm_epsilon=1e-3),
    "ssru": dict(decoder_self_attention="ssru", num_decoder_layers=2),
    "grouped": dict(num_heads=6, num_key_value_heads=2),
    "value_dim": dict(value_dim=5),
    "use_bias": dict(use_bias=True),
    "gelu": dict(activation="gelu"),
    "rotary": dict(positions="rotary"),
    "alibi": dict(positions="alibi"),
    "learned": dict(positions="learned", max_positions=31),
    "halves": dict(positions="sinusoidal-halves", d_model=14),
    "marian": MARIAN,
    "modern": dict(
        norm_first=True, positions="rotary", use_bias=True, num_heads=4,
        num_key_value_heads=1, value_dim=7, tied_embeddings="none",
    ),
    "marian_student": MARIAN | dict(
        decoder_self_attention="ssru", norm_first=True, use_bias=True,
        normalize_embeddings=True, output_bias=True,
    ),
    **KINDS,
    "relu_rotary": dict(attention="relu", positions="rotary", num_key_value_heads=1),
    "additive_alibi": dict(attention="additive", positions="alibi"),
    "local_rotary": KINDS["local"] | dict(positions="rotary", norm_first=True),
}  # fmt: skip
LANGUAGE_MODELS = {
    "tied": dict(num_layers=2),
    "untied": dict(tied_embeddings=False),
    "learned": dict(norm_first=True, positions="learned"),
    "rotary": dict(positions="rotary", num_key_value_heads=1),
    "alibi": dict(positions="alibi", use_bias=True),
    **KINDS,
}
# A head and its options, and options of its text encoder.
TAGGER, CLASSIFIER = ("Tagger", {"num_tags": TAGS}), {"num_classes": TAGS}
ENCODERS = {
    "tagger": (*TAGGER, dict(num_layers=2)),
    "tagger_norm_first": (*TAGGER, dict(norm_first=True)),
    "tagger_rotary": (*TAGGER, dict(positions="rotary")),
    "tagger_learned": (*TAGGER, dict(rows=31)),
    "tagger_features": (*TAGGER, dict(num_features=2)),
    "classifier": ("TextClassifier", CLASSIFIER, {}),
    "class_token": ("TextClassifier", CLASSIFIER | {"pooling": "class_token"}, {}),
    "masked": ("MaskedLanguageModel", {}, dict(num_layers=2)),
    "masked_norm_first": ("MaskedLanguageModel", {}, dict(norm_first=True)),
}


def numbers(name, *shape):
    """Returns normal numbers that follow from a name; float32."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def tokens(name, length, vocabulary=VOCABULARY, first=4):
    """Returns ids (B, length) of three sentences with their ends, then padding."""
    drawn = np.abs(numbers(name, BATCH, length)) * 1e4
    ids = first + drawn.astype("int32") % np.int32(vocabulary - first)
    for row, end in enumerate((length - 1, length - 4, length - 2)):
        ids[row, end:] = 2, *[0] * (length - 1 - end)
    return ids


def shifted(ids):
    """Returns targets one place to the right, after the start id."""
    return np.pad(ids, ((0, 0), (1, 0)), constant_values=1)[:, :-1]


def data_of(case, step=0):
    """Returns the arguments of a call, and targets, of batch number `step`."""
    if case.inputs:
        return list(case.inputs), None
    ids = tokens(f"ids {step}", SOURCE)
    if case.family in ("Transformer", "Ensemble"):
        options = case.options if case.family == "Transformer" else case.options[0]
        source = tokens(f"source {step}", SOURCE, options["source_vocabulary_size"])
        target = tokens(f"target {step}", TARGET)
        return [(source, shifted(target))], target
    if case.family == "LanguageModel":
        return [shifted(ids)], ids
    tags = tokens(f"tags {step}", SOURCE, vocabulary=TAGS, first=1)
    if case.family == "MaskedLanguageModel":
        return [ids], np.where(tags % 2 == 0, ids, 0)
    if case.options[1].get("num_features"):
        ids = np.stack([ids, tokens(f"more {step}", SOURCE)], axis=-1)
    return [ids], tags[:, 0] if case.family == "TextClassifier" else tags


X, Y = numbers("x", BATCH, SOURCE, 13), numbers("y", BATCH, TARGET, 11)
KEY, STATES = numbers("key", BATCH, SOURCE, 17), numbers("states", BATCH, TARGET, 13)
IDS = tokens("ids", SOURCE)
VALID, OTHERS_VALID = IDS != 0, IDS[::-1] != 0
ALLOWED = numbers("allowed", BATCH, TARGET, SOURCE) > -0.5
SQUARE = VALID[:, None] & np.tri(SOURCE, dtype=bool)
LONG_X = numbers("long", BATCH, LONG, 13)
LONG_VALID = np.arange(LONG) < np.array([[LONG], [LONG - 37], [LONG - 2]])
SCORES = {"return_attention_scores": True}


def layer(family, *inputs, call=(), **options):
    """Returns the case of a layer, by its class, inputs and options."""
    return Case(family, options, list(inputs), dict(call))


def attention(*inputs, family="MultiHeadAttention", call=(), **options):
    """Returns the case of an attention of three heads."""
    options = {"num_heads": 3, "key_dim": 4} | options
    return layer(family, *inputs, call=call, **options)


def embedding(**options):
    """Returns the case of an embedding."""
    call = {"start": 3} if "max_length" in options else {}
    options = {"vocabulary_size": VOCABULARY, "d_model": 14} | options
    return layer("PositionalEmbedding", IDS, call=call, **options)


MASK, LONG_MASK = {"mask": VALID}, {"mask": LONG_VALID}
LOCAL, LINEAR = {"family": "LocalAttention"}, {"family": "LinearAttention"}
PERFORMER = {"family": "PerformerAttention"}
KEY_MASKS = {"value_mask": VALID, "key_mask": OTHERS_VALID, "attention_mask": ALLOWED}
LAYERS = {
    "mha/self": attention(X),
    "mha/causal": attention(X, call={"use_causal_mask": True, **SCORES}),
    "mha/mask_without_bias": attention(X, call=MASK, use_bias=False),
    "mha/mask_of_keys": attention(X, call={"mask": VALID[:, None]}),
    "mha/mask_of_queries": attention(X, call={"mask": SQUARE}),
    "mha/key_masks": attention(
        Y, X, KEY, call=KEY_MASKS | SCORES, value_dim=5, output_shape=19
    ),
    "mha/value": attention(Y, X, call=MASK),
    "mha/grouped_rotary": attention(
        X, call=MASK | {"use_causal_mask": True}, num_heads=6, num_key_value_heads=2,
        positions="rotary",
    ),
    "mha/alibi": attention(X, positions="alibi"),
    "mha/long": attention(LONG_X, call=LONG_MASK),
    "relu": attention(X, call=MASK, family="ReluAttention"),
    "additive_heads": attention(
        Y, X, call=MASK | SCORES, family="MultiHeadAdditiveAttention"
    ),
    "local/blocks": attention(LONG_X, call=LONG_MASK, window=3, **LOCAL),
    "local/causal": attention(
        LONG_X, window=5, causal=True, positions="alibi", **LOCAL
    ),
    "linear/self": attention(LONG_X, call=LONG_MASK, **LINEAR),
    "linear/causal": attention(LONG_X, causal=True, **LINEAR),
    "linear/value": attention(Y, X, call=MASK, value_dim=5, **LINEAR),
    "performer/self": attention(X, call=MASK, num_features=11, **PERFORMER),
    "performer/causal": attention(LONG_X, causal=True, **PERFORMER),
    "additive": layer("AdditiveAttention", Y, X, call=MASK, units=5),
    "additive/bias": layer(
        "AdditiveAttention", Y, X, KEY, call={"mask": ALLOWED}, units=5, use_bias=True
    ),
    "feed_forward/relu": layer("FeedForward", X, d_ff=17),
    "feed_forward/gelu": layer("FeedForward", X, d_ff=17, activation="gelu"),
    "embedding/sinusoidal": embedding(d_model=13),
    "embedding/halves": embedding(positions="sinusoidal-halves"),
    "embedding/marian": embedding(positions="sinusoidal-marian"),
    "embedding/none": embedding(positions="none"),
    "embedding/learned": embedding(positions="learned", max_length=31),
    "layer_normalization": layer("LayerNormalization", X, epsilon=1e-6),
    "patches": layer(
        "PatchEmbedding", numbers("images", BATCH, 6, 4, 3), image_shape=(6, 4, 3),
        patch_size=2, d_model=13,
    ),
    "ssru": layer("SSRU", X, call=MASK),
    "encoder_layer": layer("EncoderLayer", X, call=MASK, **LAYER),
    "encoder_layer/norm_first": layer(
        "EncoderLayer", X, use_bias=True, norm_first=True, **LAYER
    ),
    "causal_layer": layer("CausalLayer", X, **LAYER),
    "decoder_layer": layer(
        "DecoderLayer", STATES, X, call={"encoder_output_mask": VALID}, **LAYER
    ),
    "decoder_layer/norm_first": layer(
        "DecoderLayer", X, Y, call=MASK, norm_first=True, **LAYER
    ),
    "encoder_stack": layer("EncoderStack", X, call=MASK, num_layers=2),
    "encoder_stack/norm_first": layer(
        "EncoderStack", X, call={"mask": SQUARE}, num_layers=2, norm_first=True,
        positions="alibi",
    ),
}  # fmt: skip


def all_cases():
    """Returns each case by its name."""
    full = "post_norm", "modern", "ssru", "local", "linear"
    joint = dict.fromkeys(
        ("source_vocabulary_size", "target_vocabulary_size"), VOCABULARY
    )
    shallow = {"num_encoder_layers": 1, "num_decoder_layers": 1} | WIDTHS | joint
    cases = {f"layer/{name}": case for name, case in LAYERS.items()}
    for name, options in TRANSFORMERS.items():
        case = Case("Transformer", shallow | options, in_full=name in full)
        cases[f"transformer/{name}"] = case
    members = [cases[f"transformer/{name}"].options for name in ("post_norm", "modern")]
    cases["ensemble"] = Case("Ensemble", members, in_full=True)
    one_text = {"num_layers": 1, "vocabulary_size": VOCABULARY, "max_positions": 31}
    for name, options in LANGUAGE_MODELS.items():
        options = one_text | WIDTHS | options
        case = Case("LanguageModel", options, in_full=name in ("tied", "performer"))
        cases[f"language_model/{name}"] = case
    for name, (family, head, options) in ENCODERS.items():
        options = head, {"num_layers": 1} | WIDTHS | options
        full = name in ("tagger", "class_token", "masked")
        cases[f"encoder/{name}"] = Case(family, options, in_full=full)
    return cases
