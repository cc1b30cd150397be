"""A translator for CTranslate2, an engine in C++. Needs the extra `ctranslate2`.

Weights are laid out as in `ctranslate2.specs.TransformerSpec`: matrices are (out, in),
and the projections of queries, keys and values are one matrix.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.config.options import check_choice
from keras_transformer.extras import required
from keras_transformer.files import check_absent, creating_directory
from keras_transformer.formats.safetensors import check_plain
from keras_transformer.models.transformer import Transformer
from keras_transformer.nn.layers.embedding import sinusoidal_encoding

# Our names of the types of the weights, and CTranslate2's.
QUANTIZATIONS = {"none": "float32", "float16": "float16", "int8": "int8"}
# Keras' names of activations, and CTranslate2's.
_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "silu": "SWISH",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
}
# Least rows of the table of positions, which limits the texts of CTranslate2.
_FEWEST_POSITIONS = 1024


def export_ctranslate2(
    translator: Any, path: str | Path, quantize: str = "none"
) -> Path:
    """Writes a directory that `ctranslate2.Translator` loads, and the tokenizers.

    CTranslate2 takes and returns pieces, those of `source.model` and `target.model`, or
    `joint.model`. Search options are arguments of its calls, as in
    `docs/other_systems.md`; the file only has the alignment layer, and the longest
    text as the size of its table of positions.

    Args:
        translator: A `Translator` of a `Transformer`, with SentencePiece models.
        path: Directory to create, such as "ctranslate2/en-de".
        quantize: "none"; "float16", weights of half the size; or "int8", with a scale
            for each output unit.

    Returns:
        `path`.

    Raises:
        FileExistsError: If `path` exists.
        ImportError: If ctranslate2 is not installed.
        ValueError: If an argument is out of range, or the format does not support the
            model.
    """
    path = Path(path)
    check_absent(path)
    check_choice("quantize", quantize, QUANTIZATIONS)
    translator.tokenizers.check_sentencepiece("An export for CTranslate2")
    _check_model(translator.model)
    spec = _spec_of(translator)
    spec.validate()
    spec.optimize(QUANTIZATIONS[quantize])
    with creating_directory(path) as temporary:
        spec.save(str(temporary))
        translator.tokenizers.save_files(temporary)
    return path


def _check_model(model):
    """Raises `ValueError` if CTranslate2 does not support the model."""
    if type(model) is not Transformer:
        raise ValueError(
            "An export for CTranslate2 needs a `Transformer`. Received: "
            f"{type(model).__name__}"
        )
    check_plain(model, "An export for CTranslate2")
    sizes = model.config
    key_dim = sizes.key_dim or sizes.d_model // sizes.num_heads
    lacks = {
        "activation": sizes.activation not in _ACTIVATIONS,
        "key_dim": key_dim * sizes.num_heads != sizes.d_model,
        "value_dim": sizes.value_dim not in (None, key_dim),
        "decoder_self_attention": sizes.decoder_self_attention == "ssru",
        "positions": sizes.relative_positions is not None,
        "num_key_value_heads": sizes.num_key_value_heads not in (None, sizes.num_heads),
    }
    for name, is_lacking in lacks.items():
        if is_lacking:
            raise ValueError(
                f"An export for CTranslate2 does not support this `{name}`. Received: "
                f"{name}={getattr(sizes, name)!r}"
            )


def _spec_of(translator):
    """Returns CTranslate2's specification of the model, with weights and pieces."""
    need = "An export for CTranslate2 needs its package"
    specs = required("ctranslate2.specs", need, "ctranslate2")
    model = translator.model
    config = translator.config
    sizes = translator.model.config
    spec = specs.TransformerSpec.from_config(
        (sizes.num_encoder_layers, sizes.num_decoder_layers),
        sizes.num_heads,
        pre_norm=sizes.norm_first,
        activation=getattr(
            specs.common_spec.Activation, _ACTIVATIONS[sizes.activation]
        ),
        layernorm_embedding=sizes.normalize_embeddings,
        alignment_layer=config.alignment_layer,
        alignment_heads=0,  # the mean of all heads
    )
    longest = max(config.max_source_length, config.longest_output)
    pieces = {}
    for stack, side, part in (
        ("encoder", "source", spec.encoder),
        ("decoder", "target", spec.decoder),
    ):
        _fill_embedding(part, model, side, longest)
        if sizes.norm_first:
            _fill_norm(part.layer_norm, getattr(model, f"{stack}_norm"))
        layers = getattr(model, f"{stack}_layers")
        for layer_spec, layer in zip(part.layer, layers, strict=True):
            _fill_layer(layer_spec, layer)
        ids = range(getattr(sizes, f"{side}_vocabulary_size"))
        pieces[side] = getattr(translator.tokenizers, side).pieces(ids)
    spec.decoder.projection.weight = _array(model.output_rows())
    if model.output_bias is not None:
        spec.decoder.projection.bias = _array(model.output_bias)
    spec.register_source_vocabulary(pieces["source"])
    spec.register_target_vocabulary(pieces["target"])
    options = {
        "bos_token": pieces["target"][sizes.start_id],
        "eos_token": pieces["target"][sizes.end_id],
        "unk_token": pieces["target"][sizes.unknown_id],
        "decoder_start_token": pieces["target"][sizes.start_id],
        "add_source_bos": False,
        "add_source_eos": True,
        # The default of CTranslate2 is 1e-5.
        "layer_norm_epsilon": sizes.layer_norm_epsilon,
    }
    for name, value in options.items():
        spec.config.add_attribute(name, value)
    return spec


