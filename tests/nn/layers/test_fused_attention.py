"""The fused kernels: the same as the general line, and where layers use them."""

import itertools
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.nn.layers import (
    MultiHeadAttention,
    attention,
)
from keras_transformer.nn.layers import attention as module
from keras_transformer.nn.layers.attention import (
    dot_product_attention,
    fused_attention,
    obstacle,
    recorded_attention,
)
from tests.examples.test_examples import load
from tests.nn.kernels.ways import with_gradients
from tests.nn.layers.reference_weights import assert_close, randomise
from tests.nn.layers.test_multi_head_attention import (
    ARGUMENTS,
    CALLS,
    CROSS,
    QUERY,
    shapes_of,
)
from tests.nn.layers.test_multi_head_attention import mask as random_mask

BACKEND = keras.backend.backend()
B, H, T, S, K = 2, 6, 5, 7, 8


def heads(rng, groups=H, value_dim=K, dtype="float32"):
    """Queries, scaled, keys and values."""
    shapes = (B, H, T, K), (B, groups, S, K), (B, groups, S, value_dim)
    queries, *others = (rng.standard_normal(s).astype("float32") for s in shapes)
    tensors = map(ops.convert_to_tensor, (queries * K**-0.5, *others))
    return [ops.cast(tensor, dtype) for tensor in tensors]


def some_mask(rng, *shape):
    """A random mask; the last query of the last sentence has nothing to attend to."""
    mask = rng.random(shape) < 0.6
    mask[-1, ..., -1, :] = False
    return mask


MASKS = {
    "none": None, "of keys": (B, 1, 1, S), "of queries and keys": (B, 1, T, S),
    "of all sentences": (1, 1, T, S), "of heads": (B, H, T, S),
    "of queries": (B, 1, T, 1),
}  # fmt: skip
BIASES = {"none": None, "of heads": (H, T, S), "of keys": (1, H, 1, S)}


# Each mask with each bias, and the numbers of heads in turn.
GROUPS = itertools.cycle((H, 3, 1, 3))
CASES = [(*case, next(GROUPS)) for case in itertools.product(MASKS, BIASES)]


@pytest.mark.parametrize("mask, bias, groups", CASES)
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_output_and_gradient_are_those_of_the_general_line(
    rng, dtype, mask, bias, groups
):
    mask = None if MASKS[mask] is None else some_mask(rng, *MASKS[mask])
    if BIASES[bias] is None:
        bias = None
    else:
        bias = rng.standard_normal(BIASES[bias]).astype("float32")
    tensors = heads(rng, groups, dtype=dtype)
    factors = rng.standard_normal((B, H, T, K)).astype("float32")
    mask, bias, factors = (
        x if x is None else ops.convert_to_tensor(x) for x in (mask, bias, factors)
    )

    def run(attend, dtype):
        def total(*tensors):
            outputs = ops.cast(attend(*tensors, mask, bias), "float32")
            return ops.sum(outputs * factors), outputs

        results = with_gradients(total, *(ops.cast(x, dtype) for x in tensors))
        return [ops.convert_to_numpy(ops.cast(x, "float32")) for x in results[1:]]

    expected = run(lambda *tensors: dot_product_attention(*tensors)[0], "float32")
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    for one, other in zip(run(fused_attention, dtype), expected, strict=True):
        assert np.linalg.norm(one - other) <= tolerance * np.linalg.norm(other)


@pytest.mark.parametrize("dtype", ("float32", "bfloat16", "float16"))
def test_query_with_nothing_to_attend_to_gets_zeros_and_no_gradient(rng, dtype):
    mask = ops.convert_to_tensor(np.zeros((1, 1, 1, S), bool))

    def total(*tensors):
        outputs = fused_attention(*tensors, mask)
        return ops.sum(ops.cast(outputs, "float32")), outputs

    _, outputs, *gradients = with_gradients(total, *heads(rng, dtype=dtype))
    for tensor in (outputs, *gradients):
        assert not ops.convert_to_numpy(ops.cast(tensor, "float32")).any()
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype


def shaped(dtype="bfloat16", lengths=(6, 8), widths=(8, 8)):
    """Queries, keys and values of which only the type and the shape matter."""
    (targets, sources), (width, value_width) = lengths, widths
    shapes = (H, targets, width), (3, sources, width), (3, sources, value_width)
    return [keras.KerasTensor((B, *shape), dtype) for shape in shapes]


