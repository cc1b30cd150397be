"""Import of Marian's models: OPUS-MT, and the students of Bergamot and Firefox."""

from __future__ import annotations

import io
import math
import re
import zipfile
import zlib
from pathlib import Path

import numpy as np

from keras_transformer.formats.contents import (
    Options,
    Tensors,
    content_of,
    described,
    first_with,
    read_options,
    read_yaml,
)
from keras_transformer.formats.imported_model import renamed, translator_of
from keras_transformer.formats.vocabulary import (
    Vocabulary,
    numbered_pieces,
    sentencepiece_vocabulary,
)
from keras_transformer.search.translator import Translator

# Options of other kinds of models, of training or of initialisation.
_IDLE = """
bert-mask-symbol bert-sep-symbol bert-class-symbol bert-masking-fraction
bert-train-type-embeddings bert-type-vocab-size char-highway char-stride char-conv
char-conv-filters-num char-conv-filters-widths convolution dec-cell-base-depth
dec-cell-high-depth dim-pooler dim-rnn enc-cell enc-cell-depth enc-type
factors-combine factors-dim-emb skip transformer-aan-activation
transformer-aan-depth transformer-aan-nogate transformer-depth-scaling
transformer-dim-aan transformer-dropout transformer-dropout-attention
transformer-dropout-ffn transformer-guided-alignment-layer ulr-dim-emb
ulr-trainable-transformation ulr-dropout ulr-keys-vectors ulr-query-vectors
ulr-softmax-temperature version original-type max-length lemma-dependency
guided-alignment dim-vocabs dropout-rnn dropout-src dropout-trg label-smoothing
""".split()
# Options that `_matrices` takes.
_FLAGS = """
tied-embeddings-all tied-embeddings-src tied-embeddings output-omit-bias
""".split()
# Options that must be off; `_NEEDED` has others and their supported values.
_OFF = """
layer-normalization right-left transformer-no-affine transformer-no-bias
transformer-no-projection transformer-pool transformer-rnn-projection
transformer-train-position-embeddings transformer-train-positions
transformer-disable-position-embeddings ulr lemma-dim-emb
""".split()
_NEEDED = {
    "input-types": ([], ["sequence", "sequence"], ["sequence"]),
    "output-approx-knn": ([],),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-ffn-depth": (2,),
    "transformer-tied-layers": ([], "", None),
    **dict.fromkeys(_OFF, (False,)),
}
# Options of decoder.yml that are not supported, and the values that turn them off.
_SEARCH_NEEDED = {
    "output-sampling": (False, [], ""),
    **dict.fromkeys(
        (
            "word-penalty",
            "force-decode",
            "no-spm-decode",
            "no-spm-encode",
            "right-left",
        ),
        (False,),
    ),
}
_ACTIVATIONS = {"relu": "relu", "swish": "silu"}
_DROPOUT_RATES = {
    "dropout_rate": "transformer-dropout",
    "attention_dropout_rate": "transformer-dropout-attention",
    "activation_dropout_rate": "transformer-dropout-ffn",
}
# Replacements that turn our path of a weight into Marian's name, in this order.
_NAMES = {
    "_dense/": "/",
    "source_embedding_norm/": "encoder_emb_ln_",
    "target_embedding_norm/": "decoder_emb_ln_",
    "coder_norm/": "coder_top_ln_",
    "self_attention_norm/": "self_Wo_ln_",
    "cross_attention_norm/": "context_Wo_ln_",
    "feed_forward_norm/": "ffn_ffn_ln_",
    "ln_gamma": "ln_scale",
    "ln_beta": "ln_bias",
    "feed_forward/hidden/kernel": "ffn_W1",
    "feed_forward/hidden/bias": "ffn_b1",
    "feed_forward/output/kernel": "ffn_W2",
    "feed_forward/output/bias": "ffn_b2",
    "self_attention/input/kernel": "rnn_W",
    "self_attention/forget/kernel": "rnn_Wf",
    "self_attention/forget/bias": "rnn_bf",
    "self_attention/": "self_",
    "cross_attention/": "context_",
    "query/kernel": "Wq",
    "query/bias": "bq",
    "key/kernel": "Wk",
    "key/bias": "bk",
    "value/kernel": "Wv",
    "value/bias": "bv",
    "output/kernel": "Wo",
    "output/bias": "bo",
}
# Marian's numbers of types (src/common/types.h): plain ones, and matrices of integers,
# which are followed by their multiplier.
_PLAIN = {0x404: "<f4", 0x402: "<f2", 0x101: "<i1"}
_QUANTISED = {0x4101: "<i1", 0x4102: "<i2"}