def _fill_embedding(spec, model, side, longest):
    sizes = model.config
    embedding = getattr(model, f"{side}_embedding")
    table = spec.embeddings
    table = table[0] if isinstance(table, list) else table
    table.weight = _array(embedding.embeddings)
    # Without a table CTranslate2 uses another formula.
    if sizes.positions == "learned":
        positions = embedding.position_embeddings
    else:
        places = np.arange(max(_FEWEST_POSITIONS, longest))
        positions = sinusoidal_encoding(places, sizes.d_model, sizes.positions)
    spec.position_encodings.encodings = _array(positions)
    if sizes.normalize_embeddings:
        _fill_norm(spec.layernorm_embedding, model.embedding_norms[side])


def _fill_layer(spec, layer):
    # Projections of the same inputs are one matrix in CTranslate2.
    around = layer.self_attention
    linears = spec.self_attention.linear
    _fill_linear(linears[0], around.query_dense, around.key_dense, around.value_dense)
    _fill_linear(linears[1], around.output_dense)
    _fill_norm(spec.self_attention.layer_norm, layer.self_attention_residual.norm)
    if layer.attends_to_source:
        across = layer.cross_attention
        linears = spec.attention.linear
        _fill_linear(linears[0], across.query_dense)
        _fill_linear(linears[1], across.key_dense, across.value_dense)
        _fill_linear(linears[2], across.output_dense)
        _fill_norm(spec.attention.layer_norm, layer.cross_attention_residual.norm)
    _fill_linear(spec.ffn.linear_0, layer.feed_forward.hidden_dense)
    _fill_linear(spec.ffn.linear_1, layer.feed_forward.output_dense)
    _fill_norm(spec.ffn.layer_norm, layer.feed_forward_residual.norm)


def _fill_linear(spec, *denses):
    """Fills a linear map with the kernels (in, out) and biases of Dense layers."""
    kernels = [_array(dense.kernel) for dense in denses]
    spec.weight = np.ascontiguousarray(np.concatenate(kernels, axis=1).T)
    if denses[0].bias is not None:
        spec.bias = np.concatenate([_array(dense.bias) for dense in denses])


def _fill_norm(spec, norm):
    spec.gamma = _array(norm.gamma)
    spec.beta = _array(norm.beta)


def _array(tensor):
    return np.array(ops.convert_to_numpy(ops.cast(tensor, "float32")))
