"""The SavedModel against the live translator, and what it is made of."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer import ExportedTranslator, Translator
from keras_transformer.apps.serving.served_model import ServedModel
from keras_transformer.formats.versions import latest_version
from keras_transformer.search.strings import SIGNATURES, Signature
from tests import tiny_run


def test_graphs_are_made_once_and_a_server_sees_no_half_written_version(
    run_directory, tmp_path, monkeypatch
):
    """And a failure, after the warm-up requests were made, leaves nothing."""
    seen, traced, fails = [], [], [True, False]

    def call(self, search, *inputs):
        traced.append(self)
        return {"text": inputs[0]}

    def save(module, directory, **_):
        if fails.pop(0):
            (Path(directory) / "README.md").mkdir(parents=True)  # The card is none.
        seen.extend(path.name for path in (tmp_path / "name").iterdir())

    monkeypatch.setattr(Signature, "call", call)
    monkeypatch.setattr(tf.saved_model, "save", save)
    with pytest.raises(IsADirectoryError):
        tiny_run.translator().export(tmp_path / "name")
    assert traced == list(SIGNATURES.values())
    assert len(seen) == 1 and not seen[0].isdecimal()
    assert not list((tmp_path / "name").iterdir())
    # What comes of a run is beside it, for the page of `serve` and for programs.
    card = "keras_transformer.formats.saved_model.model_card"
    monkeypatch.setattr(card, lambda *_: "")  # The real one translates.
    more = {"run": run_directory, "languages": ("en", "de")}
    more = tiny_run.translator().export(tmp_path / "name", **more) / "assets.extra"
    page = json.loads((more / "page.json").read_text("utf-8"))
    examples = [source for source, _ in tiny_run.VALID[:3]]
    assert page == {"languages": ["en", "de"], "examples": examples}
    data = json.loads((more / "training_data.json").read_text("utf-8"))
    assert data["training"]["files"] == ["train.tsv"]


def test_an_existing_version_is_never_overwritten(saved_model):
    before = sorted((f, f.stat().st_mtime_ns) for f in saved_model.rglob("*"))
    with pytest.raises(FileExistsError, match="tiny/1 exists, and is never"):
        tiny_run.translator().export(saved_model)
    assert sorted((f, f.stat().st_mtime_ns) for f in saved_model.rglob("*")) == before


def test_the_latest_version_is_the_largest_whole_number(tmp_path):
    for name in ("2", "10", "9", "011", ".12.partial", "thirteen"):
        (tmp_path / name).mkdir()
        if name != "011":  # An empty directory is no version.
            (tmp_path / name / "saved_model.pb").touch()
    assert latest_version(tmp_path) == tmp_path / "10"
    assert latest_version(tmp_path / "9") == tmp_path / "9"
    (tmp_path / "011" / "saved_model.pb").touch()
    assert latest_version(tmp_path) == tmp_path / "011"


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_without_a_saved_model_the_error_names_the_path(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match=f"{name} holds no SavedModel"):
        ExportedTranslator(tmp_path / name)


def test_where_tensorflow_sees_a_pattern_nothing_is_written_and_loading_says_why(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tf.saved_model, "save", lambda *_, **__: pytest.fail("saved"))
    with pytest.raises(ValueError, match=r"must have none of \[ \] \* \? and"):
        tiny_run.translator().export(tmp_path / "a[1]" / "tiny")
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    tf.saved_model.save(tf.Module(), str(tmp_path / "1"))
    moved = shutil.move(tmp_path / "1", tmp_path / "a[1]" / "1")
    for load in (ExportedTranslator, ServedModel):
        with pytest.raises(FileNotFoundError, match="TensorFlow sees a pattern: move"):
            load(moved)
    (tmp_path / "1").symlink_to(moved)
    assert ServedModel(tmp_path / "1").version == 1


def test_a_server_has_its_own_limit_of_doubt(saved_model):
    """The export's is 0.5, and nothing is above it."""
    served = ServedModel(saved_model, 0.25).signatures["nbest"]
    texts = {"text": np.array([b"the good bear runs.", b"old"], object)}
    outputs = served(texts)
    served._doubt_above = None
    as_exported = served(texts)["doubts"]
    assert outputs["doubt"].shape == (2, 3)
    assert len(set(outputs["doubt"].flat)) > 1
    for place in np.ndindex(2, 3):
        before = set(as_exported[place].split())
        after = set(outputs["doubts"][place].split())
        assert b"score" not in before
        is_above = outputs["doubt"][place] > 0.25
        assert after == before | ({b"score"} if is_above else set())


# What a stock TensorFlow Serving 2.20 can run.

