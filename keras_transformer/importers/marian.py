"""Marian's models: OPUS-MT as released, and the students of Bergamot and Firefox."""

from __future__ import annotations

from pathlib import Path

from keras_transformer.importers.contents import Options, described, read_yaml
from keras_transformer.importers.description import Description, Vocabulary
from keras_transformer.importers.marian_files import read_weights
from keras_transformer.importers.marian_options import model_options, search_options
from keras_transformer.importers.tensors import Tensors
from keras_transformer.importers.vocabularies import of_sentencepiece

_WEIGHTS = (".npz", ".bin")
_PROJECTIONS = {"query": "q", "key": "k", "value": "v", "output": "o"}


def read_marian(path: Path) -> Description:
    """Reads a model of Marian.

    Args:
        path: A folder with the weights (`.npz` or `.bin`), the vocabularies and perhaps
            a `decoder.yml`, or the file of the weights in it.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is damaged, or the model has an option that is not here.
    """
    folder = path if path.is_dir() else path.parent
    search = _search(folder)
    weights = path if path.is_file() else _weights_file(folder, search)
    arrays, options = read_weights(weights)
    model, form = model_options(Options(options, f"{weights}: special:model.yml"))
    tensors = Tensors(arrays, str(weights))
    matrices = _matrices(tensors, model["d_model"], form)
    layers = _layers(tensors, model)
    tensors.check_none_left()
    source, target = _vocabularies(folder, search)
    for side, vocabulary in (("source", source), ("target", target)):
        rows = len(matrices[f"{side}_embeddings"])
        if len(vocabulary.pieces) != rows:
            raise ValueError(
                f"{weights} has {rows:,} rows for the {side}, and its vocabulary "
                f"{len(vocabulary.pieces):,} pieces"
            )
    return Description(
        origin=str(weights), model=model, layers=layers, source=source, target=target,
        decoding=search_options(search), **matrices,
    )  # fmt: skip


def _search(folder):
    """Returns the options of the file that says how to translate; without one, none."""
    found = [folder / "decoder.yml"]
    if not found[0].exists():
        found = sorted(folder.glob("config*.yml"))
    if len(found) > 1:
        raise ValueError(
            f"{folder} must have one decoder.yml or config*.yml. Received: "
            f"{', '.join(path.name for path in found)}"
        )
    if not found:
        return Options({}, folder)
    return Options(read_yaml(found[0]), found[0])


def _weights_file(folder, search):
    """Returns the file of the weights: the one that is named, or the only one."""
    named = search.values.get("models")
    if named is not None:
        return _named(folder, search, "models", 1)[0]
    found = sorted(path for path in folder.iterdir() if path.suffix in _WEIGHTS)
    if len(found) != 1:
        raise ValueError(
            f"{folder} must have one file of weights, .npz or .bin, or a decoder.yml "
            f"that names it. Received: {len(found)}"
        )
    return found[0]


def _named(folder, search, option, count):
    """Returns the files in the folder that an option names."""
    names = search.values[option]
    if not (isinstance(names, list) and len(names) == count) or not all(
        isinstance(name, str) for name in names
    ):
        raise search.error(option, f"must name {count} file{'s'[: count - 1]}")
    paths = [folder / Path(name).name for name in names]
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"{search.origin} names {path}, which is missing")
    return paths


def _matrices(tensors, width, form):
    """Returns the three matrices and the output's bias, as a `Description` has them."""
    source_size, target_size = form.sizes
    source = tensors.take(form.source_matrix, source_size, width)
    target = tensors.take(form.target_matrix, target_size, width)
    output, prefix = target, "decoder_ff_logit_out"
    if not form.is_output_tied:
        if f"{prefix}_Wt" in tensors:
            output = tensors.take(f"{prefix}_Wt", len(target), width)
        else:
            output = tensors.take(f"{prefix}_W", width, len(target)).T
    bias = None
    if form.has_output_bias:
        bias = tensors.take(f"{prefix}_b", 1, len(target))[0]
    return {
        "source_embeddings": source, "target_embeddings": target,
        "output_rows": output, "output_bias": bias,
    }  # fmt: skip


