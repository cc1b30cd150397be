"""A translator's weights as a safetensors file: named tensors that any program reads.

The format is https://github.com/huggingface/safetensors, which holds no code. Needs
the extra `safetensors`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.files import check_absent, creating_directory
from keras_transformer.kernels.keras_private import layers_within
from keras_transformer.models.transformer import Seq2Seq


def export_safetensors(translator: Any, path: str | Path) -> Path:
    """Writes model.safetensors and the tokenizers.

    Each weight has the name of its path in the model, such as
    "encoder_layer_0/self_attention/query/kernel" (D, H * K); matrices are (in, out).
    The file's metadata are strings: "format" ("keras_transformer"), "class" (of the
    model), "config" (its sizes, JSON) and "decoding" (how to search, JSON).

    Args:
        translator: A `Translator`; weights in bfloat16, which NumPy lacks, are written
            as float32.
        path: Directory to create, such as "weights/en-de".

    Returns:
        `path`.

    Raises:
        FileExistsError: If `path` exists.
        ImportError: If safetensors is not installed.
        ValueError: If the model is an ensemble, is quantised or has adapters.
    """
    try:
        from safetensors.numpy import save_file
    except ImportError as error:
        raise ImportError(
            "A safetensors file needs the extra `safetensors`: pip install "
            "'keras-transformer-seq2seq[safetensors]'"
        ) from error
    path, model = Path(path), translator.model
    check_absent(path)
    if not isinstance(model, Seq2Seq):
        raise ValueError(
            "A safetensors file holds one `Transformer`: write each member of an "
            "ensemble, and use `save_weights` of other models. Received: an "
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
        save_file(tensors, temporary / "model.safetensors", metadata)
        translator.tokenizers.save(temporary / "tokenizer")
    return path


def check_plain(model: keras.Model, what: str):
    """Raises `ValueError` if a model's matrices are more than its weights."""
    for layer in layers_within(model):
        if layer.quantization_mode is not None:
            raise ValueError(
                f"{what} takes the weights of a float model, and quantises them itself "
                f"where it can. Received: {layer.path} with "
                f"quantization_mode={layer.quantization_mode!r}"
            )
        if getattr(layer, "lora_enabled", False):
            raise ValueError(
                f"{what} knows no adapters: save the model as a .keras file and load "
                f"it, which merges them. Received: {layer.path} with an adapter"
            )
