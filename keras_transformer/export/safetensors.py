"""A translator's weights as a safetensors file: named tensors that any program reads.

The format is https://github.com/huggingface/safetensors, which holds no code. Needs
the extra `safetensors`.
"""

from __future__ import annotations

import json
from pathlib import Path

from keras_transformer.config import DecodingConfig
from keras_transformer.export.plain_weights import check_plain, named_weights
from keras_transformer.files import check_absent, creating_directory
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.text.tokenizer_pair import TokenizerPair


def export_safetensors(
    model: Seq2Seq, tokenizers: TokenizerPair, config: DecodingConfig, path: str | Path
) -> Path:
    """Writes model.safetensors and the tokenizers.

    Each weight has the name of its path in the model, such as
    "encoder_layer_0/self_attention/query/kernel" (D, H * K); matrices are (in, out).
    The file's metadata are strings: "format" ("keras_transformer"), "class" (of the
    model), "config" (its sizes, JSON) and "decoding" (how to search, JSON).

    Args:
        model: A `Transformer`, or another `Seq2Seq`.
        tokenizers: A `TokenizerPair` with its vocabulary sizes.
        config: How to search.
        path: Directory to create.

    Returns:
        `path`.

    Raises:
        FileExistsError: If `path` exists.
        ImportError: If safetensors is not installed.
        ValueError: If the model is an ensemble, is quantised or has adapters.
    """
    path = Path(path)
    check_absent(path)
    if not isinstance(model, Seq2Seq):
        raise ValueError(
            "A safetensors file holds one model: write each member of an ensemble. "
            f"Received: an {type(model).__name__}"
        )
    check_plain(model, "An export of weights")
    metadata = {
        "format": "keras_transformer",
        "class": type(model).__name__,
        "config": json.dumps(model.config.to_dict()),
        "decoding": json.dumps(config.to_dict()),
    }
    with creating_directory(path) as temporary:
        file = temporary / "model.safetensors"
        _save_file()(named_weights(model), file, metadata)
        tokenizers.save(temporary / "tokenizer")
    return path


def _save_file():
    try:
        from safetensors.numpy import save_file
    except ImportError as error:
        raise ImportError(
            "A safetensors file needs the extra `safetensors`: pip install "
            "'keras-transformer-seq2seq[safetensors]'"
        ) from error
    return save_file