def _layers(tensors, model):
    """Returns the weights of all layers by their paths in a `Transformer`."""
    suffix = "_pre" if model["norm_first"] else ""
    take = _Taking(tensors, model["d_model"], model["d_ff"], suffix)
    for i in range(model["num_encoder_layers"]):
        ours, theirs = f"encoder_layer_{i}", f"encoder_l{i + 1}"
        take.attention(f"{ours}/self_attention", f"{theirs}_self")
        take.feed_forward(f"{ours}/feed_forward", f"{theirs}_ffn")
    for i in range(model["num_decoder_layers"]):
        ours, theirs = f"decoder_layer_{i}", f"decoder_l{i + 1}"
        if model["decoder_self_attention"] == "ssru":
            take.ssru(f"{ours}/self_attention", f"{theirs}_rnn")
        else:
            take.attention(f"{ours}/self_attention", f"{theirs}_self")
        take.attention(f"{ours}/cross_attention", f"{theirs}_context")
        take.feed_forward(f"{ours}/feed_forward", f"{theirs}_ffn")
    for side, theirs in (("source", "encoder"), ("target", "decoder")):
        if model["normalize_embeddings"]:
            take.norm(f"{side}_embedding_norm", f"{theirs}_emb", "_pre")
        if model["norm_first"]:
            take.norm(f"{theirs}_norm", f"{theirs}_top", "")
    return take.weights


class _Taking:
    """Takes the tensors of sub-layers and gives them our names, in `weights`."""

    def __init__(self, tensors, width, hidden, suffix):
        self.tensors, self.width, self.hidden = tensors, width, hidden
        self.suffix = suffix
        self.weights = {}

    def attention(self, ours, theirs):
        for name, letter in _PROJECTIONS.items():
            self.linear(f"{ours}/{name}", theirs, letter, self.width, self.width)
        self.norm(f"{ours}_norm", f"{theirs}_Wo", self.suffix)

    def feed_forward(self, ours, theirs):
        self.linear(f"{ours}/hidden", theirs, "1", self.width, self.hidden)
        self.linear(f"{ours}/output", theirs, "2", self.hidden, self.width)
        self.norm(f"{ours}_norm", f"{theirs}_ffn", self.suffix)

    def ssru(self, ours, theirs):
        square = self.width, self.width
        self.weights[f"{ours}/input/kernel"] = self.tensors.take(f"{theirs}_W", *square)
        self.linear(f"{ours}/forget", theirs, "f", *square)
        # Marian names the norm after the input by the prefix alone.
        prefix = theirs if self.suffix else f"{theirs}_ffn"
        self.norm(f"{ours}_norm", prefix, self.suffix)

    def linear(self, ours, theirs, letter, inputs, outputs):
        take = self.tensors.take
        self.weights[f"{ours}/kernel"] = take(f"{theirs}_W{letter}", inputs, outputs)
        self.weights[f"{ours}/bias"] = take(f"{theirs}_b{letter}", 1, outputs)[0]

    def norm(self, ours, theirs, suffix):
        for name, part in (("gamma", "scale"), ("beta", "bias")):
            tensor = self.tensors.take(f"{theirs}_ln_{part}{suffix}", 1, self.width)
            self.weights[f"{ours}/{name}"] = tensor[0]


def _vocabularies(folder, search):
    """Returns the vocabularies of the source and of the target."""
    if "vocabs" in search.values:
        paths = _named(folder, search, "vocabs", 2)
    else:
        paths = _only_vocabularies(folder)
    if all(path.suffix == ".spm" for path in paths):
        first = _of_spm(paths[0])
        return first, first if paths[0] == paths[1] else _of_spm(paths[1])
    return tuple(
        _of_yaml(path, folder / f"{side}.spm")
        for path, side in zip(paths, ("source", "target"), strict=True)
    )


def _only_vocabularies(folder):
    """Returns the vocabularies of a folder that has no decoder.yml."""
    found = sorted(folder.glob("*vocab*.yml"))
    found = found or [p for p in sorted(folder.glob("*vocab*.spm"))]
    if not 1 <= len(found) <= 2:
        raise ValueError(
            f"{folder} must have a decoder.yml that names its vocabularies. Received: "
            f"{len(found)} that may be"
        )
    return found[0], found[-1]


def _of_spm(path):
    return of_sentencepiece(path.read_bytes(), str(path))


def _of_yaml(path, model):
    """Returns the vocabulary of a vocab.yml, whose text a SentencePiece model cuts."""
    if not model.is_file():
        bpe = model.with_suffix(".bpe")
        form = f"; {bpe.name} is of another tool" if bpe.exists() else ""
        raise FileNotFoundError(
            f"{model} is missing: {path.name} needs a SentencePiece model{form}"
        )
    entries = Options(read_yaml(path, as_text=True), path).values
    with described(f"{path} must number its pieces", ValueError, KeyError):
        numbers = {int(number): piece for piece, number in entries.items()}
        pieces = [numbers[i] for i in range(len(entries))] if numbers else []
    ids = {piece: i for i, piece in enumerate(pieces)}
    if not {"</s>", "<unk>"} <= ids.keys():
        raise ValueError(f"{path} must have </s> and <unk>")
    return Vocabulary(pieces, ids["</s>"], ids["<unk>"], model=model.read_bytes())