def import_marian(path: str | Path) -> Translator:
    """Imports a translator of Marian, such as OPUS-MT or a Firefox student.

    Args:
        path: A folder with the weights (`.npz`, or `.bin` with float32 or 8-bit
            matrices), the vocabularies (`.spm`, or `vocab.yml` beside source.spm and
            target.spm) and a `decoder.yml` or `config*.yml`; or the file of weights.

    Returns:
        A `Translator` with the search options of `decoder.yml`. Its dropout rates are
        those that the files tell, such as `model.npz.yml`. A rate that no file tells
        is 0.

    Raises:
        FileNotFoundError: If a file is missing.
        ImportError: If PyYAML of the extra `import` is not installed.
        ValueError: If a file is damaged or a pointer of Git LFS, or an option of the
            model is not supported.

    Example:
        >>> import_marian("opus-2020-02-26")(["A dog."])
    """
    path = Path(path)
    folder = path.parent if path.is_file() else path
    search = _search_file(folder)
    weights = path
    if folder == path:
        (weights,) = _files(folder, search, "models", 1, "*.npz", "model*.bin", "*.bin")
    arrays = _read_npz(weights) if weights.suffix == ".npz" else _read_bin(weights)
    origin = f"{weights}: special:model.yml"
    if "special:model.yml" not in arrays:
        raise ValueError(f"{origin}, the options of the model, is missing")
    text = arrays.pop("special:model.yml").tobytes().rstrip(b"\0")
    options = Options(read_yaml(text, origin), origin)
    sizes = _sizes(options) | _dropout_rates(weights, options, search)
    flags = {name: options.one_of(name, False, True, default=False) for name in _FLAGS}
    options.pass_over(*_IDLE)
    options.check_none_left()
    # Multipliers of activations, for programs that compute with integers.
    kept = {name: x for name, x in arrays.items() if not name.endswith("_QuantMultA")}
    tensors = Tensors(kept, weights)

    def weight_of(path, shape):
        if len(shape) == 1:
            return tensors.take(_name(path, sizes), 1, *shape)[0]
        return tensors.take(_name(path, sizes), *shape)

    translator = translator_of(
        weights,
        sizes=sizes,
        matrices=_matrices(tensors, sizes["d_model"], flags),
        weight_of=weight_of,
        vocabularies=_vocabularies(folder, search),
        decoding=_search_options(search),
    )
    tensors.check_none_left()
    return translator


def _search_file(folder):
    """Returns the search options; none if there is no file of them."""
    found = [*folder.glob("decoder.yml")] or [*folder.glob("config*.yml")]
    if len(found) > 1:
        raise ValueError(
            f"{folder} must have one decoder.yml or config*.yml. Received: "
            f"{', '.join(sorted(path.name for path in found))}"
        )
    return read_options(found[0]) if found else Options({}, folder)


def _files(folder, search, option, most, *patterns):
    """Returns the files that an option names, or that the first pattern finds."""
    names = search.values.get(option)
    if option not in search.values:
        found = (sorted(folder.glob(pattern)) for pattern in patterns)
        names = [path.name for path in next(filter(None, found), [])]
    are_names = isinstance(names, list) and all(isinstance(x, str) for x in names)
    if not are_names or not 1 <= len(names) <= most:
        rule = f"must name at most {most} files, if {' or '.join(patterns)} does not"
        raise search.error(option, rule)
    return [folder / Path(name).name for name in names]


