"""A folder of another system as a `Translator`, and as a run directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from keras_transformer.config import DecodingConfig
from keras_transformer.files import creating_directory
from keras_transformer.importers.ctranslate2 import read_ctranslate2
from keras_transformer.importers.description import Description
from keras_transformer.importers.hugging_face import read_hugging_face
from keras_transformer.importers.marian import read_marian
from keras_transformer.importers.vocabularies import tokenizers_of
from keras_transformer.importers.weights import transformer_of
from keras_transformer.translator import Translator


def import_marian(path: str | Path) -> Translator:
    """Returns a translator of Marian: OPUS-MT as released, or a Firefox student.

    Args:
        path: A folder with the weights (`.npz`, or `.bin` with float32 or with 8-bit
            matrices), the vocabularies (`.spm`, or `vocab.yml` beside source.spm and
            target.spm) and a `decoder.yml` or `config*.yml`; or the file of weights.

    Returns:
        A `Translator` that searches as `decoder.yml` says.

    Raises:
        FileNotFoundError: If a file is missing.
        ImportError: If PyYAML is not installed: extra `import`.
        ValueError: If a file is damaged, or the model has an option that is not here.

    Example:
        >>> import_marian("opus-2020-02-26")(["A dog."])
    """
    return _translator(read_marian(_existing(path)))


def import_hugging_face(path: str | Path) -> Translator:
    """Returns a `MarianMTModel` of Hugging Face's Transformers.

    Args:
        path: A folder with config.json, model.safetensors, source.spm, target.spm and
            vocab.json, such as `save_pretrained` writes. Pickled weights are refused.

    Returns:
        A `Translator` that searches as generation_config.json says.

    Raises:
        FileNotFoundError: If a file is missing.
        ImportError: If `safetensors` is not installed: extra `import`.
        ValueError: If a file is damaged, or the model has an option that is not here.

    Example:
        >>> import_hugging_face("opus-mt-en-de")(["A dog."])
    """
    return _translator(read_hugging_face(_existing(path)))


def import_ctranslate2(
    path: str | Path,
    source_tokenizer: str | Path | None = None,
    target_tokenizer: str | Path | None = None,
) -> Translator:
    """Returns an encoder-decoder Transformer of CTranslate2.

    Args:
        path: A folder with model.bin (float32, float16, bfloat16, int16 or int8) and
            the vocabularies; source.spm and target.spm in it cut the texts. Without
            them a text has spaces between its pieces, as CTranslate2 itself needs it.
        source_tokenizer: SentencePiece model of the source, in place of the folder's.
        target_tokenizer: That of the target; default the source's.

    Returns:
        A `Translator` that searches as CTranslate2 does by default.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is damaged, or the model has a part that is not here.

    Example:
        >>> import_ctranslate2("aren-transliteration")(["آ ت ز م و ن"])
        ['a t z m o n']
    """
    models = None
    if source_tokenizer is not None:
        names = source_tokenizer, target_tokenizer or source_tokenizer
        models = tuple(_existing(name).read_bytes() for name in names)
    elif target_tokenizer is not None:
        raise ValueError(
            "`target_tokenizer` goes with `source_tokenizer`. Received: "
            "source_tokenizer=None"
        )
    return _translator(read_ctranslate2(_existing(path), models))


FORMATS: dict[str, Callable[..., Translator]] = {
    "marian": import_marian,
    "hugging_face": import_hugging_face,
    "ctranslate2": import_ctranslate2,
}


def import_model(path: str | Path) -> Translator:
    """Returns a translator of another system, whichever it is.

    Args:
        path: As `import_marian`, `import_hugging_face` or `import_ctranslate2` takes
            it.

    Returns:
        A `Translator`.

    Raises:
        FileNotFoundError: If a file is missing.
        ImportError: If a library is not installed: extra `import`.
        ValueError: If it is none of them, or what the format's own function raises.

    Example:
        >>> import_model("opus-mt-en-de").save("runs/opus-en-de")
    """
    return FORMATS[format_of(path)](path)


def format_of(path: str | Path) -> str:
    """Returns the name of the format, a key of `FORMATS`, of a folder or a file.

    Raises:
        FileNotFoundError: If there is nothing.
        ValueError: If it is none of them.
    """
    path = _existing(path)
    if path.is_file():
        names = {path.name}
    else:
        names = {file.name for file in path.iterdir()}
    ends = {Path(name).suffix for name in names}
    if "model.bin" in names and path.is_dir():
        return "ctranslate2"
    if ".safetensors" in ends or "pytorch_model.bin" in names:
        return "hugging_face"
    if ends & {".npz", ".bin"}:
        return "marian"
    raise ValueError(
        f"{path} must be a folder of Marian (.npz or .bin), of Hugging Face "
        "(model.safetensors) or of CTranslate2 (model.bin). Received: none of them"
    )


def save_run(translator: Translator, output: str | Path) -> Path:
    """Writes a translator as a run directory, whole or not at all.

    Args:
        translator: What an importer returned.
        output: A directory that does not exist.

    Returns:
        `output`: `translate`, `evaluate`, `export` and `train --init` take it.

    Raises:
        FileExistsError: If it exists.
    """
    output = Path(output)
    check_new(output)
    with creating_directory(output) as temporary:
        translator.save(temporary)
    return output


def check_new(output: Path):
    """Checks that a run can be written to a path.

    Args:
        output: The run directory.

    Raises:
        FileExistsError: If there is something already.
    """
    if output.exists():
        raise FileExistsError(
            f"{output} exists. An import needs a new directory: choose another or "
            "remove it."
        )


def _existing(path):
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    return path


def _translator(description: Description) -> Translator:
    """Builds the translator of a description."""
    tokenizers, source, target = tokenizers_of(description.source, description.target)
    model = transformer_of(description, source, target)
    return Translator(model, tokenizers, DecodingConfig(**description.decoding))
