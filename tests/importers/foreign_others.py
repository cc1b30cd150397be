"""Tiny folders of Hugging Face and CTranslate2, made of Marian's tensors.

The tensors are those of `foreign.random_tensors`; here they get the other systems'
names and their orientation, (out, in). safetensors and model.bin are written by hand.
"""

from __future__ import annotations

import json
import struct

import numpy as np

from tests.importers import foreign
from tests.reference.numpy_marian import Form

_LETTERS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}


def hugging_face_tensors(tensors, form, tied):
    """The tensors of a `MarianMTModel`."""
    found = {}

    def linear(ours, theirs, letter):
        found[f"{ours}.weight"] = tensors[f"{theirs}_W{letter}"].T
        found[f"{ours}.bias"] = tensors[f"{theirs}_b{letter}"][0]

    def norm(ours, theirs):
        found[f"{ours}.weight"] = tensors[f"{theirs}_ln_scale"][0]
        found[f"{ours}.bias"] = tensors[f"{theirs}_ln_bias"][0]

    for side in ("encoder", "decoder"):
        for i in range(getattr(form, f"{side}_depth")):
            ours, theirs = f"model.{side}.layers.{i}", f"{side}_l{i + 1}"
            attentions = {"self_attn": "self"}
            if side == "decoder":
                attentions["encoder_attn"] = "context"
            for name, their_name in attentions.items():
                for letter, projection in _LETTERS.items():
                    linear(f"{ours}.{name}.{projection}", f"{theirs}_{their_name}",
                           letter)  # fmt: skip
                norm(f"{ours}.{name}_layer_norm", f"{theirs}_{their_name}_Wo")
            linear(f"{ours}.fc1", f"{theirs}_ffn", "1")
            linear(f"{ours}.fc2", f"{theirs}_ffn", "2")
            norm(f"{ours}.final_layer_norm", f"{theirs}_ffn_ffn")
    if tied:
        found["model.shared.weight"] = tensors["Wemb"]
    else:
        found["model.encoder.embed_tokens.weight"] = tensors["encoder_Wemb"]
        found["model.decoder.embed_tokens.weight"] = tensors["decoder_Wemb"]
        found["lm_head.weight"] = tensors["decoder_ff_logit_out_W"].T
    found["final_logits_bias"] = tensors["decoder_ff_logit_out_b"]
    return found


def safetensors_bytes(tensors):
    """The content of a .safetensors: length of the header, header, numbers."""
    header, values = {}, b""
    for name, array in tensors.items():
        content = np.ascontiguousarray(array, "<f4").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [len(values), len(values) + len(content)],
        }
        values += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + values


def hugging_face_config(form, size, tied, **changes):
    """A config.json, with what Hugging Face writes besides."""
    config = {
        "activation_function": "swish" if form.swish else "relu",
        "architectures": ["MarianMTModel"],
        "bad_words_ids": [[size - 1]],
        "d_model": foreign.WIDTH,
        "decoder_attention_heads": form.heads,
        "decoder_ffn_dim": foreign.HIDDEN,
        "decoder_layers": form.decoder_depth,
        "decoder_start_token_id": size - 1,
        "decoder_vocab_size": size,
        "dropout": 0.1,
        "encoder_attention_heads": form.heads,
        "encoder_ffn_dim": foreign.HIDDEN,
        "encoder_layers": form.encoder_depth,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "id2label": {"0": "LABEL_0"},
        "is_encoder_decoder": True,
        "max_length": 512,
        "model_type": "marian",
        "normalize_before": False,
        "normalize_embedding": False,
        "num_beams": 4,
        "pad_token_id": size - 1,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "tie_word_embeddings": tied,
        "transformers_version": "4.22.0",
        "vocab_size": size,
    }
    return {name: v for name, v in (config | changes).items() if v is not ...}


def write_hugging_face(folder, rng, form=None, tied=True, **changes):
    """A folder as `save_pretrained` writes it; returns the tensors and the pieces."""
    folder.mkdir(parents=True, exist_ok=True)
    form = hugging_face_form() if form is None else form
    models = foreign.opus_models()
    pieces = [*foreign.opus_pieces(models), ">>deu<<", "<pad>"]
    size = len(pieces)
    tensors = foreign.random_tensors(rng, form, (size, size), "all" if tied else "none")
    theirs = hugging_face_tensors(tensors, form, tied)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(theirs))
    for side, model in models.items():
        (folder / f"{side}.spm").write_bytes(model)
    ids = {piece: i for i, piece in enumerate(pieces)}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    config = hugging_face_config(form, size, tied, **changes)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return tensors, pieces


def hugging_face_form(**changes):
    """What Hugging Face computes: another epsilon and other frequencies."""
    options = dict(ssru=False, epsilon=1e-5, paper_frequencies=True) | changes
    return Form(2, 1, foreign.HEADS, **options)


