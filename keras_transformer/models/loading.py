"""Reads a model.keras that may be damaged or claim what it does not hold."""

from __future__ import annotations

import errno
import json
import zipfile
from pathlib import Path

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.models.transformer import Transformer

# A member of the archive this small (bytes) does no harm, however well it compresses.
_SMALL = 2**20
# Keras does not compress, and trained weights hardly shrink; the zeros of a bomb do.
_CLOSEST_PACKING = 20


def load_seq2seq(path: str | Path) -> Seq2Seq:
    """Reads a model that `save` wrote, without compiling it.

    What the file claims is compared with its size before anything is built.

    Args:
        path: A file that ends in ".keras".

    Returns:
        A `Transformer`, or another `Seq2Seq`.

    Raises:
        OSError: If the file cannot be read, for a reason other than damage.
        ValueError: If it is damaged, claims more weights than it holds, or is not
            a `Seq2Seq`.

    Example:
        >>> load_seq2seq("runs/en-de/model.keras").config.d_model
        128
    """
    path = Path(path)
    config, size = _reading(path, _claim)
    _check_claim(path, config, size)
    model = _reading(path, lambda path: keras.saving.load_model(path, compile=False))
    if not isinstance(model, Seq2Seq):
        raise _other_class(path, type(model).__name__)
    return model


def read_config(path: str | Path) -> TransformerConfig:
    """Reads the sizes of a model that `save` wrote, and builds nothing.

    Args:
        path: A file that ends in ".keras".

    Returns:
        A `TransformerConfig`.

    Raises:
        OSError: If the file cannot be read, for a reason other than damage.
        ValueError: If it is damaged, or holds no `Transformer`.

    Example:
        >>> read_config("runs/en-de/model.keras").d_model
        128
    """
    path = Path(path)
    config, size = _reading(path, _claim)
    kind = keras.saving.get_registered_object(str(config["registered_name"]))
    if kind is not Transformer:
        raise _other_class(path, config["class_name"])
    _check_claim(path, config, size)
    return _sizes(path, kind, config)


def check_size(config: TransformerConfig, stored: int, origin: str | Path):
    """Checks that a file can hold the weights of a model.

    Args:
        config: What is claimed.
        stored: Bytes that the file has for them.
        origin: How the error begins, with the name of the file.

    Raises:
        ValueError: If there are more weights than the bytes can hold: quantised to 4
            bits, two of them take one byte.
    """
    fewest = config.fewest_weights()
    if fewest > 2 * stored:
        sizes = ((name, value) for name, value in vars(config).items())
        numbers = [item for item in sizes if type(item[1]) is int]
        largest = sorted(numbers, key=lambda item: item[1], reverse=True)[:2]
        claims = ", ".join(f"{name}={value}" for name, value in largest)
        raise ValueError(
            f"{origin}: the sizes need {fewest:,} weights, and only {stored:,} bytes "
            f"are there. Received: {claims}"
        )


def _reading(path, read):
    """Returns `read(path)`; whatever damage raises becomes one kind of error."""
    try:
        return read(path)
    # Damage shows in many ways, depending on where the file was hit.
    except Exception as error:
        if _is_of_the_machine(error):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"{path} is damaged, or no model that can be read: {reason}"
        ) from error


def _is_of_the_machine(error):
    """Whether an error is the machine's, so that the file may be whole."""
    # HDF5's errors have no number; in a truncated archive Python seeks before 0.
    numbers = (None, errno.EINVAL)
    is_numbered = isinstance(error, OSError) and error.errno not in numbers
    return is_numbered or isinstance(error, MemoryError)


def _claim(path):
    """Returns the configuration in an archive, and the bytes of its weights."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            # What an archive says about its members may be a lie as well.
            packed = min(member.compress_size, path.stat().st_size)
            if member.file_size > max(_SMALL, _CLOSEST_PACKING * packed):
                raise ValueError(
                    f"{member.filename} in it claims {member.file_size:,} bytes, "
                    f"packed in {packed:,}"
                )
        config = json.loads(archive.read("config.json"))
        names = ("class_name", "registered_name", "module", "config")
        stored = [m.file_size for m in archive.infolist() if "weights" in m.filename]
    return {name: config.get(name) for name in names}, sum(stored)


def _check_claim(path, config, size):
    """Checks class and sizes; classes that are not known yet are left to Keras."""
    kind = keras.saving.get_registered_object(str(config["registered_name"]))
    if kind is None and str(config["module"]).split(".")[0] == "keras":
        raise _other_class(path, config["class_name"])
    if isinstance(kind, type) and not issubclass(kind, Seq2Seq):
        raise _other_class(path, config["class_name"])
    # A subclass may have fewer weights than its sizes say, and other options.
    if kind is Transformer:
        check_size(_sizes(path, kind, config), size, path)


def _sizes(path, kind, config):
    """Returns the options of a model of the class `kind`."""
    try:
        return kind.config_class.from_dict(config["config"]["config"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: `config` is bad: {error}") from error


def _other_class(path, name):
    return ValueError(
        f"{path} must hold a `Transformer` or another `Seq2Seq`. Received: {name}"
    )
