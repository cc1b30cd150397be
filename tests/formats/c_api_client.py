"""Runs a SavedModel through TensorFlow's C API, without TensorFlow's Python.

The C++ loader below TF_LoadSessionFromSavedModel is the one TensorFlow Serving uses.
Started as a program of its own: a JSON request on standard input, see `main`, and a
JSON answer on standard output. Strings travel as hexadecimal bytes.
"""

import ctypes
import json
import sys
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_void_p

FLOAT, STRING, INT64, BOOL = 1, 7, 9, 10  # TF_DataType
NUMBERS = {FLOAT: ctypes.c_float, INT64: c_int64, BOOL: ctypes.c_bool}
STRING_SIZE = 24  # Bytes of a TF_TString.


class Output(ctypes.Structure):
    """TF_Output: an output of an operation, or one to feed."""

    _fields_ = [("operation", c_void_p), ("index", c_int)]


class Library:
    """The functions of the C API, by name. What they make lives until the end."""

    # The types of results that are no int.
    RESULTS = {
        "TF_NewStatus": c_void_p, "TF_Message": c_char_p, "TF_NewGraph": c_void_p,
        "TF_NewSessionOptions": c_void_p, "TF_LoadLibrary": c_void_p,
        "TF_LoadSessionFromSavedModel": c_void_p, "TF_TensorData": c_void_p,
        "TF_GraphOperationByName": c_void_p, "TF_AllocateTensor": c_void_p,
        "TF_Dim": c_int64, "TF_TensorElementCount": c_int64, "TF_SessionRun": None,
        "TF_StringInit": None, "TF_StringCopy": None, "TF_StringGetSize": c_size_t,
        "TF_StringGetDataPointer": c_void_p,
    }  # fmt: skip

    def __init__(self, paths):
        self.libraries = [ctypes.CDLL(path, ctypes.RTLD_GLOBAL) for path in paths]

    def call(self, name, *arguments):
        """Calls a function; pointers and sizes are passed with their full width."""
        library = next(lib for lib in self.libraries if hasattr(lib, name))
        function = library[name]
        function.restype = self.RESULTS.get(name, c_int)
        return function(*arguments)

    def checked(self, name, *arguments):
        """Calls a function that takes a status last."""
        status = c_void_p(self.call("TF_NewStatus"))
        result = self.call(name, *arguments, status)
        if self.call("TF_GetCode", status) != 0:
            message = self.call("TF_Message", status).decode("utf-8", "replace")
            raise RuntimeError(f"{name}: {message}")
        return result

    def make_tensor(self, dtype, values):
        """A tensor [B] of bytes or numbers."""
        size = STRING_SIZE if dtype == STRING else ctypes.sizeof(NUMBERS[dtype])
        dims = (c_int64 * 1)(len(values))
        tensor = c_void_p(
            self.call("TF_AllocateTensor", dtype, dims, 1, c_size_t(len(values) * size))
        )
        data = self.call("TF_TensorData", tensor)
        for i, value in enumerate(values):
            place = c_void_p(data + i * size)
            if dtype == STRING:
                self.call("TF_StringInit", place)
                self.call("TF_StringCopy", place, value, c_size_t(len(value)))
            else:
                NUMBERS[dtype].from_address(place.value).value = value
        return tensor

    def read_tensor(self, tensor):
        """The shape and the flat list of the values of a tensor."""
        dtype = self.call("TF_TensorType", tensor)
        shape = [
            self.call("TF_Dim", tensor, i)
            for i in range(self.call("TF_NumDims", tensor))
        ]
        data = self.call("TF_TensorData", tensor)
        count = self.call("TF_TensorElementCount", tensor)
        if dtype != STRING:
            values = (NUMBERS[dtype] * count).from_address(data) if count else []
            return shape, list(values)
        places = [c_void_p(data + i * STRING_SIZE) for i in range(count)]
        return shape, [
            ctypes.string_at(
                self.call("TF_StringGetDataPointer", place),
                self.call("TF_StringGetSize", place),
            )
            for place in places
        ]


class SavedModel:
    """A session on a SavedModel with the tag "serve"."""

    def __init__(self, library, path):
        self.library = library
        self.graph = c_void_p(library.call("TF_NewGraph"))
        options = c_void_p(library.call("TF_NewSessionOptions"))
        tags = (c_char_p * 1)(b"serve")
        self.session = c_void_p(
            library.checked(
                "TF_LoadSessionFromSavedModel",
                options,
                None,
                path.encode("utf-8"),
                tags,
                1,
                self.graph,
                None,
            )
        )

    def output(self, name):
        """The TF_Output of a tensor's name, such as "StatefulPartitionedCall:1"."""
        operation, index = name.split(":")
        found = self.library.call(
            "TF_GraphOperationByName", self.graph, operation.encode("utf-8")
        )
        if not found:
            raise RuntimeError(f"{operation} is not in the graph")
        return Output(found, int(index))

    def run(self, inputs, outputs):
        """Feeds tensors by name and returns (shape, values) of each output."""
        feeds = (Output * len(inputs))(*map(self.output, inputs))
        values = (c_void_p * len(inputs))(*(tensor.value for tensor in inputs.values()))
        fetches = (Output * len(outputs))(*map(self.output, outputs))
        results = (c_void_p * len(outputs))()
        self.library.checked(
            "TF_SessionRun",
            self.session,
            None,
            feeds,
            values,
            len(inputs),
            fetches,
            results,
            len(outputs),
            None,
            0,
            None,
        )
        return [self.library.read_tensor(c_void_p(result)) for result in results]


def main():
    """Answers {"libraries", "operations", "path", "calls"}.

    A call is {"inputs": {tensor name: [dtype, values]}, "outputs": [tensor name]}; its
    answer is a list of {"shape", "values"}, and beside the answers stand the names of
    the Python modules that were imported.
    """
    request = json.load(sys.stdin)
    library = Library(request["libraries"])
    for path in request["operations"]:
        library.checked("TF_LoadLibrary", path.encode("utf-8"))
    model = SavedModel(library, request["path"])
    answers = []
    for call in request["calls"]:
        inputs = {}
        for name, (dtype, values) in call["inputs"].items():
            if dtype == STRING:
                values = [bytes.fromhex(value) for value in values]
            inputs[name] = library.make_tensor(dtype, values)
        answers.append(
            [
                {
                    "shape": shape,
                    "values": [v.hex() if isinstance(v, bytes) else v for v in values],
                }
                for shape, values in model.run(inputs, call["outputs"])
            ]
        )
    json.dump({"answers": answers, "modules": sorted(sys.modules)}, sys.stdout)


if __name__ == "__main__":
    main()
