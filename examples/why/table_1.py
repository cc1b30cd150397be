"""Table 1 of the paper, counted in the layers themselves, at growing lengths n.

    python examples/why/table_1.py

Multiplications and sequential operations are read from the layer's TensorFlow graph:
all of its matrix products, and how many of them wait for one another. The path is how
many layers (of the recurrence: steps) lie between the first input and the last output,
found by changing the first input. Times are in benchmarks/attention_cost.py.
"""

import math
import keras_transformer.quiet

import keras
import numpy as np
import report
import tensorflow as tf

import keras_transformer as kt

KERNEL, PRODUCTS = 3, ("MatMul", "BatchMatMulV2", "Conv2D")
FORMULAS = {
    "self-attention": ("n² d", "1", "1"),
    "recurrence": ("n d²", "n", "n"),
    "convolution": ("k n d²", "1", "n / k"),
    "dilated convolution": ("k n d²", "1", "log_k n"),
}


def make_layer(kind, width, depth=0):
    """Returns layer number `depth` of a stack of layers of a kind."""
    if kind == "self-attention":
        return kt.MultiHeadAttention(4, width // 4, use_bias=False)
    if kind == "recurrence":
        return keras.layers.GRU(width, return_sequences=True, unroll=True)
    rate = KERNEL**depth if kind.startswith("dilated") else 1
    return keras.layers.Conv1D(width, KERNEL, padding="causal", dilation_rate=rate)


def multiplications(operation):
    """Returns the multiplications of a product of known shapes."""
    first, second = (tensor.shape for tensor in operation.inputs[:2])
    output = operation.outputs[0].shape
    if operation.type == "Conv2D":  # Of a filter (1, k, D_in, D_out).
        return output.num_elements() * second.num_elements() // second[-1]
    return first.num_elements() * output[-1]


def count(layer, length, width):
    """Returns the multiplications of a layer and its longest chain of products."""
    call = tf.function(layer).get_concrete_function(tf.TensorSpec((1, length, width)))
    chain, total = {}, 0
    for operation in call.graph.get_operations():  # In an order that can be run.
        before = max((chain.get(x.op.name, 0) for x in operation.inputs), default=0)
        is_product = operation.type in PRODUCTS
        chain[operation.name] = before + is_product
        total += multiplications(operation) if is_product else 0
    return total, max(chain.values())


def path(kind, length, width):
    """Returns after how many layers the first input has reached the last output."""
    if kind == "recurrence":  # One layer is enough, but every step is on the way.
        return count(make_layer(kind, width), length, width)[1]
    keras.utils.set_random_seed(1)
    states = np.random.default_rng(1).standard_normal((2, 1, length, width), "float32")
    states[1, 0, 1:] = states[0, 0, 1:]
    for depth in range(length):
        layer = make_layer(kind, width, depth)
        # One by one: a product may round the rows of a batch in different ways.
        states = np.array([layer(state) for state in states])
        states /= states.std()  # A deep stack would fade away.
        if not np.array_equal(*states[:, 0, -1]):
            return depth + 1
    return math.inf


def main(arguments=None):
    parser = report.parser(__doc__, lengths=(16, 32, 64), width=64)
    options = parser.parse_args(arguments)
    found, width = {}, options.width
    for kind in FORMULAS:
        for length in options.lengths:
            counts = count(make_layer(kind, width), length, width)
            found[kind, length] = (*counts, path(kind, length, width))
    rows = []
    for place, name in enumerate(("multiplications", "sequential", "path")):
        for kind, formulas in FORMULAS.items():
            cells = [found[kind, length][place] for length in options.lengths]
            rows.append([kind, name, formulas[place], *cells])
    report.show(["layer", "figure", "the paper's O()", *options.lengths], rows)
    return found


if __name__ == "__main__":
    main()
