"""Weights that PyTorch pickled: equal to its own numbers, and nothing is ever run."""

import collections
import os
import pickle
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_transformer.formats import import_model
from tests.formats import foreign

torch = pytest.importorskip("torch")


def before_1_6(state, path):
    torch.save(state, path, _use_new_zipfile_serialization=False)


def in_bfloat16(state, path):
    torch.save({name: tensor.bfloat16() for name, tensor in state.items()}, path)


def in_float16(state, path):
    torch.save({name: tensor.half() for name, tensor in state.items()}, path)


@pytest.fixture
def folder(tmp_path, rng):
    """A model of Hugging Face whose weights are in pytorch_model.bin alone."""
    foreign.write_hugging_face(tmp_path, rng)
    return tmp_path


def pickle_weights(folder, save):
    weights = folder / "model.safetensors"
    state = {name: torch.tensor(array) for name, array in load_file(weights).items()}
    save(state, folder / "pytorch_model.bin")
    weights.unlink()


@pytest.mark.parametrize("save", [torch.save, before_1_6, in_bfloat16, in_float16])
def test_a_folder_with_a_pickle_gives_the_translator_of_its_twin(folder, save):
    expected = import_model(folder)
    pickle_weights(folder, save)
    translator = import_model(folder)
    tolerance = {in_bfloat16: 2**-8, in_float16: 2**-11}.get(save, 0)
    for a, b in zip(translator.model.weights, expected.model.weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance / 1e3)
    if not tolerance:
        assert translator(["a b", "c"]) == expected(["a b", "c"])


class Harm:
    """A call that a pickle makes when it is read."""

    def __reduce__(self):
        return os.system, ("touch harmed",)


def saved(thing):
    def write(path):
        torch.save(thing, path)

    return write


REFUSED = {
    "a call": saved({"a": Harm()}),
    "a call alone": lambda path: path.write_bytes(pickle.dumps(Harm(), 2)),
    "a call in an old file": lambda path: before_1_6({"a": Harm()}, path),
    "an object of a module": saved({"a": collections.deque("a")}),
    "a list": saved([torch.ones(2)]),
    "a number in place of a tensor": saved({"a": 1}),
    "half a file": lambda path: path.write_bytes(path.read_bytes()[:-400]),
    "other bytes": lambda path: path.write_bytes(b"weights"),
    "nothing": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(folder, monkeypatch, case):
    monkeypatch.chdir(folder)
    pickle_weights(folder, torch.save)
    path = folder / "pytorch_model.bin"
    REFUSED[case](path)
    with pytest.raises(ValueError, match=f"{path} cannot be read: .*by name"):
        import_model(folder)
    assert not (folder / "harmed").exists()


def test_a_pointer_of_git_lfs_in_place_of_a_pickle(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_text(foreign.POINTER)
    with pytest.raises(ValueError, match="pytorch_model.bin is a pointer of Git LFS"):
        import_model(folder)


def test_without_pytorch_the_error_says_what_to_do(folder, monkeypatch):
    pickle_weights(folder, torch.save)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="pip install torch.*write model.safetensors"):
        import_model(folder)
