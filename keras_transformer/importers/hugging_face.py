"""Hugging Face's folders of a `MarianMTModel`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keras_transformer.importers.contents import (
    Options,
    described,
    read_json,
    required,
)
from keras_transformer.importers.description import Description, Vocabulary
from keras_transformer.importers.hugging_face_search import (
    banned_rows,
    generation_options,
    search_options,
)
from keras_transformer.importers.tensors import Tensors

_WEIGHTS = "model.safetensors"
_PICKLES = ("pytorch_model.bin", "tf_model.h5", "flax_model.msgpack")
# Hugging Face computes with PyTorch's own.
_EPSILON = 1e-5
_ACTIVATIONS = {
    "relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu", "tanh": "tanh",
}  # fmt: skip
# What `MarianConfig` has and its model does not look at, or not to compute logits.
_IDLE = """
_name_or_path _num_labels architectures attention_dropout activation_dropout
bos_token_id classif_dropout classifier_dropout decoder_layerdrop decoder_vocab_size
dropout dtype encoder_layerdrop extra_pos_embeddings gradient_checkpointing id2label
init_std is_encoder_decoder label2id max_length max_position_embeddings num_beams
num_hidden_layers output_attentions output_hidden_states return_dict
share_encoder_decoder_embeddings static_position_embeddings tie_encoder_decoder
tie_word_embeddings torch_dtype transformers_version use_cache bad_words_ids
forced_eos_token_id forced_bos_token_id length_penalty no_repeat_ngram_size
early_stopping problem_type num_labels torchscript sep_token_id suppress_tokens
min_length task_specific_params tokenizer_class prefix chunk_size_feed_forward
encoder_no_repeat_ngram_size exponential_decay_length_penalty
begin_suppress_tokens diversity_penalty do_sample num_beam_groups
num_return_sequences output_scores repetition_penalty return_dict_in_generate
temperature tf_legacy_loss top_k top_p typical_p use_bfloat16
remove_invalid_values finetuning_task pruned_heads renormalize_logits unk_token_id
is_decoder cross_attention_hidden_size add_cross_attention
""".split()
_ATTENTION = {
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "output": "out_proj",
}


def read_hugging_face(path: Path) -> Description:
    """Reads a folder of a `MarianMTModel`.

    Args:
        path: A folder with config.json, model.safetensors, source.spm, target.spm and
            vocab.json.

    Raises:
        FileNotFoundError: If a file is missing.
        ImportError: If `safetensors` is not installed.
        ValueError: If a file is damaged, or the model has an option that is not here.
    """
    options = Options(read_json(_existing(path, "config.json")), path / "config.json")
    options.one_of("model_type", "marian")
    model = _model_options(options)
    special = _special_ids(options)
    ties = bool(options.values.get("tie_word_embeddings", True))
    scaled = options.one_of("scale_embedding", False, True, default=False)
    size = options.number("vocab_size")
    options.pass_over(_IDLE)
    options.check_none_left()
    tensors = _tensors(path)
    matrices = _matrices(tensors, size, model["d_model"], ties)
    layers = _layers(tensors, model)
    # Computed, and stored by some versions.
    names = (f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder"))
    tensors.pass_over(names)
    tensors.check_none_left()
    search = generation_options(path, options)
    banned = banned_rows(search, special[0])
    source, target = _vocabularies(path, size, special, banned)
    return Description(
        origin=str(path), model=model, layers=layers, source=source, target=target,
        decoding=search_options(search), scaled=bool(scaled), **matrices,
    )  # fmt: skip


def _existing(path, name):
    if not (path / name).is_file():
        raise FileNotFoundError(f"{path / name} is missing")
    return path / name


def _model_options(options: Options) -> dict[str, Any]:
    """Returns options of a `TransformerConfig`."""
    for name in (
        "normalize_before", "normalize_embedding", "add_final_layer_norm",
        "add_bias_logits",
    ):  # fmt: skip
        options.one_of(name, False, default=False)
    model = {
        "num_encoder_layers": options.number("encoder_layers"),
        "num_decoder_layers": options.number("decoder_layers"),
        "d_model": options.number("d_model"),
        "num_heads": options.number("encoder_attention_heads"),
        "d_ff": options.number("encoder_ffn_dim"),
    }
    for theirs, ours in (("attention_heads", "num_heads"), ("ffn_dim", "d_ff")):
        options.one_of(f"decoder_{theirs}", model[ours])
    activation = options.one_of("activation_function", *_ACTIVATIONS)
    return model | {
        "activation": _ACTIVATIONS[activation],
        "layer_norm_epsilon": _EPSILON,
        "norm_first": False,
        "use_bias": True,
        "positions": "sinusoidal-halves",
    }


def _special_ids(options):
    """Returns the rows of padding, end and start."""
    names = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
    size = options.number("vocab_size")
    ids = [options.number(name) for name in names]
    for name, row in zip(names, ids, strict=True):
        if not 0 <= row < size:
            raise options.error(name, f"must be below `vocab_size`, {size}")
    options.one_of("decoder_vocab_size", size, None, default=size)
    return ids


def _tensors(path):
    """Returns the arrays of the file of weights."""
    weights = path / _WEIGHTS
    if not weights.is_file():
        there = [name for name in _PICKLES if (path / name).exists()]
        if there:
            raise ValueError(
                f"{path} has its weights in {there[0]}, which is never read: it may "
                "run code. Convert it where you trust it, with Transformers: "
                f"MarianMTModel.from_pretrained({str(path)!r}).save_pretrained(FOLDER)"
            )
        if (path / f"{_WEIGHTS}.index.json").exists():
            raise ValueError(f"{path}: weights in several files are not read")
        raise FileNotFoundError(f"{weights} is missing")
    safetensors = required("safetensors.numpy", "safetensors")
    error = required("safetensors", "safetensors").SafetensorError
    # bfloat16 has no form in NumPy: the library says so with one of these.
    failures = (error, ValueError, KeyError, TypeError, AttributeError)
    with described(f"{weights} cannot be read", *failures):
        arrays = safetensors.load_file(str(weights))
    return Tensors(arrays, str(weights))


def _matrices(tensors, size, width, ties):
    """Returns the three matrices and the bias, as a `Description` has them."""

    def first(*names):
        found = [name for name in names if name in tensors]
        tensors.pass_over(found[1:])
        return tensors.take(found[0] if found else names[0], size, width)

    shared = "model.shared.weight"
    source = first("model.encoder.embed_tokens.weight", shared)
    target = first("model.decoder.embed_tokens.weight", shared)
    output = target
    if not ties:
        output = tensors.take("lm_head.weight", size, width)
    tensors.pass_over([shared, "lm_head.weight"])
    bias = None
    if "final_logits_bias" in tensors:  # Transformers leaves it out where it is 0.
        bias = tensors.take("final_logits_bias", 1, size)[0]
    return {
        "source_embeddings": source, "target_embeddings": target,
        "output_rows": output, "output_bias": bias,
    }  # fmt: skip


def _layers(tensors, model):
    """Returns the weights of all layers by their paths in a `Transformer`."""
    width, hidden = model["d_model"], model["d_ff"]
    weights = {}

    def linear(ours, theirs, inputs, outputs):
        kernel = tensors.take(f"{theirs}.weight", outputs, inputs)
        weights[f"{ours}/kernel"] = kernel.T
        weights[f"{ours}/bias"] = tensors.take(f"{theirs}.bias", outputs)

    def norm(ours, theirs):
        weights[f"{ours}_norm/gamma"] = tensors.take(f"{theirs}.weight", width)
        weights[f"{ours}_norm/beta"] = tensors.take(f"{theirs}.bias", width)

    for side in ("encoder", "decoder"):
        for i in range(model[f"num_{side}_layers"]):
            ours, theirs = f"{side}_layer_{i}", f"model.{side}.layers.{i}"
            attentions = {"self_attention": "self_attn"}
            if side == "decoder":
                attentions["cross_attention"] = "encoder_attn"
            for name, their_name in attentions.items():
                for ours_of, theirs_of in _ATTENTION.items():
                    linear(
                        f"{ours}/{name}/{ours_of}",
                        f"{theirs}.{their_name}.{theirs_of}",
                        width,
                        width,
                    )
                norm(f"{ours}/{name}", f"{theirs}.{their_name}_layer_norm")
            linear(f"{ours}/feed_forward/hidden", f"{theirs}.fc1", width, hidden)
            linear(f"{ours}/feed_forward/output", f"{theirs}.fc2", hidden, width)
            norm(f"{ours}/feed_forward", f"{theirs}.final_layer_norm")
    return weights


def _vocabularies(path, size, special, banned):
    """Returns the vocabularies of the source and of the target."""
    pad, end, start = special
    sides = []
    target_name = "vocab.json"
    if (path / "target_vocab.json").exists():
        target_name = "target_vocab.json"
    for side, name in (("source", "vocab.json"), ("target", target_name)):
        file = _existing(path, name)
        ids = Options(read_json(file), file).values
        numbers = {n: piece for piece, n in ids.items() if type(n) is int}
        if len(ids) != size or any(i not in numbers for i in range(size)):
            raise ValueError(
                f"{file} must number {size:,} pieces from 0. Received: {len(ids):,} "
                "pieces"
            )
        pieces = [numbers[i] for i in range(size)]
        if "<unk>" not in ids:
            raise ValueError(f"{file} must have <unk>")
        model = _existing(path, f"{side}.spm").read_bytes()
        unknown = ids["<unk>"]
        sides.append(Vocabulary(pieces, end, unknown, start, pad, model, banned))
    return sides