# The operations that exports use, all of TensorFlow's core. It is a list and not a
# question to the registry of this process, which knows what tensorflow-text and Keras
# added. A name joins it once it is known to be in TensorFlow 2.20.
CORE = set(
    """
    Abs Add AddV2 All Any ArgMax ArgMin Assert AssignVariableOp BatchMatMulV2
    BatchMatMulV3 BiasAdd Bitcast BitwiseOr BroadcastTo Cast ConcatV2 Const Cos Cumprod
    Cumsum DenseBincount DisableCopyOnRead Empty Equal Exp ExpandDims Fill FloorDiv
    GatherNd GatherV2 Greater GreaterEqual Identity If InplaceUpdate IsFinite LeftShift
    Less LessEqual Log LogicalAnd LogicalNot LogicalOr MatMul Max Maximum Mean
    MergeV2Checkpoints Min Minimum Mul Neg NoOp NotEqual Pack Pad PadV2 Placeholder Pow
    Prod RaggedGather RaggedRange RaggedTensorFromVariant RaggedTensorToTensor
    RaggedTensorToVariant Range Rank ReadVariableOp RealDiv ReduceJoin Relu Reshape
    RestoreV2 ReverseV2 Roll Rsqrt SaveV2 Select SelectV2 Shape ShardedFilename Sigmoid
    Sin Size Softmax Split SplitV Square SquaredDifference Squeeze
    StatefulPartitionedCall StatelessRandomUniformFullIntV2 StatelessRandomUniformV2
    StatelessWhile
    StaticRegexFullMatch StaticRegexReplace StopGradient StridedSlice StringJoin
    StringLength StringLower StringSplitV2 StringStrip StringToHashBucketFast Sub Substr
    Sum Tanh TensorListFromTensor TensorListGetItem TensorListReserve TensorListSetItem
    TensorListStack TensorScatterAdd TensorScatterUpdate Tile TopKV2 Transpose
    UnicodeDecode UnicodeEncode UnicodeTranscode Unpack UnsortedSegmentJoin
    UnsortedSegmentMin UnsortedSegmentSum VarHandleOp Where While ZerosLike
    """.split()
)
# Operations of tensorflow-text: TensorFlow Serving's model server links all of its
# `ops_lib` (SUPPORTED_TENSORFLOW_OPS in tensorflow_serving/model_servers/BUILD), which
# has these in `sentencepiece_tokenizer_cc` (tensorflow_text/BUILD). Only what the
# export needs is allowed.
TEXT = {"SentencepieceDetokenizeOp", "SentencepieceOp", "SentencepieceTokenizeOp"}
# What the tokenizers of KerasHub need besides, of TensorFlow's core and of
# tensorflow-text: its wheels 2.12.1 and 2.20.0 register these, and its main branch has
# them in `ops_lib`. Which version the image of TensorFlow Serving 2.20 links is not
# known here.
HUB_CORE = set(
    """
    ArgMin DecodeRaw Fingerprint HashTableV2 LookupTableExportV2 LookupTableFindV2
    LookupTableImportV2 LookupTableInsertV2 MutableHashTableV2 PartitionedCall
    StringSplit
    """.split()
)
HUB_TEXT = {
    "CaseFoldUTF8", "FastWordpieceTokenizeWithOffsets", "RegexSplitWithOffsets",
    "TFText>FastWordpieceDetokenize",
}  # fmt: skip

# "/home/x", "C:\x" and "file://x"; devices such as "/device:CPU:0" and "/" alone, a
# piece of a vocabulary, are no paths.
ABSOLUTE = re.compile(rb"\s*(/(?!device:|job:|cpu:|gpu:|$)|[A-Za-z]:\\|[a-z]+://)")


def strings_of(attribute):
    """All strings of an attribute of a node."""
    yield attribute.s
    yield from attribute.list.s
    yield from attribute.tensor.string_val
    for tensor in attribute.list.tensor:
        yield from tensor.string_val


def violations_of_node(node, allowed):
    if node.op not in allowed:
        yield f"the operation {node.op} is not allowed"
    for name, attribute in node.attr.items():
        for value in strings_of(attribute):
            if ABSOLUTE.match(value):
                yield f"{name} is the path {value[:80]!r}"


def violations(path, more=frozenset()):
    """What a stock TensorFlow Serving would not run, or not find, in a SavedModel.

    `more` are operations that it may have besides.
    """
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
                for violation in violations_of_node(
                    node, CORE | TEXT | functions | more
                ):
                    found.append(f"{place}/{node.name}: {violation}")
        for asset in meta_graph.asset_file_def:
            if ABSOLUTE.match(asset.filename.encode("utf-8")):
                found.append(f"the asset {asset.filename} has an absolute path")
    return found


def test_the_export_holds_only_what_tensorflow_serving_has(saved_model):
    assert violations(saved_model) == []
    # The tokenizer is in the graph, not in a file.
    assert not list((saved_model / "assets").iterdir())
    # No path of the machine that exported is inside.
    here = str(Path(__file__).resolve().parents[2]).encode()
    inside = [here, str(saved_model.parent).encode(), sys.prefix.encode()]
    for file in saved_model.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        assert not [place for place in inside if place in content], file


@pytest.mark.slow
def test_so_does_an_export_in_bfloat16_with_every_option_of_the_search(tmp_path):
    config = tiny_run.CONFIG.decoding.replace(
        beam_size=3,
        no_repeat_ngram_size=2,
        min_output_length=2,
        max_output_length=9,
        top_k=20,
        top_p=0.9,
    )
    translator = Translator(tiny_run.model(), tiny_run.tokenizers(), config)
    path = translator.export(tmp_path / "tiny" / "1", dtype="bfloat16")
    assert violations(path) == []


def test_the_allowed_core_operations_are_of_tensorflow_itself():
    # Generated from TensorFlow's own registry, before any other library is loaded.
    core = set(dir(tf.raw_ops))
    assert not (CORE | HUB_CORE) - core
    assert not (TEXT | HUB_TEXT) & core


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


def test_a_path_is_told_from_a_name():
    paths = b"/usr/share/words", b"C:\\words", b"gs://bucket/words"
    names = (b"/device:CPU:0", b"weights/1/.ATTRIBUTES/VARIABLE_VALUE", b"</s>",
             b"x (cond/RaggedNRows/sub:0) = ")  # fmt: skip
    assert all(map(ABSOLUTE.match, paths)) and not any(map(ABSOLUTE.match, names))
