"""Import of Hugging Face's `MarianMTModel`."""

from __future__ import annotations

import importlib
import io
import pickle
from pathlib import Path

from keras_transformer.extras import required
from keras_transformer.files import read_json
from keras_transformer.formats.contents import Options, Tensors, described
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
_SPECIAL = "pad_token_id", "eos_token_id", "decoder_start_token_id"
# Options of `MarianConfig` that do not change the logits.
_IDLE = """
_name_or_path _num_labels architectures attention_dropout activation_dropout
bos_token_id classif_dropout classifier_dropout decoder_layerdrop decoder_vocab_size
dropout dtype encoder_layerdrop extra_pos_embeddings gradient_checkpointing id2label
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
        path: A folder with config.json, model.safetensors or pytorch_model.bin,
            source.spm, target.spm and vocab.json, as `save_pretrained` writes it.

    Returns:
        A `Translator` with the search options of generation_config.json.

    Raises:
        FileNotFoundError: If a file is missing.
        ImportError: If `safetensors` of the extra `import` is not installed.
        ValueError: If a file is damaged or an option of the model is not supported.

    Example:
        >>> import_hugging_face("opus-mt-en-de")(["A dog."])
    """
    path = Path(path)
    options = Options(read_json(path / "config.json"), path / "config.json")
    sizes = _sizes(options)
    size = options.number("vocab_size")
    options.one_of("decoder_vocab_size", size, None, default=size)
    scaled = options.one_of("scale_embedding", False, True, default=False)
    options.pass_over(*_IDLE, *_SEARCH_NEEDED, *_SPECIAL)
    options.check_none_left()
    search = options
    file = path / "generation_config.json"
    if file.exists():  # Without it `generate` uses the model's options.
        search = Options(read_json(file), file)
    pad = _row("pad_token_id", size, options)
    start = _row("decoder_start_token_id", size, search, options)
    ends = {
        "source": _row("eos_token_id", size, options),
        "target": _row("eos_token_id", size, search, options),
    }
    banned = _banned_rows(search, pad)
    vocabularies = []
    for side in ("source", "target"):
        ids = path / f"{side}_vocab.json"
        ids = ids if ids.exists() else path / "vocab.json"
        pieces = numbered_pieces(read_json(ids), ids, "<unk>")
        vocabularies.append(
            Vocabulary(
                pieces=pieces,
                model=(path / f"{side}.spm").read_bytes(),
                end=ends[side],
                unknown=pieces.index("<unk>"),
                start=start,
                pad=pad,
                banned=banned,
            )
        )
    tensors = _tensors(path)

    def weight_of(path, shape):
        name = renamed(f"model.{path}", _NAMES)
        if len(shape) == 1:
            return tensors.take(name, *shape)
        return tensors.take(name, *reversed(shape)).T

    is_tied = bool(options.values.get("tie_word_embeddings", True))
    translator = translator_of(
        str(path),
        sizes=sizes,
        matrices=_matrices(tensors, size, sizes["d_model"], is_tied),
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
    options = next((o for o in files if o.values.get(name) is not None), files[-1])
    value = options.values.get(name)
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    if type(value) is not int or not 0 <= value < size:
        raise options.error(name, f"must be one id below `vocab_size`, {size}")
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
    }


def _tensors(path):
    """Returns the arrays of the file of weights."""
    weights = path / "model.safetensors"
    pickled = path / "pytorch_model.bin"
    if pickled.exists() and not weights.exists():
        return Tensors(_pickled_arrays(pickled), str(pickled))
    for name in ("tf_model.h5", "flax_model.msgpack"):
        if (path / name).exists() and not weights.exists():
            raise ValueError(
                f"{path} has its weights in {name} alone; model.safetensors or "
                "pytorch_model.bin is needed"
            )
    if (path / "model.safetensors.index.json").exists():
        raise ValueError(f"{path}: weights in several files are not supported")
    need = "This import needs safetensors"
    safetensors = required("safetensors.numpy", need, "import")
    error = required("safetensors", need, "import").SafetensorError
    # The library raises one of these for bfloat16, which NumPy lacks.
    failures = (error, ValueError, KeyError, TypeError, AttributeError)
    with described(f"{weights} cannot be read", failures):
        return Tensors(safetensors.load_file(str(weights)), str(weights))


def _pickled_arrays(path):
    """Returns the arrays of a `state_dict` that PyTorch has pickled."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise ImportError(
            f"PyTorch reads {path}: `pip install torch`, or write model.safetensors "
            "where PyTorch is installed."
        ) from error
    content = io.BytesIO(path.read_bytes())
    try:
        # It makes tensors of a pickle, and runs nothing else that a pickle names.
        state = torch.load(content, map_location="cpu", weights_only=True)
        return {name: tensor.float().numpy() for name, tensor in state.items()}
    except _UNREADABLE as error:
        raise ValueError(
            f"{path} cannot be read: it must be an undamaged file of `torch.save` with "
            "nothing but tensors by name."
        ) from error


def _matrices(tensors, size, width, is_tied):
    """Returns both embeddings, the rows of the output and its bias, or `None`."""
    shared = "model.shared.weight"
    embeddings = []
    for side in ("encoder", "decoder"):
        name = f"model.{side}.embed_tokens.weight"
        name = name if name in tensors else shared
        embeddings.append(tensors.take(name, size, width))
    source, target = embeddings
    output = target if is_tied else tensors.take("lm_head.weight", size, width)
    tensors.pass_over(shared, "lm_head.weight")
    bias = None
    if "final_logits_bias" in tensors:  # Transformers omits it if it is 0.
        bias = tensors.take("final_logits_bias", 1, size)[0]
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

    def number(name, default, kinds=int):
        # None is the default.
        given = search.values.get(name) is not None
        return search.number(name, default, kinds) if given else default

    found = {
        "beam_size": number("num_beams", 1),
        "length_penalty": float(number("length_penalty", 1.0, (int, float))),
        "length_penalty_form": "power",
        "ends_within_beam": True,
        "no_repeat_ngram_size": number("no_repeat_ngram_size", 0),
        # Their lengths include the start, ours the end.
        "min_output_length": max(1, number("min_length", 0)),
    }
    longest = number("max_new_tokens", number("max_length", 0) - 1)
    if longest >= 0:
        found["max_output_length"] = max(1, longest)
    return found
