"""A translator's weights as a safetensors file. Needs the extra `safetensors`.

The format (https://github.com/huggingface/safetensors) has named tensors and no code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.extras import required
from keras_transformer.files import check_absent, creating_directory
from keras_transformer.models.transformer import Seq2Seq
from keras_transformer.nn.kernels.keras_private import layers_within


def export_safetensors(translator: Any, path: str | Path) -> Path:
    """Writes model.safetensors and the tokenizers.

    The name of a tensor is the path of the weight in the model, such as
    "encoder_layer_0/self_attention/query_dense/kernel" (D, H * K); matrices are (in,
    out). The metadata are the strings "format" ("keras_transformer"), "class" (of the
    model), "config" (its options, JSON) and "decoding" (search options, JSON).

    Args:
        translator: A `Translator`. Its bfloat16 weights, a type that NumPy lacks, are
            written as float32.
        path: Directory to create, such as "weights/en-de".

    Returns:
        `path`.

    Raises:
        FileExistsError: If `path` exists.
        ImportError: If safetensors is not installed.
        ValueError: If the model is an ensemble, is quantised or has adapters.
    """
    need = "A safetensors file needs safetensors"
    safetensors = required("safetensors.numpy", need, "safetensors")
    path = Path(path)
    model = translator.model
    check_absent(path)
    if not isinstance(model, Seq2Seq):
        raise ValueError(
            "A safetensors file holds one `Transformer`: write each member of an "
            "ensemble by itself, and call `save_weights` for other models. Received: "
            f"{type(model).__name__}"
        )
    check_plain(model, "An export of weights")
    tensors = {}
    for weight in model.weights:
        value = weight.value
        if keras.backend.standardize_dtype(weight.dtype) == "bfloat16":
            value = ops.cast(value, "float32")
        name = weight.path.removeprefix(f"{model.name}/")
        tensors[name] = np.ascontiguousarray(ops.convert_to_numpy(value))
    metadata = {
        "format": "keras_transformer",
        "class": type(model).__name__,
        "config": json.dumps(model.config.to_dict()),
        "decoding": json.dumps(translator.config.to_dict()),
    }
    with creating_directory(path) as temporary:
        safetensors.save_file(tensors, temporary / "model.safetensors", metadata)
        translator.tokenizers.save(temporary / "tokenizer")
    return path


def check_plain(model: keras.Model, what: str):
    """Raises `ValueError` if a model is quantised or has adapters."""
    for layer in layers_within(model):
        if layer.quantization_mode is not None:
            raise ValueError(
                f"{what} needs a float model: export the one from before `quantize`. "
                f"Received: {layer.path} with "
                f"quantization_mode={layer.quantization_mode!r}"
            )
        if getattr(layer, "lora_enabled", False):
            raise ValueError(
                f"{what} needs a model without adapters: save it as a .keras file and "
                f"load it, which merges them. Received: {layer.path} with an adapter"
            )
