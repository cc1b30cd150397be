"""Every operation of our graphs has a kernel for a GPU; no GPU is needed to know.

TensorFlow for Linux registers its GPU kernels on every machine. A node without one is
placed on the host, and its inputs and outputs are copied at every step.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import kernels

import keras_transformer as kt
from keras_transformer.nn.layers.dropout import of_this_replica
from keras_transformer.search import Generator

# "DEFAULT" kernels serve every device that has none of its own.
GPU = ("GPU", "DEFAULT")
XLA = ("XLA_GPU_JIT",)

# What belongs on the host: strings, ragged rows of their pieces, batches of sentences,
# the choice among a few hypotheses, files.
HOST = set(
    """
    Add(string) ArgMax(int32) ArgMin(int32) ConcatV2(string) Const(string)
    DenseBincount(int64) Equal(string) Fill(string) GatherNd(string) GatherV2(string)
    MergeV2Checkpoints NotEqual(string) Pack(string) PadV2(int64) RaggedGather(int32)
    RaggedGather(string) RaggedRange(int64) RaggedTensorToTensor(float32)
    RaggedTensorToTensor(int32) RaggedTensorToTensor(int64) RaggedTensorToTensor(string)
    RaggedTensorToVariant(bool) RaggedTensorToVariant(float32)
    RaggedTensorToVariant(string) ReduceJoin Reshape(string) RestoreV2 SaveV2
    Select(string) SelectV2(string) SentencepieceDetokenizeOp SentencepieceOp
    SentencepieceTokenizeOp ShardedFilename Size(string) StaticRegexFullMatch
    StaticRegexReplace StridedSlice(string) StringJoin StringLength StringLower
    StringSplitV2 StringStrip StringToHashBucketFast Substr(int32)
    TensorListFromTensor(variant) TensorListGetItem(variant) TensorListSetItem(variant)
    TensorListStack(variant) TensorScatterUpdate(string) UnicodeDecode UnicodeEncode
    UnicodeTranscode Unpack(string) UnsortedSegmentJoin
    """.split()
)
IDS = tf.TensorSpec([None, None], tf.int32)
LENGTHS = tf.TensorSpec([None], tf.int32)


@functools.cache
def registered(operation):
    return list(kernels.get_registered_kernels_for_op(operation).kernel)


def fits(kernel, node, devices):
    """Whether a registered kernel runs a node on one of the devices."""
    if kernel.device_type not in devices or kernel.label:
        return False
    for constraint in kernel.constraint:
        attribute = node.attr[constraint.name]
        types = [attribute.type] if attribute.type else attribute.list.type
        if not set(types) <= set(constraint.allowed_values.list.type):
            return False
    return True


def without_kernel(graph, devices=GPU):
    """Returns the operations of a `GraphDef` that no kernel runs on the devices."""
    library = graph.library.function
    functions = {function.signature.name for function in library}
    nodes = [*graph.node, *(node for each in library for node in each.node_def)]
    assert len(nodes) > 5
    return {
        named(node)
        for node in nodes
        if node.op not in functions | {"Placeholder"}
        and not any(fits(kernel, node, devices) for kernel in registered(node.op))
    }


def named(node):
    for attribute in ("T", "dtype", "Tparams", "Tvalues", "out_type", "element_dtype"):
        if node.attr[attribute].type:
            return f"{node.op}({tf.dtypes.as_dtype(node.attr[attribute].type).name})"
    return node.op


def graph_of(function, *specs):
    traced = tf.function(function, autograph=False).get_concrete_function(*specs)
    return traced.graph.as_graph_def()


def make(kind="transformer", dtype="float32"):
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2}
    if kind == "language model":
        config = kt.LanguageModelConfig(vocabulary_size=4001, num_layers=1, **sizes)
        return kt.LanguageModel(config, dtype=dtype)
    sizes |= {"source_vocabulary_size": 4001, "target_vocabulary_size": 4001}
    sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
    return kt.Transformer(kt.TransformerConfig(**sizes), dtype=dtype)


def compiled(kind="transformer", dtype="float32", clipnorm=None, **options):
    model = make(kind, dtype)
    rows = np.ones((2, 3), "int32")
    model(rows if kind == "language model" else (rows, rows))
    model.compile(
        kt.Adam(1e-3, global_clipnorm=clipnorm),
        kt.MaskedCrossentropy(0.1),
        metrics=[kt.MaskedAccuracy(), kt.Perplexity()],
        jit_compile=False,
        **options,
    )
    model.optimizer.build(model.trainable_variables)
    data = (IDS if kind == "language model" else (IDS, IDS), IDS)
    return model, data


KINDS = ["transformer", "language model"]
DTYPES = ["float32", "mixed_bfloat16"]


@pytest.mark.one_case("language model-mixed_bfloat16")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_training_and_validation(kind, dtype):
    model, data = compiled(kind, dtype)
    assert without_kernel(graph_of(model.train_step, data)) == set()
    assert without_kernel(graph_of(model.test_step, data)) == set()


def test_accumulation_and_a_clipped_gradient():
    model, data = compiled(gradient_accumulation_steps=2, clipnorm=1.0)
    assert without_kernel(graph_of(model.train_step, data)) == set()


@pytest.mark.one_case("mixed_bfloat16")
@pytest.mark.parametrize("dtype", DTYPES)
def test_training_that_xla_compiles(dtype):
    model, data = compiled(dtype=dtype)
    step = tf.function(model.train_step, jit_compile=True, autograph=False)
    graph = step.get_concrete_function(data).graph.as_graph_def()
    assert without_kernel(graph, XLA) == set()


def test_the_number_of_a_replica_in_a_mask():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    graph = graph_of(
        lambda state: strategy.run(of_this_replica, (state,)),
        tf.TensorSpec([2], tf.uint32),
    )
    assert without_kernel(graph) == set()


@pytest.mark.one_case("4-mixed_bfloat16")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beam", [1, 4])
def test_decoding(beam, dtype):
    generator = Generator(make(dtype=dtype), kt.DecodingConfig(beam_size=beam))
    search = graph_of(lambda *ids: generator.search(*ids).ids, IDS, LENGTHS)
    assert without_kernel(search) == set()
    assert without_kernel(graph_of(generator.score, IDS, IDS)) == set()
    assert without_kernel(graph_of(generator.attention, IDS, IDS)) == set()


def test_sampling():
    numbers = [tf.TensorSpec(shape, tf.float32) for shape in ([None, None], [None])]
    for config in (kt.DecodingConfig(), kt.DecodingConfig(top_k=5, top_p=0.9)):
        generator = Generator(make(), config)
        sample = graph_of(
            lambda *inputs, g=generator: g.sample(*inputs).ids, IDS, LENGTHS, *numbers
        )
        assert without_kernel(sample) == set()


def test_an_export_but_for_its_strings(saved_model):
    message = saved_model_pb2.SavedModel()
    message.ParseFromString((saved_model / "saved_model.pb").read_bytes())
    (meta_graph,) = message.meta_graphs
    assert without_kernel(meta_graph.graph_def) == HOST
