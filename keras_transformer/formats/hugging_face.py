"""Import of Hugging Face's `MarianMTModel`."""

from __future__ import annotations

import importlib
import io
import pickle
from pathlib import Path

import ml_dtypes
import numpy as np

from keras_transformer.extras import required
from keras_transformer.formats.contents import (
    Tensors,
    content_of,
    described,
    first_with,
    read_options,
)
from keras_transformer.formats.imported_model import renamed, translator_of
from keras_transformer.formats.vocabulary import Vocabulary, numbered_pieces
from keras_transformer.search.translator import Translator

_ACTIVATIONS = {
    "relu": "relu",
    "swish": "silu",
    "silu": "silu",
    "gelu": "gelu",
    "tanh": "tanh",
}
# Options of `MarianConfig` that do not change the logits, or that are of the search.
_IDLE = """
pad_token_id eos_token_id decoder_start_token_id _name_or_path _num_labels architectures
bos_token_id classif_dropout classifier_dropout decoder_layerdrop
dtype encoder_layerdrop extra_pos_embeddings gradient_checkpointing id2label
init_std is_encoder_decoder label2id max_length max_position_embeddings num_beams
num_hidden_layers output_attentions output_hidden_states return_dict
share_encoder_decoder_embeddings static_position_embeddings tie_encoder_decoder
tie_word_embeddings torch_dtype transformers_version use_cache bad_words_ids
forced_eos_token_id length_penalty no_repeat_ngram_size early_stopping problem_type
num_labels torchscript sep_token_id min_length task_specific_params tokenizer_class
prefix chunk_size_feed_forward num_return_sequences output_scores
return_dict_in_generate temperature tf_legacy_loss top_k top_p typical_p use_bfloat16
remove_invalid_values finetuning_task pruned_heads renormalize_logits unk_token_id
is_decoder cross_attention_hidden_size add_cross_attention
""".split()
_DROPOUT_RATES = "dropout", "attention_dropout", "activation_dropout"
# The types of tensors in a safetensors file; NumPy lacks bfloat16.
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16}
# What PyTorch raises for damaged or hostile content.
_UNREADABLE = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
# Options of the model that must be off where they are given.
_NEEDED = dict.fromkeys(
    (
        "normalize_before",
        "normalize_embedding",
        "add_final_layer_norm",
        "add_bias_logits",
    ),
    (False,),
)
# Search options that are not supported, and the values that turn them off.
_SEARCH_NEEDED = {
    "do_sample": (False, None),
    "num_beam_groups": (1, None),
    "repetition_penalty": (1, None),
    "encoder_repetition_penalty": (1, None),
    "diversity_penalty": (0, None),
    "encoder_no_repeat_ngram_size": (0, None),
    "guidance_scale": (1, None),
    "min_new_tokens": (0, None),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "exponential_decay_length_penalty": (None,),
    "sequence_bias": (None,),
    "force_words_ids": (None,),
    "constraints": (None,),
    "stop_strings": (None,),
    "forced_bos_token_id": (None,),
    "penalty_alpha": (None,),
}
# Replacements that turn our path of a weight into their name, in this order.
_NAMES = {
    "_dense/": "/",
    "coder_layer_": "coder.layers.",
    "_norm/": "_layer_norm/",
    "feed_forward_layer_norm": "final_layer_norm",
    "self_attention": "self_attn",
    "cross_attention": "encoder_attn",
    "feed_forward/hidden": "fc1",
    "feed_forward/output": "fc2",
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "output": "out_proj",
    "kernel": "weight",
    "gamma": "weight",
    "beta": "bias",
    "/": ".",
}


def import_hugging_face(path: str | Path) -> Translator:
    """Imports a `MarianMTModel` of Hugging Face's Transformers.

    Args:
        path: A folder with config.json, model.safetensors (or several such files) or
            pytorch_model.bin, source.spm, target.spm and vocab.json, as
            `save_pretrained` writes it.

    Returns:
        A `Translator` with the search options of generation_config.json. Its dropout
        rates are those of config.json. A rate that is not there is 0.

    Raises:
        FileNotFoundError: If a file is missing.
        ImportError: If `safetensors` of the extra `import` is not installed.
        ValueError: If a file is damaged or a pointer of Git LFS, or an option of the
            model is not supported.

    Example:
        >>> import_hugging_face("opus-mt-en-de")(["A dog."])
    """
    path = Path(path)
    options = read_options(path / "config.json")
    sizes = _sizes(options)
    size = options.number("vocab_size")
    rows = {"source": size, "target": options.number("decoder_vocab_size", size)}
    scaled = options.one_of("scale_embedding", False, True, default=False)
    options.pass_over(*_IDLE, *_SEARCH_NEEDED)
    options.check_none_left()
    file = path / "generation_config.json"
    # Without that file `generate` uses the model's options.
    search = read_options(file) if file.exists() else options
    pad = _row("pad_token_id", min(rows.values()), options)
    start = _row("decoder_start_token_id", rows["target"], search, options)
    ends = {
        "source": _row("eos_token_id", rows["source"], options),
        "target": _row("eos_token_id", rows["target"], search, options),
    }
    banned = _banned_rows(search, pad)
    vocabularies = []
    for side in ("source", "target"):
        ids = path / f"{side}_vocab.json"
        ids = ids if ids.exists() else path / "vocab.json"
        pieces = numbered_pieces(ids, "<unk>")
        vocabularies.append(
            Vocabulary(
                pieces=pieces,
                model=content_of(path / f"{side}.spm"),
                end=ends[side],
                unknown=pieces.index("<unk>"),
                start=start,
                pad=pad,
                banned=banned,
            )
        )
    tensors = _tensors(path)

    def weight_of(path, shape):
        # Matrices are (out, in).
        return tensors.take(renamed(f"model.{path}", _NAMES), *reversed(shape)).T

    translator = translator_of(
        path,
        sizes=sizes,
        matrices=_matrices(tensors, options, rows, sizes["d_model"]),
        weight_of=weight_of,
        vocabularies=vocabularies,
        decoding=_search_options(search),
        scaled=bool(scaled),
    )
    # Some versions store the positions, which are computed here.
    for side in ("encoder", "decoder"):
        tensors.pass_over(f"model.{side}.embed_positions.weight")
    tensors.check_none_left()
    return translator


