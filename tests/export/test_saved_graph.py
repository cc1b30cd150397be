"""What a saved graph may hold, so that a stock TensorFlow Serving 2.20 runs it."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer import Translator
from tests import tiny_run

# The operations that exports use, all of TensorFlow's core. It is a list and not a
# question to the registry of this process, which knows what tensorflow-text and Keras
# added. A name joins it once it is known to be in TensorFlow 2.20.
CORE = set(
    """
    AddV2 All Any ArgMax Assert AssignVariableOp BatchMatMulV2 BatchMatMulV3 BiasAdd
    Bitcast BitwiseOr BroadcastTo Cast ConcatV2 Const Cos Cumsum DisableCopyOnRead
    Empty Equal Exp ExpandDims Fill FloorDiv GatherV2 Greater GreaterEqual Identity If
    InplaceUpdate IsFinite LeftShift Less LessEqual Log LogicalAnd LogicalNot
    LogicalOr MatMul Max Maximum Mean MergeV2Checkpoints Min Minimum Mul Neg NoOp
    NotEqual
    Pack Pad PadV2 Placeholder Pow Prod RaggedGather RaggedRange RaggedTensorToTensor
    Range ReadVariableOp RealDiv Relu Reshape RestoreV2 ReverseV2 Roll Rsqrt SaveV2
    Select SelectV2 Shape ShardedFilename Sigmoid Sin Size Softmax Split SplitV
    SquaredDifference Squeeze StatefulPartitionedCall StatelessRandomUniformFullIntV2
    StatelessRandomUniformV2 StatelessWhile StaticRegexFullMatch StopGradient
    StridedSlice StringJoin Sub Sum Tanh TensorListFromTensor TensorListGetItem
    TensorListReserve TensorListSetItem TensorListStack TensorScatterAdd
    TensorScatterUpdate Tile TopKV2 Transpose Unpack VarHandleOp Where While ZerosLike
    """.split()
)
# Operations of tensorflow-text: TensorFlow Serving's model server links all of its
# `ops_lib` (SUPPORTED_TENSORFLOW_OPS in tensorflow_serving/model_servers/BUILD), which
# has these in `sentencepiece_tokenizer_cc` (tensorflow_text/BUILD). Only what the
# export needs is allowed.
TEXT = {"SentencepieceDetokenizeOp", "SentencepieceOp", "SentencepieceTokenizeOp"}

# "/home/x", "C:\x" and "file://x"; devices such as "/device:CPU:0" are no paths.
ABSOLUTE = re.compile(rb"\s*(/(?!device:|job:|cpu:|gpu:)|[A-Za-z]:\\|[a-z]+://)")


def strings_of(attribute):
    """All strings of an attribute of a node."""
    yield attribute.s
    yield from attribute.list.s
    yield from attribute.tensor.string_val
    for tensor in attribute.list.tensor:
        yield from tensor.string_val


def violations_of_node(node, functions):
    if node.op not in CORE | TEXT | functions:
        yield f"the operation {node.op} is not allowed"
    for name, attribute in node.attr.items():
        for value in strings_of(attribute):
            if ABSOLUTE.match(value):
                yield f"{name} is the path {value[:80]!r}"


def violations(path):
    """What a stock TensorFlow Serving would not run, or not find, in a SavedModel."""
    message = saved_model_pb2.SavedModel()
    message.ParseFromString((path / "saved_model.pb").read_bytes())
    found = []
    for meta_graph in message.meta_graphs:
        library = meta_graph.graph_def.library.function
        functions = {function.signature.name for function in library}
        places = {"graph": meta_graph.graph_def.node}
        for function in library:
            places[function.signature.name] = function.node_def
        for place, nodes in places.items():
            for node in nodes:
                for violation in violations_of_node(node, functions):
                    found.append(f"{place}/{node.name}: {violation}")
        for asset in meta_graph.asset_file_def:
            if ABSOLUTE.match(asset.filename.encode("utf-8")):
                found.append(f"the asset {asset.filename} has an absolute path")
    return found


def test_the_export_holds_only_what_tensorflow_serving_has(tmp_path_factory):
    path = tiny_run.saved_model(tmp_path_factory)
    assert violations(path) == []
    # The tokenizer is in the graph, not in a file.
    assert not list((path / "assets").iterdir())


@pytest.mark.slow
def test_so_does_an_export_in_bfloat16_with_every_option_of_the_search(tmp_path):
    config = tiny_run.CONFIG.decoding.replace(
        beam_size=3, no_repeat_ngram_size=2, min_output_length=2, max_output_length=9,
        top_k=20, top_p=0.9,
    )  # fmt: skip
    translator = Translator(tiny_run.model(), tiny_run.tokenizers(), config)
    path = translator.export(tmp_path / "tiny" / "1", dtype="bfloat16")
    assert violations(path) == []


def test_the_allowed_core_operations_are_of_tensorflow_itself():
    # Generated from TensorFlow's own registry, before any other library is loaded.
    core = set(dir(tf.raw_ops))
    assert not CORE - core
    assert not TEXT & core


def in_a_branch(x):
    return tf.cond(
        tf.size(x) > 0, lambda: tf.py_function(np.sort, [x], tf.string), lambda: x
    )


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (in_a_branch, "/EagerPyFunc: the operation EagerPyFunc is not allowed"),
        (tensorflow_text.case_fold_utf8, "operation CaseFoldUTF8 is not allowed"),
        (lambda x: tf.strings.join([x, "/usr/words"]), "is the path b'/usr/words'"),
    ],
)
def test_what_a_server_lacks_is_found(tmp_path, function, words):
    spec = tf.TensorSpec([None], tf.string, name="x")
    signature = tf.function(
        lambda x: {"y": function(x)}, input_signature=[spec], autograph=False
    )
    tf.saved_model.save(tf.Module(), str(tmp_path), {"serving_default": signature})
    assert any(words in violation for violation in violations(tmp_path))


@pytest.mark.parametrize(
    ("value", "is_path"),
    [
        (b"/usr/share/words", True),
        (b"C:\\words", True),
        (b"gs://bucket/words", True),
        (b"/device:CPU:0", False),
        (b"weights/1/.ATTRIBUTES/VARIABLE_VALUE", False),
        (b"</s>", False),
        (b"x (cond/RaggedNRows/sub:0) = ", False),
    ],
)
def test_a_path_is_told_from_a_name(value, is_path):
    assert bool(ABSOLUTE.match(value)) == is_path