MASK = np.ones((B, 1, 1, 8), bool)
LONG, JUST, MIXED = (512, 600), (128, 128), (128, 127)
GPU_LESS = "JAX has none without a GPU"
TOO_OLD = "needs compute capability 8.0, not "
# Backend, whether it has a GPU, what is asked for, and words of the obstacle, if any.
OBSTACLES = (
    ("tensorflow", False, {}, "the backend tensorflow has none"),
    ("tensorflow", True, {"must": True}, "the backend tensorflow has none"),
    ("jax", False, {}, GPU_LESS),
    ("jax", False, {"must": True}, GPU_LESS),
    ("jax", True, {}, None),
    ("jax", True, {"dtype": "float16", "mask": MASK}, None),
    ("jax", True, {"lengths": (5, 7)}, None),
    ("jax", True, {"lengths": (5, 8), "mask": MASK}, "even lengths only, not (5, 8)"),
    ("jax", True, {"lengths": (6, 7), "mask": MASK}, "even lengths only, not (6, 7)"),
    ("jax", True, {"dtype": "float32"}, "float16 and bfloat16, not float32"),
    ("jax", True, {"widths": (8, 16)}, "of one width"),
    ("jax", True, {"widths": (12, 12)}, "a multiple of 8"),
    ("jax", True, {"widths": (136, 136)}, "up to 128"),
    ("jax", True, {"distribution": "some"}, "not been tried on several devices"),
    *(("jax", True, {"capability": old}, f"{TOO_OLD}{old!r}")
      for old in ("7.5", "gfx90a", "")),
    ("torch", False, {"dtype": "float32", "lengths": JUST}, None),
    ("torch", False, {"dtype": "bfloat16", "lengths": LONG}, None),
    ("torch", False, {"dtype": "float32", "lengths": MIXED},
     "from 128 positions on in float32, not (128, 127)"),
    ("torch", False, {"dtype": "bfloat16", "lengths": (128, 512)},
     "from 512 positions on in bfloat16"),
    ("torch", False, {"dtype": "float64", "lengths": LONG},
     "not been measured on a processor in float64"),
    ("torch", False, {"dtype": "float32", "lengths": MIXED, "must": True}, None),
    ("torch", False, {"dtype": "float64", "must": True}, None),
    ("torch", True, {}, None),
    ("torch", True, {"dtype": "float16", "mask": MASK}, None),
    ("torch", True, {"dtype": "float32", "widths": (4, 12)}, None),
    ("torch", True, {"dtype": "bfloat16", "widths": (16, 8)}, None),
    ("torch", True, {"dtype": "float64"}, "not for float64"),
    ("torch", True, {"dtype": "float32", "widths": (6, 6)}, "multiples of 4 wide"),
    ("torch", True, {"dtype": "bfloat16", "widths": (8, 12)}, "multiples of 8 wide"),
)  # fmt: skip


@pytest.mark.parametrize("backend, gpu, asked, words", OBSTACLES)
def test_obstacles(monkeypatch, backend, gpu, asked, words):
    asked = {"capability": "8.0", "distribution": None} | asked
    device = SimpleNamespace(compute_capability=asked.pop("capability"))
    distribution = asked.pop("distribution")
    given = {name: asked.pop(name) for name in ("mask", "must") if name in asked}
    jax = SimpleNamespace(devices=lambda: [device])
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setattr(keras.distribution, "distribution", lambda: distribution)
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    monkeypatch.setattr(module, "has_gpu", lambda: gpu)
    found = obstacle(*shaped(**asked), **given)
    assert found is None if words is None else words in found


@pytest.mark.skipif(BACKEND != "jax", reason="cuDNN's kernel is JAX's")
@pytest.mark.parametrize("mask", (None, MASK, np.ones((1, 1, 6, 8), bool)))
def test_a_gpu_gets_a_program_that_calls_cudnn(monkeypatch, mask):
    """Forward and backward: nothing is left to the general line by JAX or by Keras."""
    import jax
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    device = SimpleNamespace(compute_capability="8.0", platform="gpu")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91200)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda least: least == "8.0")
    monkeypatch.setattr(cudnn, "is_cuda_compute_capability_equal", lambda _: False)
    mask = None if mask is None else jax.numpy.asarray(mask)

    def total(*tensors):
        return fused_attention(*tensors, mask).astype("float32").sum()

    gradient = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
    tensors = [ops.zeros(x.shape, x.dtype) for x in shaped()]
    program = gradient.trace(*tensors).lower(lowering_platforms=("cuda",)).as_text()
    for direction in ("", "Backward"):
        kind = "ScaleBiasSoftmax" if mask is not None else "Softmax"
        assert f"__cudnn$fmha{kind}{direction}" in program
    assert "stablehlo.dot_general" not in program


# Layers, with the kernel of each backend made to run.

