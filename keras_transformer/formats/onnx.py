"""ONNX files from ids to ids, with the search inside. Needs the extra `onnx`.

`LiteTranslator` runs them with ONNX Runtime, as do programs in C#, Java and JavaScript.
What the converter, tf2onnx, lacks or does wrongly stands here.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.extras import required
from keras_transformer.formats.litert import write_directory
from keras_transformer.nn.kernels.execution import tracing_for_converters
from keras_transformer.nn.kernels.keras_private import integer_products_in_floats

# Smaller tensors stay in the files of the graphs (bytes).
_SHARED = 2**14
# Runtimes map pages of a file into memory (bytes).
_PAGE = 2**12


def export_onnx(
    translator: Any,
    path: str | Path,
    quantize: str = "none",
    languages: Sequence[str] | None = None,
) -> Path:
    """Writes a directory for `keras_transformer.formats.LiteTranslator`.

    It has the files of `export_litert`, with other models: in place of model.tflite an
    ONNX file for each signature, such as translate.onnx, and weights.bin, which has the
    weights of all.

    Args:
        translator: A `Translator` with SentencePiece models. A client cannot change its
            search.
        path: Directory to create, such as "onnx/en-de".
        quantize: "none"; "float16", weights of half the size; or "int8", weights of a
            quarter, with a scale for each column, and faster products of integers.
        languages: Codes of source and target language, for clients.

    Returns:
        `path`.

    Raises:
        FileExistsError: If `path` exists.
        ImportError: If the extra `onnx` is not installed.
        RuntimeError: If the Keras backend is not TensorFlow.
        ValueError: If an argument is out of range, or ONNX lacks an operation.
    """
    for name in ("onnx", "onnxruntime", "tf2onnx"):
        required(name, "An export for ONNX needs tf2onnx and onnxruntime", "onnx")
    change = {"none": lambda model: model, "float16": _halved, "int8": _quantised}

    def write(directory, model, signatures):
        import onnx

        places = {}
        with (directory / "weights.bin").open("wb") as weights:
            for name, function in signatures.items():
                converted = _converted(function)
                _check_operations(converted, type(model).__name__)
                converted = change[quantize](converted)
                _share_weights(converted, weights, places)
                onnx.save(converted, directory / f"{name}.onnx")

    return write_directory(
        "keras_transformer.onnx.1", write, translator, path, quantize, languages
    )


def _converted(function):
    """Returns the ONNX model of a `tf.function`."""
    import tf2onnx

    with tracing_for_converters(), integer_products_in_floats(), _mended():
        model, _ = tf2onnx.convert.from_function(
            function,
            function.input_signature,
            opset=18,  # Of 2022, which every runtime of today has.
            custom_op_handlers={
                "XlaDynamicUpdateSlice": (_slice_update, []),
                "FloorMod": (_floor_mod, []),
                "FloorDiv": (_floor_div, []),
                "Erfc": (_erfc, []),
            },
            custom_rewriter=[_keep_infinities],
        )
    gc.collect()  # The graphs, whose nodes refer to them, hold all weights.
    _free_invariants(model.graph)
    return model


@contextlib.contextmanager
def _mended() -> Iterator[None]:
    """Leaves tf2onnx 1.17 the optimizers that do good, and keeps it quiet."""
    from tf2onnx import optimizer

    # The others take half of the time for nothing, but for one, `reshape_optimizer`,
    # which takes the shape of one tensor for that of another.
    kept = {
        name: optimizer._optimizers[name]
        for name in ("fold_constants", "merge_duplication", "remove_identity")
    }
    optimize = optimizer.optimize_graph
    # It would copy all weights before each optimizer, in case that fails.
    optimizer.optimize_graph = lambda graph, *_, **__: optimize(graph, False, kept)
    logger = logging.getLogger("tf2onnx")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        optimizer.optimize_graph = optimize
        logger.setLevel(level)


def _keep_infinities(graph, nodes):
    """Makes selections choose: tf2onnx adds products with 0, and 0 * -inf is NaN."""
    for node in nodes:
        if node.type in ("Select", "SelectV2"):
            node.set_attr("handles_nan", True)
    return nodes


def _floor_mod(graph, node, name, arguments):
    """As tf2onnx, which is wrong for negative integers: -3 % 16 is 13."""
    if _is_integer(graph, node):
        node.type = "Mod"
    else:
        from tf2onnx.onnx_opset.math import FloorMod

        FloorMod.version_7(graph, node)


def _floor_div(graph, node, name, arguments):
    """As tf2onnx, which is wrong for negative integers: -3 // 16 is -1."""
    if not _is_integer(graph, node):
        from tf2onnx.onnx_opset.math import FloorDiv

        FloorDiv.version_6(graph, node)
        return
    rest = graph.make_node("Mod", node.input).output[0]
    whole = graph.make_node("Sub", [node.input[0], rest]).output[0]
    graph.replace_inputs(node, [whole, node.input[1]])
    node.type = "Div"


def _erfc(graph, node, name, arguments):
    """1 - erf(x), of which the gelu is made; tf2onnx has the error function alone."""
    one = graph.make_const(f"{name}_one", np.array(1.0, np.float32)).output[0]
    error = graph.make_node("Erf", node.input).output[0]
    graph.replace_inputs(node, [one, error])
    node.type = "Sub"