def _read_npz(path):
    """Returns the arrays of a `.npz` without unpickling."""
    failures = (
        ValueError,
        EOFError,
        KeyError,
        TypeError,
        MemoryError,
        NotImplementedError,
        zipfile.BadZipFile,
        zlib.error,
    )
    stream = io.BytesIO(content_of(path))
    with described(f"{path} cannot be read as a .npz of numbers", failures):
        with np.load(stream, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}


def _read_bin(path):
    """Returns the arrays of a `.bin` of version 1 (Marian's src/common/binary.cpp)."""
    stream = io.BytesIO(content_of(path))
    arrays = {}

    def numbers(dtype, count):
        content = stream.read(np.dtype(dtype).itemsize * count)
        return np.frombuffer(content, dtype, count).tolist()

    failures = ValueError, OverflowError
    with described(f"{path} cannot be read as Marian's .bin", failures):
        version, count = numbers("<u8", 2)
        if version != 1:
            raise ValueError(f"the version must be 1. Received: {version}")
        # Length of the name, type, number of axes and bytes of each item.
        headers = [numbers("<u8", 4) for _ in range(count)]
        names = [stream.read(length) for length, _, _, _ in headers]
        shapes = [numbers("<i4", axes) for _, _, axes, _ in headers]
        (padding,) = numbers("<u8", 1)
        stream.seek(padding, io.SEEK_CUR)
        items = zip(headers, names, shapes, strict=True)
        for (_, kind, _, length), name, shape in items:
            name = name.rstrip(b"\0").decode("utf-8")
            if name in arrays:
                raise ValueError(f"{name} occurs twice")
            arrays[name] = _item(name, kind, shape, stream.read(length))
    return arrays


def _item(name, kind, shape, content):
    """Returns the array of an item's bytes."""
    dtype = _PLAIN.get(kind) or _QUANTISED.get(kind)
    if dtype is None:
        raise ValueError(
            f"{name} has the type {kind:#x} of a special processor: convert it to "
            "float32 with marian-conv"
        )
    array = np.frombuffer(content, dtype, math.prod(shape))
    if kind in _PLAIN:
        return array.reshape(shape)
    multiplier = np.frombuffer(content, "<f4", 1, array.nbytes)[0]
    if not 0 < multiplier < np.inf:
        raise ValueError(f"{name} was multiplied by {multiplier}")
    array = array.astype(np.float32) / multiplier
    if "Wemb" in name:
        return array.reshape(shape)
    # Transposed for the processor's product, although the shape is not.
    return array.reshape(shape[::-1]).T


def _sizes(options):
    """Returns options of a `TransformerConfig`."""
    options.one_of("type", "transformer")
    options.check(_NEEDED)

    def one_of(name, *accepted, default):
        return options.one_of(f"transformer-{name}", *accepted, default=default)

    width = options.number("transformer-dim-ffn")
    one_of("decoder-dim-ffn", 0, width, default=0)
    order = (
        one_of("preprocess", "", "n", "d", default=""),
        one_of("postprocess", "dan", "da", default="dan"),
        one_of("postprocess-top", "", "n", default=""),
    )
    if order not in (("", "dan", ""), ("n", "da", "n")):
        raise options.error(
            "transformer-postprocess",
            "must be 'dan', or 'da' with `transformer-preprocess` and "
            "`transformer-postprocess-top` 'n'",
        )
    kinds = {"self-attention": "dot-product", "rnn": "ssru"}
    kind = kinds[one_of("decoder-autoreg", *kinds, default="self-attention")]
    if kind == "ssru":
        options.one_of("dec-cell", "ssru")
    options.pass_over("dec-cell")
    activation = one_of("ffn-activation", *_ACTIVATIONS, default="swish")
    of_embeddings = one_of("postprocess-emb", "", "d", "n", "nd", default="d")
    return {
        "num_encoder_layers": options.number("enc-depth"),
        "num_decoder_layers": options.number("dec-depth"),
        "d_model": options.number("dim-emb"),
        "num_heads": options.number("transformer-heads"),
        "d_ff": width,
        "activation": _ACTIVATIONS[activation],
        "norm_first": order[0] == "n",
        "use_bias": True,
        "positions": "sinusoidal-marian",
        "normalize_embeddings": "n" in of_embeddings,
        "decoder_self_attention": kind,
    }


