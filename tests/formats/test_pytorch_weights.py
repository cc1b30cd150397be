"""Weights that PyTorch pickled: equal to its own numbers, and nothing is ever run."""

import collections
import io
import os
import pickle
import zipfile

import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_transformer.formats import import_model
from keras_transformer.formats.pytorch_weights import read_pytorch_weights
from tests.formats import foreign

torch = pytest.importorskip("torch")


def before_1_6(state, path):
    torch.save(state, path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("save", [torch.save, before_1_6])
def test_the_numbers_are_those_that_were_saved(tmp_path, save):
    whole = torch.arange(20.0).reshape(4, 5) / 7
    state = {
        "whole": whole,
        "columns": whole.T[1:3],  # of the same numbers in another order
        "half": whole.half(),
        "ids": torch.arange(6).reshape(2, 3),
        "one": torch.tensor(3.0),
        "parameter": torch.nn.Parameter(whole[::2]),
        **torch.nn.Linear(3, 2).state_dict(),
    }
    save(state, tmp_path / "weights.bin")
    found = read_pytorch_weights(tmp_path / "weights.bin")
    assert list(found) == list(state)
    for name, tensor in state.items():
        expected = tensor.detach().numpy()
        np.testing.assert_array_equal(found[name], expected, strict=True)


@pytest.mark.parametrize("save", [torch.save, before_1_6])
def test_a_folder_with_a_pickle_gives_the_translator_of_its_twin(tmp_path, rng, save):
    foreign.write_hugging_face(tmp_path, rng)
    expected = import_model(tmp_path)
    weights = tmp_path / "model.safetensors"
    state = {name: torch.tensor(array) for name, array in load_file(weights).items()}
    save(state, tmp_path / "pytorch_model.bin")
    weights.unlink()
    found = import_model(tmp_path)
    for a, b in zip(found.model.weights, expected.model.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    assert found(["a b", "c"]) == expected(["a b", "c"])


class Call:
    """A call that a pickle makes when it is read."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class Storage:
    """Four numbers of the file."""


class Pickler(pickle.Pickler):
    def persistent_id(self, thing):
        if isinstance(thing, Storage):
            return "storage", torch.FloatStorage, "0", "cpu", 4
        return None


def tensor(offset, size, stride):
    rebuild = torch._utils._rebuild_tensor_v2
    return Call(rebuild, Storage(), offset, size, stride, False, {})


def archive(state, name="archive/data.pkl"):
    pickled, file = io.BytesIO(), io.BytesIO()
    Pickler(pickled, 2).dump(state)
    with zipfile.ZipFile(file, "w") as entries:
        entries.writestr(name, pickled.getvalue())
        entries.writestr("archive/data/0", np.arange(4.0, dtype="<f4").tobytes())
    return file.getvalue()


def test_the_forger_of_this_file_can_write_a_good_one(tmp_path):
    (tmp_path / "weights.bin").write_bytes(archive({"a": tensor(1, (3,), (1,))}))
    (array,) = read_pytorch_weights(tmp_path / "weights.bin").values()
    np.testing.assert_array_equal(array, [1.0, 2.0, 3.0])


HARM = Call(os.system, "touch harmed")
REFUSED = {
    "a call in an archive": (archive({"a": HARM}), "it wants posix.system"),
    "a call alone": (pickle.dumps(HARM), "it wants posix.system"),
    "a call in an old file": (
        b"".join(map(pickle.dumps, [0x1950A86A20F9469CFC6C, 1001, {}, HARM])),
        "it wants posix.system",
    ),
    "a function of Python": (archive({"a": Call(eval, "1")}), "__builtin__.eval"),
    "another of PyTorch": (archive({"a": Call(torch.load, "b")}), "serialization.load"),
    "a type that NumPy lacks": (archive({"a": torch.bfloat16}), "torch.bfloat16"),
    "a module's object": (archive({"a": collections.Counter("a")}), "Counter"),
    "numbers behind the file": (archive({"a": tensor(2, (3,), (1,))}), "a must lie"),
    "numbers before it": (archive({"a": tensor(-1, (3,), (1,))}), "a must lie"),
    "steps backwards": (archive({"a": tensor(3, (3,), (-1,))}), "a must lie"),
    "a size without a step": (archive({"a": tensor(0, (3, 1), (1,))}), "is shorter"),
    "sizes that are no numbers": (archive({"a": tensor(0, "ab", (1, 1))}), "not"),
    "a number in place of a tensor": (archive({"a": 1}), "'a' must be a tensor"),
    "a list": (archive([1]), "must hold tensors by name"),
    "no pickle in it": (archive({}, "archive/other"), "values to unpack"),
    "half a file": (archive({"a": tensor(0, (3,), (1,))})[:-40], "cannot be read"),
    "other bytes": (b"weights", "cannot be read"),
    "another number first": (b"".join(map(pickle.dumps, [1, 1, {}, {}, []])), "save"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    content, expected = REFUSED[case]
    (tmp_path / "weights.bin").write_bytes(content)
    with pytest.raises(ValueError, match="weights.bin cannot be read: ") as caught:
        read_pytorch_weights(tmp_path / "weights.bin")
    assert expected in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "harmed").exists()