def _is_integer(graph, node):
    from onnx import TensorProto

    return graph.get_dtype(node.input[0]) in (TensorProto.INT32, TensorProto.INT64)


def _slice_update(graph, node, name, arguments):
    """Writes one position of a cache, for which tf2onnx has no operation."""
    cache, new, starts = node.input
    sizes, written = graph.get_shape(cache), graph.get_shape(new)
    if len(sizes) != 4 or sizes[:2] + sizes[3:] != written[:2] + written[3:]:
        # tf2onnx goes on, and `_check_operations` names the operation.
        raise ValueError("Only the third of four axes may be written in part.")
    axis = graph.make_const(f"{name}_axis", np.array([2], np.int32)).output[0]
    count = graph.get_shape(new)[2]
    count = graph.make_const(f"{name}_count", np.array([count], np.int32)).output[0]
    zero = graph.make_const(f"{name}_zero", np.array([0], np.int32)).output[0]
    last = np.array([np.iinfo(np.int32).max], np.int32)
    last = graph.make_const(f"{name}_last", last).output[0]
    start = graph.make_node("Gather", [starts, axis]).output[0]
    end = graph.make_node("Add", [start, count]).output[0]
    before = graph.make_node("Slice", [cache, zero, start, axis]).output[0]
    after = graph.make_node("Slice", [cache, end, last, axis]).output[0]
    shapes, types = node.output_shapes, node.output_dtypes
    graph.remove_node(node.name)
    graph.make_node(
        "Concat",
        [before, new, after],
        attr={"axis": 2},
        outputs=node.output,
        shapes=shapes,
        dtypes=types,
        name=name,
    )


def _free_invariants(graph):
    """Makes loops look at what they do not change, in place of carrying it along.

    A runtime prepares, and can quantise, only weights that are constants.
    """
    for node in graph.node:
        for attribute in node.attribute:
            if not attribute.HasField("g"):
                continue
            body = attribute.g
            _free_invariants(body)
            if node.op_type == "Loop":
                _free_invariants_of(node, body, graph)


def _free_invariants_of(loop, body, graph):
    sources = {x.output[0]: x.input[0] for x in body.node if x.op_type == "Identity"}
    outside, inside = {}, {}
    # Inputs begin with the iteration and the condition, outputs with the condition.
    for i in reversed(range(len(loop.input) - 2)):
        given = body.input[i + 2].name
        found = body.output[i + 1].name
        while found in sources:
            found = sources[found]
        if found == given:
            inside[given] = outside[loop.output[i]] = loop.input[i + 2]
            for names, place in (
                (loop.input, i + 2),
                (loop.output, i),
                (body.input, i + 2),
                (body.output, i + 1),
            ):
                del names[place]
    _rename(body, inside)
    _rename(graph, outside)


def _rename(graph, names):
    """Replaces names of tensors that a graph and its loops read."""
    for one in _graphs(graph):
        for node in one.node:
            node.input[:] = [names.get(name, name) for name in node.input]
        for output in one.output:
            output.name = names.get(output.name, output.name)


def _check_operations(model, what):
    """Raises `ValueError` if a graph has operations that ONNX lacks."""
    import onnx

    nodes = (node for graph in _graphs(model.graph) for node in graph.node)
    lacks = {node.op_type for node in nodes if not onnx.defs.has(node.op_type)}
    if lacks:
        raise ValueError(
            f"A {what} with these options cannot become an ONNX file. Received: "
            f"operations that ONNX lacks, {', '.join(sorted(lacks))}"
        )


def _graphs(graph):
    """Returns a graph and those of its loops, at any depth."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _halved(model):
    """Returns a model whose large weights are float16, and are cast when it loads."""
    from onnx import TensorProto, helper, numpy_helper

    for graph in _graphs(model.graph):
        for tensor in graph.initializer:
            if tensor.data_type == TensorProto.FLOAT and _is_large(tensor):
                name = tensor.name
                half = numpy_helper.to_array(tensor).astype(np.float16)
                tensor.CopyFrom(numpy_helper.from_array(half, f"{name}_half"))
                cast = helper.make_node(
                    "Cast", [tensor.name], [name], to=TensorProto.FLOAT
                )
                graph.node.insert(0, cast)
    return model


def _quantised(model):
    """Returns a model whose matrices are int8, with a scale for each column."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        logging.disable(logging.WARNING)  # Advice to who has made the graph.
        try:
            quantize_dynamic(
                model,
                path,
                weight_type=QuantType.QInt8,
                per_channel=True,
                # Processors without VNNI add two products of 8 bits in 16.
                reduce_range=True,
                extra_options={"EnableSubgraph": True},
            )
        finally:
            logging.disable(logging.NOTSET)
        return onnx.load(path)


def _share_weights(model, file, places):
    """Moves the large tensors of a model into a file; `places` has those of others."""
    from onnx.external_data_helper import set_external_data

    for tensor in (one for graph in _graphs(model.graph) for one in graph.initializer):
        if not _is_large(tensor):
            continue
        content = tensor.raw_data
        key = hashlib.sha256(content).digest()
        if key not in places:
            file.write(bytes(-file.tell() % _PAGE))
            places[key] = file.tell()
            file.write(content)
        set_external_data(tensor, Path(file.name).name, places[key], len(content))
        tensor.ClearField("raw_data")


def _is_large(tensor):
    return len(tensor.raw_data) >= _SHARED