def _dropout_rates(weights, options, search):
    """Returns the rates of the training, as far as they are told; the others are 0."""
    file = weights.with_name(f"{weights.name}.yml")  # as Marian writes it
    training = read_options(file) if file.exists() else search
    return {
        ours: first_with(theirs, options, search, training).number(theirs, 0.0)
        for ours, theirs in _DROPOUT_RATES.items()
    }


def _search_options(search):
    """Returns options of a `DecodingConfig`; the file has others of the program."""
    search.check(_SEARCH_NEEDED)
    return {
        "beam_size": search.number("beam-size", 12),  # Marian's default
        "length_penalty": search.number("normalize", 0.0),
        "length_penalty_form": "power",
        "allow_unknown": search.one_of("allow-unk", False, True, default=False),
    }


def _matrices(tensors, width, flags):
    """Returns both embeddings, the rows of the output and its bias, or `None`."""
    all_tied = flags["tied-embeddings-all"]
    is_one = all_tied or flags["tied-embeddings-src"]
    source = tensors.take("Wemb" if is_one else "encoder_Wemb", None, width)
    target = tensors.take("Wemb" if is_one else "decoder_Wemb", None, width)
    output = target
    prefix = "decoder_ff_logit_out"
    if not (all_tied or flags["tied-embeddings"]):
        if f"{prefix}_Wt" in tensors:
            output = tensors.take(f"{prefix}_Wt", len(target), width)
        else:
            output = tensors.take(f"{prefix}_W", width, len(target)).T
    bias = None
    if not flags["output-omit-bias"]:
        bias = tensors.take(f"{prefix}_b", 1, len(target))[0]
    return source, target, output, bias


def _name(path, sizes):
    """Returns Marian's name of a weight of a `Transformer`."""
    path = re.sub(r"_layer_(\d+)/", lambda found: f"_l{int(found[1]) + 1}_", path)
    name = renamed(path, _NAMES)
    is_pre = sizes["norm_first"] and "_top_" not in name
    if "_ln_" in name and (is_pre or "_emb_" in name):
        name += "_pre"
    if sizes["decoder_self_attention"] == "ssru" and name.startswith("decoder"):
        name = name.replace("_self_Wo_ln", "_rnn_ln" if is_pre else "_rnn_ffn_ln")
    return name


def _vocabularies(folder, search):
    """Returns the vocabularies of the source and of the target."""
    paths = _files(folder, search, "vocabs", 2, "*vocab*.yml", "*vocab*.spm")
    paths = [paths[0], paths[-1]]
    if all(path.suffix == ".spm" for path in paths):
        return [sentencepiece_vocabulary(path) for path in paths]
    models = folder / "source.spm", folder / "target.spm"
    vocabularies = []
    for path, model in zip(paths, models, strict=True):
        if model.with_suffix(".bpe").exists():
            raise ValueError(f"{folder}: subword-nmt (.bpe) is not supported")
        pieces = numbered_pieces(path, "</s>", "<unk>")
        vocabularies.append(
            Vocabulary(
                pieces=pieces,
                model=content_of(model),
                end=pieces.index("</s>"),
                unknown=pieces.index("<unk>"),
            )
        )
    return vocabularies