# Calls that ask for no weights; JAX takes values of the keys' width alone.
FUSED = [
    name
    for name, (options, _, arguments) in CALLS.items()
    if "return_attention_scores" not in arguments
    and not (BACKEND == "jax" and "value_dim" in options)
]


@pytest.fixture
def kernel(monkeypatch):
    """Lets the backend use its kernel here too; whether each call says it must."""
    calls = []

    def counted(*tensors_and_must):
        *tensors, must = tensors_and_must
        calls.append(must)
        return fused_attention(*tensors)

    monkeypatch.setattr(attention, "HAS_KERNELS", True)
    monkeypatch.setattr(attention, "obstacle", lambda *_: None)
    monkeypatch.setattr(attention, "fused_attention", counted)
    return calls


def two_layers(rng, *shapes, **options):
    """A layer that chooses by itself, and one that never does, of equal weights."""
    options = ARGUMENTS | options
    layers = [MultiHeadAttention(**options, flash_attention=f) for f in (None, False)]
    for layer in layers:
        layer.build(*shapes)
    randomise(layers[0], rng)
    layers[1].set_weights(layers[0].get_weights())
    return layers


@pytest.mark.one_case("every mask at once")
@pytest.mark.parametrize("name", FUSED)
def test_every_call_gives_the_same_by_a_kernel(rng, kernel, name):
    options, inputs, arguments = CALLS[name]
    fused, general = two_layers(rng, *shapes_of(inputs, arguments), **options)
    expected = ops.convert_to_numpy(general(*inputs, **arguments))
    assert not kernel
    assert_close(fused(*inputs, **arguments), expected)
    assert len(kernel) == 1


@pytest.mark.parametrize("positions", ("rotary", "alibi"))
@pytest.mark.parametrize("heads", (4, 2, 1))
def test_positions_and_shared_heads(rng, kernel, positions, heads):
    options = {"num_heads": 4, "positions": positions, "num_key_value_heads": heads}
    fused, general = two_layers(rng, QUERY.shape, **options)
    allowed = random_mask(2, 5)
    arguments = {"mask": allowed, "use_causal_mask": True}
    expected = ops.convert_to_numpy(general(QUERY, **arguments))
    assert_close(fused(QUERY, **arguments), expected)
    assert len(kernel) == 1


def test_weights_are_never_a_kernels(rng, kernel):
    """They are asked for, recorded or dropped; a step of training without is fused."""
    layer, _ = two_layers(rng, *shapes_of(CROSS, {}), dropout=0.5)
    _, weights = layer(*CROSS, return_attention_scores=True)
    assert_close(np.sum(ops.convert_to_numpy(weights), axis=-1), np.ones((2, 3, 5)))
    with recorded_attention() as record:
        layer(*CROSS)
    assert len(record[layer]) == 1
    layer(*CROSS, training=True)
    assert not kernel
    layer(*CROSS, training=False)
    layer, _ = two_layers(rng, *shapes_of(CROSS, {}))
    layer(*CROSS, training=True)
    assert len(kernel) == 2


def test_other_functions_than_softmax_and_blocks_are_not_fused(kernel):
    load("relu_attention").ReluAttention(**ARGUMENTS)(QUERY)
    load("local_attention").LocalAttention(**ARGUMENTS, window=2)(QUERY)
    assert not kernel


def test_keras_switches_it_off_for_layers_that_choose(kernel):
    keras.config.disable_flash_attention()
    try:
        MultiHeadAttention(**ARGUMENTS)(QUERY)
        assert not kernel
        MultiHeadAttention(**ARGUMENTS, flash_attention=True)(QUERY)
    finally:
        keras.config.enable_flash_attention()
    assert kernel == [True]


REFUSED = "`flash_attention` must be None or False"


@pytest.mark.skipif(BACKEND == "torch", reason="PyTorch has a kernel everywhere")
def test_true_is_refused_where_there_is_no_kernel(monkeypatch):
    monkeypatch.setattr(module, "has_gpu", lambda: False)
    layer = MultiHeadAttention(**ARGUMENTS, flash_attention=True)
    assert MultiHeadAttention.from_config(layer.get_config()).flash_attention is True
    with pytest.raises(ValueError, match=f"{REFUSED} .*(has none|without a GPU)"):
        layer(QUERY)


def test_true_is_refused_where_weights_are_wanted(kernel):
    layer = MultiHeadAttention(**ARGUMENTS, flash_attention=True)
    message = f"{REFUSED} .* it returns no attention weights"
    with pytest.raises(ValueError, match=message):
        layer(QUERY, return_attention_scores=True)
    with recorded_attention(), pytest.raises(ValueError, match=message):
        layer(QUERY)