def _row(name, size, *files):
    """Returns a special id by the first of some files that has it."""
    options = first_with(name, *files)
    value = options.values.get(name)
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    if type(value) is not int or not 0 <= value < size:
        raise options.error(
            name, f"must be one id below the size of the vocabulary, {size}"
        )
    return value


def _sizes(options):
    """Returns options of a `TransformerConfig`."""
    options.one_of("model_type", "marian")
    options.check(_NEEDED)
    heads = options.number("encoder_attention_heads")
    options.one_of("decoder_attention_heads", heads)
    hidden = options.number("encoder_ffn_dim")
    options.one_of("decoder_ffn_dim", hidden)
    return {
        "num_encoder_layers": options.number("encoder_layers"),
        "num_decoder_layers": options.number("decoder_layers"),
        "d_model": options.number("d_model"),
        "num_heads": heads,
        "d_ff": hidden,
        "activation": _ACTIVATIONS[
            options.one_of("activation_function", *_ACTIVATIONS)
        ],
        "layer_norm_epsilon": 1e-5,  # PyTorch's default
        "norm_first": False,
        "use_bias": True,
        "positions": "sinusoidal-halves",
    } | {f"{name}_rate": options.number(name, 0.0) for name in _DROPOUT_RATES}


def _tensors(path):
    """Returns the arrays of the file of weights."""
    # Large models are in files such as model-00001-of-00002.safetensors.
    files = sorted(path.glob("model-*.safetensors")) or [path / "model.safetensors"]
    if not files[0].exists():
        pickled = path / "pytorch_model.bin"
        if pickled.exists():
            return Tensors(_pickled_arrays(pickled), pickled)
    safetensors = required("safetensors", "This import needs safetensors", "import")
    arrays = {}
    for file in files:
        content = content_of(file)
        failures = safetensors.SafetensorError, KeyError
        with described(f"{file} cannot be read as floating-point numbers", failures):
            for name, item in safetensors.deserialize(content):
                array = np.frombuffer(item["data"], _FLOATS[item["dtype"]])
                arrays[name] = array.reshape(item["shape"]).astype(np.float32)
    return Tensors(arrays, files[0])


def _pickled_arrays(path):
    """Returns the arrays of a `state_dict` that PyTorch has pickled."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise ImportError(
            f"PyTorch reads {path}: `pip install torch`, or write model.safetensors "
            "where PyTorch is installed."
        ) from error
    content = io.BytesIO(content_of(path))
    try:
        # It makes tensors of a pickle, and runs nothing else that a pickle names.
        state = torch.load(content, map_location="cpu", weights_only=True)
        return {name: tensor.float().numpy() for name, tensor in state.items()}
    except _UNREADABLE as error:
        raise ValueError(
            f"{path} cannot be read: it must be an undamaged file of `torch.save` with "
            "nothing but tensors by name."
        ) from error


def _matrices(tensors, options, rows, width):
    """Returns both embeddings, the rows of the output and its bias, or `None`."""
    head = "lm_head.weight"
    shared = "model.shared.weight"

    def matrix(name, side):
        name = name if name in tensors else shared
        return tensors.take(name, rows[side], width)

    source = matrix("model.encoder.embed_tokens.weight", "source")
    target = output = matrix("model.decoder.embed_tokens.weight", "target")
    # Transformers ties whatever `head` there is, such as that of OPUS-MT's "tc-big",
    # which was never trained; since version 5 only a `head` that does not differ.
    version = str(options.values.get("transformers_version") or "4.")
    is_new = not version.startswith(("2.", "3.", "4."))
    is_tied = options.values.get("tie_word_embeddings", True)
    if not is_tied or (is_new and head in tensors):
        output = tensors.take(head, rows["target"], width)
    tensors.pass_over(shared, head)
    bias = None
    if "final_logits_bias" in tensors:  # Transformers omits it if it is 0.
        bias = tensors.take("final_logits_bias", 1, rows["target"])[0]
    return source, target, output, bias


def _banned_rows(search, pad):
    """Returns the rows whose probability is 0.

    `generate` bans padding after the softmax, which matters only if it renormalizes.
    """
    words = search.one_of("bad_words_ids", [[pad]], None, [], default=[])
    if not search.one_of("renormalize_logits", False, True, None, default=False):
        return ()
    for name, idle in (("min_length", 1), ("no_repeat_ngram_size", 0)):
        if (search.values.get(name) or 0) > idle:
            raise search.error(name, f"must be {idle} with `renormalize_logits`")
    return (pad,) if words else ()


def _search_options(search):
    """Returns options of a `DecodingConfig` with the defaults of `generate`."""
    search.check(_SEARCH_NEEDED)
    found = {
        "beam_size": search.number("num_beams", 1),
        "length_penalty": search.number("length_penalty", 1.0),
        "length_penalty_form": "power",
        "ends_within_beam": True,
        "no_repeat_ngram_size": search.number("no_repeat_ngram_size", 0),
        # Their lengths include the start, ours the end.
        "min_output_length": max(1, search.number("min_length", 0)),
    }
    longest = search.number("max_new_tokens", search.number("max_length", 0) - 1)
    if longest >= 0:
        found["max_output_length"] = max(1, longest)
    return found
