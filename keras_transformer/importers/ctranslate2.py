"""CTranslate2's folders of encoder-decoder Transformers."""

from __future__ import annotations

from pathlib import Path

from keras_transformer.importers.contents import Options, read_json
from keras_transformer.importers.ctranslate2_file import read_variables
from keras_transformer.importers.ctranslate2_model import Reader
from keras_transformer.importers.description import Description, Vocabulary
from keras_transformer.importers.tensors import Tensors

_NEWEST_REVISION = 7
# Heads of the specifications that did not write them.
_OLD_SPECS = {"TransformerBase": 8, "TransformerBig": 16}
# The epsilon of its layer normalisation where config.json has none.
_EPSILON = 1e-5
# What CTranslate2 does where it is told nothing.
_SEARCH = {
    "beam_size": 2, "length_penalty": 1.0, "length_penalty_form": "power",
    "ends_within_beam": True, "min_output_length": 2,
}  # fmt: skip
_MODELS = {
    "source": ("source.spm", "sentencepiece.model", "sentencepiece.bpe.model",
               "spm.model", "source.model"),
    "target": ("target.spm", "sentencepiece.model", "sentencepiece.bpe.model",
               "spm.model", "target.model"),
}  # fmt: skip


def read_ctranslate2(
    path: Path, models: tuple[bytes, bytes] | None = None
) -> Description:
    """Reads a folder of CTranslate2.

    Args:
        path: A folder with model.bin and the vocabularies, perhaps a config.json and
            the SentencePiece models source.spm and target.spm.
        models: SentencePiece models of source and target, in place of the folder's.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is damaged, or the model has a part that is not here.
    """
    weights = path / "model.bin"
    if not weights.is_file():
        raise FileNotFoundError(f"{weights} is missing")
    variables = _checked(read_variables(weights), weights)
    reader = Reader(Tensors(variables.arrays, str(weights)), variables.arrays)
    config = path / "config.json"
    options = Options(read_json(config) if config.exists() else {}, config)
    model = reader.model_options(_OLD_SPECS.get(variables.spec))
    matrices = reader.matrices()
    model["d_model"] = matrices["target_embeddings"].shape[1]
    layers = reader.layers(model)
    reader.set_positions(model, layers)
    ends = reader.flags_of_ends(options)
    reader.tensors.check_none_left()
    source, target = _vocabularies(path, options, ends, matrices, models)
    return Description(
        origin=str(weights),
        model=model | _config(options) | {"source_end": ends["source_end"]},
        layers=layers, source=source, target=target,
        decoding=_SEARCH | _longest(model), scaled=reader.scaled, **matrices,
    )  # fmt: skip


def _checked(variables, weights):
    """Returns the variables, if they are of a specification that is known here."""
    if variables.spec not in (*_OLD_SPECS, "TransformerSpec"):
        raise ValueError(
            f"{weights} must hold a TransformerSpec, an encoder and a decoder. "
            f"Received: {variables.spec}"
        )
    if not 2 <= variables.revision <= _NEWEST_REVISION:
        raise ValueError(
            f"{weights} must be of the specification's revision 2 to "
            f"{_NEWEST_REVISION}. Received: {variables.revision}"
        )
    return variables


def _config(options):
    """Returns what config.json says of the layers; the rest must be known."""
    epsilon = options.values.get("layer_norm_epsilon")
    if epsilon is not None:
        epsilon = options.number("layer_norm_epsilon", kind=float)
    for name in ("multi_query_attention", "quantization_bits"):
        options.one_of(name, False, None, default=False)
    options.pass_over(
        ["layer_norm_epsilon", "quantization_type", "quantization_group_size",
         "add_source_bos", "add_source_eos"]
    )  # fmt: skip
    options.check_none_left()
    return {"layer_norm_epsilon": float(_EPSILON if epsilon is None else epsilon)}


def _longest(model):
    """Returns how long texts may be, with learned positions, for a `DecodingConfig`."""
    if model["positions"] != "learned":
        return {}
    most = model["max_positions"]
    return {"max_source_length": max(2, min(256, most)), "max_output_length": most}


def _vocabularies(path, options, ends, matrices, models):
    """Returns the vocabularies of the source and of the target."""
    names = {
        name: options.values.get(name) or default
        for name, default in (
            ("unk_token", "<unk>"), ("bos_token", "<s>"), ("eos_token", "</s>"),
        )
    }  # fmt: skip
    options.pass_over([*names, "decoder_start_token"])
    start = _start(options, names, ends)
    contents = models or _sentencepiece_models(path)
    sides = []
    for side, model in zip(("source", "target"), contents, strict=True):
        file, pieces = _pieces(path, side)
        if names["unk_token"] not in pieces:
            pieces.append(names["unk_token"])
        rows = len(matrices[f"{side}_embeddings"])
        if len(pieces) != rows:
            raise ValueError(
                f"{file} has {len(pieces):,} pieces, and the {side}'s matrix "
                f"{rows:,} rows"
            )
        places = {piece: i for i, piece in enumerate(pieces)}
        needed = [names["eos_token"]]
        if side == "target" and not ends["from_zero"]:
            needed.append(start)
        for token in needed:
            if token not in places:
                raise ValueError(f"{file} must have {token!r}")
        pads = [places[name] for name in ("<blank>", "<pad>") if name in places]
        sides.append(
            Vocabulary(
                pieces, places[names["eos_token"]], places[names["unk_token"]],
                None if ends["from_zero"] else places.get(start),
                pads[0] if pads else None, model,
            )
        )  # fmt: skip
    return sides


def _start(options, names, ends):
    """Returns the token that an output starts from, `None` if from a row of zeros."""
    if ends["from_end"]:
        return names["eos_token"]
    start = options.values.get("decoder_start_token", names["bos_token"])
    if start is None and not ends["from_zero"]:
        raise options.error("decoder_start_token", "must be a token")
    return start


def _pieces(path, side):
    """Returns a side's vocabulary file, and the pieces in it."""
    for stem in (f"{side}_vocabulary", "shared_vocabulary"):
        file = path / f"{stem}.json"
        if file.exists():
            pieces = read_json(file)
            if not isinstance(pieces, list) or not all(
                isinstance(piece, str) for piece in pieces
            ):
                raise ValueError(f"{file} must be a list of pieces")
            return file, pieces
        file = path / f"{stem}.txt"
        if file.exists():
            try:
                text = file.read_bytes().decode("utf-8")
            except UnicodeError as error:
                raise ValueError(f"{file} is not UTF-8") from error
            return file, text.removesuffix("\n").split("\n")
    raise FileNotFoundError(f"{path} has no {side}_vocabulary.json, .txt or shared one")


def _sentencepiece_models(path):
    """Returns the SentencePiece models in a folder, or `None` for each side."""
    found = []
    for names in _MODELS.values():
        files = [path / name for name in names if (path / name).is_file()]
        found.append(files[0].read_bytes() if files else None)
    return found if None not in found else [None, None]
