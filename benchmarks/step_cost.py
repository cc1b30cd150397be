"""Memory and arithmetic of a training step on a GPU, by XLA's report, without a GPU.

The step of `Transformer` in mixed bfloat16 is lowered and compiled on JAX for the
processor, with the chunks of the loss that a GPU has, from the shapes of its inputs
alone; nothing is computed. The peak is XLA's `memory_analysis`: arguments (weights and
moments), temporaries, and outputs that are not donated arguments. XLA for processors
keeps most bfloat16 activations in float32, so it is a bound from above. "held" is what
the forward pass leaves for the backward pass, each tensor in the type that it has.

The operations are its `cost_analysis`, beside the products counted by hand: those that
a mask or the causal half of self-attention then hides are counted in both.

    python benchmarks/step_cost.py
    python benchmarks/step_cost.py --sizes tiny --tokens 1000 --vocabulary-size 500
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

import floor
from figures import markdown
from worker import ROOT
from workload import Size

GPUS = (24, 80)  # gigabytes
_PASSES = 3  # forward, gradient of the inputs, gradient of the weights
_WHOLE = 2**50  # bytes of a chunk of the loss that holds all tokens


class Batch(NamedTuple):
    """The shape of a batch, source and target alike, nothing in it padding."""

    rows: int
    length: int  # tokens


class Count(NamedTuple):
    """Floating-point operations of the matrix products of a step."""

    weights: int  # of projections and feed-forward networks
    attention: int  # scores and sums, every query with every key
    logits: int
    hidden: int  # of `attention`, what the causal mask then hides


def by_hand(size: Size, batch: Batch) -> Count:
    """Counts the products of a step.

    A product takes 2 operations for each weight and token, in each of three passes;
    attention takes 4 D for each query and key, in each layer's three attentions.

    Args:
        size: The Transformer's sizes.
        batch: The shape of the batch.
    """
    tokens, pairs = batch.rows * batch.length, batch.rows * batch.length**2
    logits = size.d_model * size.vocabulary_size
    weights = floor.encoder_weights(size) + floor.decoder_weights(size) - logits
    each = _PASSES * 4 * size.d_model * size.num_layers
    return Count(
        weights=_PASSES * 2 * tokens * weights,
        attention=each * 3 * pairs,
        logits=_PASSES * 2 * tokens * logits,
        hidden=each * (pairs - tokens) // 2,
    )


def make_model(name: str, vocabulary_size: int, layers: int | None, dtype: str):
    """Returns the compiled model of a preset and its `Size`."""
    import keras
    import numpy as np

    from keras_transformer import (
        Adam,
        MaskedCrossentropy,
        Transformer,
        TransformerConfig,
    )

    keras.config.set_dtype_policy(dtype)
    options = dict.fromkeys(
        ("source_vocabulary_size", "target_vocabulary_size"), vocabulary_size
    )
    if layers is not None:
        options |= dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), layers)
    config = TransformerConfig.preset(name, **options)
    model = Transformer(config, dtype=keras.config.dtype_policy())
    model((np.ones((1, 2), "int32"),) * 2)
    model.compile(Adam(), MaskedCrossentropy(0.1), jit_compile=True)
    model.optimizer.build(model.trainable_variables)
    return model, Size(
        config.num_encoder_layers,
        config.d_model,
        config.d_ff,
        config.num_heads,
        vocabulary_size,
    )


@contextlib.contextmanager
def gpu_chunks(chunk_bytes: int | None = None) -> Iterator[None]:
    """Lets the loss have the chunks of a GPU, or of as many bytes."""
    from keras_transformer.nn.kernels import crossentropy

    before = crossentropy.has_gpu, crossentropy.GPU_CHUNK_BYTES
    crossentropy.has_gpu = lambda: True
    crossentropy.GPU_CHUNK_BYTES = chunk_bytes or before[1]
    try:
        yield
    finally:
        crossentropy.has_gpu, crossentropy.GPU_CHUNK_BYTES = before


def compiled_step(model, batch: Batch, chunk_bytes: int | None = None):
    """Compiles the training step as Keras does, for a batch of zeros that is not made.

    Args:
        model: A compiled model.
        batch: The shape of the batch.
        chunk_bytes: Largest logits of a chunk of the loss; default those of a GPU.
    """
    import jax

    def shapes(variables):
        return [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]

    state = tuple(
        map(
            shapes,
            (
                model.trainable_variables,
                model.non_trainable_variables,
                model.optimizer.variables,
                model.metrics_variables,
            ),
        )
    )
    ids = jax.ShapeDtypeStruct(batch, "int32")
    with gpu_chunks(chunk_bytes):
        step = jax.jit(model.train_step, donate_argnums=0)
        return step.lower(state, ((ids, ids), ids)).compile()


def held_bytes(model, batch: Batch) -> int:
    """What the forward pass hands to the backward pass, each tensor in its own type.

    A GPU's compiler computes some of it again instead.
    """
    import jax
    import keras

    from keras_transformer.models.batch_step import loss_and_scores

    variables = [*model.trainable_variables, *model.non_trainable_variables]
    count = len(model.trainable_variables)
    values = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]
    ids = jax.ShapeDtypeStruct(batch, "int32")

    def backward(values, ids):
        def loss(weights):
            now = zip(variables, [*weights, *values[count:]], strict=True)
            with keras.StatelessScope(state_mapping=now):
                return loss_and_scores(model, (ids, ids), ids, None, training=True)[0]

        return jax.tree.leaves(jax.vjp(loss, values[:count])[1])

    with gpu_chunks():
        program = jax.make_jaxpr(backward)(values, ids).jaxpr
    held = {id(variable): variable.aval for variable in program.outvars}
    for variable in program.invars:
        held.pop(id(variable), None)
    return sum(aval.size * aval.dtype.itemsize for aval in held.values())


def memory_row(name: str, step, held: int) -> list[str]:
    """Gigabytes of a compiled step, and the share of each GPU that they take."""
    report = step.memory_analysis()
    sizes = (
        report.argument_size_in_bytes,
        report.temp_size_in_bytes,
        report.output_size_in_bytes - report.alias_size_in_bytes,
        report.alias_size_in_bytes,
    )
    peak = sum(sizes[:3]) / 1e9
    shares = (f"{peak / gigabytes:.0%}" for gigabytes in GPUS)
    cells = (f"{size / 1e9:.2f}" for size in (*sizes, held))
    return [name, *cells, f"{peak:.1f}", *shares]


def cost_row(name: str, step, count: Count) -> list[str]:
    """Teraflops of a compiled step, by XLA and by hand."""
    (report,) = as_list(step.cost_analysis())
    products = count.weights + count.attention + count.logits
    counts = report["flops"], products, *count
    share = report["flops"] / products - 1
    return [name, *(f"{flops / 1e12:.2f}" for flops in counts), f"{share:.1%}"]


def as_list(report) -> list:
    """JAX gave one report a device once; it gives one now."""
    return report if isinstance(report, list) else [report]


def main() -> int:
    """Reads the command line and prints both tables."""
    options = _parser().parse_args()
    os.environ["KERAS_BACKEND"] = "jax"
    sys.path.insert(1, str(ROOT))
    batch = Batch(max(1, options.tokens // options.length), options.length)
    memory, cost = [], []
    for name in options.sizes:
        print(f"{name}: compiling", file=sys.stderr, flush=True)
        model, size = make_model(
            name, options.vocabulary_size, options.layers, options.dtype
        )
        held = held_bytes(model, batch)
        memory.append(memory_row(name, compiled_step(model, batch), held))
        # XLA counts the body of a loop once: all tokens in one chunk.
        step = compiled_step(model, batch, _WHOLE)
        cost.append(cost_row(name, step, by_hand(size, batch)))
    shares = (f"of {gigabytes} GB" for gigabytes in GPUS)
    heading = ["GB", "arguments", "temporaries", "outputs", "donated", "held"]
    heading += ["peak", *shares]
    print(markdown(heading, memory), end="\n\n")
    heading = ["TFLOP", "XLA", "by hand", *Count._fields, "XLA counts more"]
    print(markdown(heading, cost))
    return 0


def _parser():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        default=["base", "big"],
        metavar="PRESET",
        help="presets of TransformerConfig (default base big)",
    )
    parser.add_argument(
        "--tokens", type=int, default=25_000, help="target tokens (default 25000)"
    )
    parser.add_argument(
        "--length", type=int, default=64, help="tokens of a sentence (default 64)"
    )
    parser.add_argument("--vocabulary-size", type=int, default=37_000)
    parser.add_argument("--layers", type=int, help="default the preset's")
    parser.add_argument(
        "--dtype", default="mixed_bfloat16", help="Keras policy (default %(default)s)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