def ctranslate2_variables(tensors, form, positions=None):
    """The variables of a TransformerSpec of revision 7."""
    found = {}

    def linear(ours, theirs, letters):
        kernels = [tensors[f"{theirs}_W{letter}"].T for letter in letters]
        found[f"{ours}/weight"] = np.concatenate(kernels)
        biases = [tensors[f"{theirs}_b{letter}"][0] for letter in letters]
        found[f"{ours}/bias"] = np.concatenate(biases)

    def norm(ours, theirs, suffix=""):
        found[f"{ours}/gamma"] = tensors[f"{theirs}_ln_scale{suffix}"][0]
        found[f"{ours}/beta"] = tensors[f"{theirs}_ln_bias{suffix}"][0]

    pre = "_pre" if form.pre_norm else ""
    for side in ("encoder", "decoder"):
        for i in range(getattr(form, f"{side}_depth")):
            ours, theirs = f"{side}/layer_{i}", f"{side}_l{i + 1}"
            linear(f"{ours}/self_attention/linear_0", f"{theirs}_self", "qkv")
            linear(f"{ours}/self_attention/linear_1", f"{theirs}_self", "o")
            norm(f"{ours}/self_attention/layer_norm", f"{theirs}_self_Wo", pre)
            if side == "decoder":
                linear(f"{ours}/attention/linear_0", f"{theirs}_context", "q")
                linear(f"{ours}/attention/linear_1", f"{theirs}_context", "kv")
                linear(f"{ours}/attention/linear_2", f"{theirs}_context", "o")
                norm(f"{ours}/attention/layer_norm", f"{theirs}_context_Wo", pre)
            linear(f"{ours}/ffn/linear_0", f"{theirs}_ffn", "1")
            linear(f"{ours}/ffn/linear_1", f"{theirs}_ffn", "2")
            norm(f"{ours}/ffn/layer_norm", f"{theirs}_ffn_ffn", pre)
        if form.pre_norm:
            norm(f"{side}/layer_norm", f"{side}_top")
        found[f"{side}/num_heads"] = np.int16(form.heads)
        found[f"{side}/pre_norm"] = np.int8(form.pre_norm)
        found[f"{side}/activation"] = np.int8(2 if form.swish else 0)
        found[f"{side}/scale_embeddings"] = np.int8(1)
        if positions is not None:
            found[f"{side}/position_encodings/encodings"] = positions
    found["encoder/embeddings_merge"] = np.int8(0)
    found["decoder/start_from_zero_embedding"] = np.int8(0)
    found["decoder/alignment_layer"] = np.int16(-1)
    found["decoder/alignment_heads"] = np.int16(1)
    found["decoder/alibi"] = np.int8(0)
    found["encoder/embeddings_0/weight"] = tensors["encoder_Wemb"]
    found["decoder/embeddings/weight"] = tensors["decoder_Wemb"]
    found["decoder/projection/weight"] = tensors["decoder_ff_logit_out_W"].T
    found["decoder/projection/bias"] = tensors["decoder_ff_logit_out_b"][0]
    return {name: np.asarray(value) for name, value in found.items()}


def quantised(variables, kind):
    """Variables with their matrices in "int8", "int16", "float16" or "bfloat16"."""
    found = {}
    for name, array in variables.items():
        if array.dtype.kind != "f":
            found[name] = array
        elif kind == "float16":
            found[name] = array.astype(np.float16)
        elif not name.endswith("weight"):
            found[name] = array
        elif kind == "int8":
            scale = np.float32(127) / np.abs(array).max(axis=1)
            found[name] = np.rint(array * scale[:, None]).astype(np.int8)
            found[f"{name}_scale"] = scale.astype(np.float32)
        elif kind == "int16":
            scale = np.float32(2**10 / np.abs(array).max())
            found[name] = np.rint(array * scale).astype(np.int16)
            found[f"{name}_scale"] = np.asarray(scale)
        else:
            found[name] = array
    return found


_TYPES = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}


def ctranslate2_bytes(variables, aliases=(), version=6, revision=7,
                      spec="TransformerSpec"):  # fmt: skip
    """The content of a model.bin."""

    def string(text):
        return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"

    content = struct.pack("<I", version) + string(spec) + struct.pack("<I", revision)
    content += struct.pack("<I", len(variables))
    for name, array in variables.items():
        content += string(name) + struct.pack("<B", array.ndim)
        content += struct.pack(f"<{array.ndim}I", *array.shape)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        content += struct.pack("<B", _TYPES[array.dtype.name])
        content += struct.pack("<I", array.nbytes) + array.tobytes()
    content += struct.pack("<I", len(aliases))
    for alias, name in aliases:
        content += string(alias) + string(name)
    return content


def write_ctranslate2(folder, rng, form=None, kind="float32", positions=None, **config):
    """A folder of CTranslate2; returns the tensors and the pieces of both sides."""
    folder.mkdir(parents=True, exist_ok=True)
    form = ctranslate2_form() if form is None else form
    sides = {
        "source": ["<blank>", "<s>", "</s>", *"abcdefghij", "<unk>"],
        "target": ["<blank>", "<s>", "</s>", *"uvwxyz", "long", "<unk>"],
    }
    sizes = tuple(map(len, sides.values()))
    tensors = foreign.random_tensors(rng, form, sizes, "none")
    variables = quantised(ctranslate2_variables(tensors, form, positions), kind)
    (folder / "model.bin").write_bytes(ctranslate2_bytes(variables))
    for side, pieces in sides.items():
        # The unknown piece is added where a file lacks it.
        (folder / f"{side}_vocabulary.json").write_text(json.dumps(pieces[:-1]))
    config = {
        "add_source_bos": False, "add_source_eos": False, "bos_token": "<s>",
        "decoder_start_token": "<s>", "eos_token": "</s>", "layer_norm_epsilon": None,
        "multi_query_attention": False, "unk_token": "<unk>",
    } | config  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return tensors, *sides.values()


def ctranslate2_form(**changes):
    """What CTranslate2 computes where nothing is stored: positions begin with 1."""
    options = dict(ssru=False, epsilon=1e-5, first_position=1) | changes
    return Form(2, 1, foreign.HEADS, **options)
