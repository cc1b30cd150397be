"""The feed-forward network is two convolutions of kernel size 1 (section 3.3).

    python examples/why/convolutions.py

The convolutions get the network's own weights. The table has the largest difference of
the outputs, in float32, as a share of the largest output.
"""

import keras_transformer.quiet

import keras
import numpy as np
import report

import keras_transformer as kt


def as_convolutions(network, width):
    """Returns two convolutions of size 1 with the weights of a `FeedForward`."""
    sizes = ((network.d_ff, network.activation), (width, None))
    layers = [keras.layers.Conv1D(n, 1, activation=f) for n, f in sizes]
    convolutions = keras.Sequential([keras.Input((None, width)), *layers])
    kernels_and_biases = map(keras.ops.convert_to_numpy, network.weights)
    # A convolution's kernel has one more axis, of its one position.
    shapes = [weight.shape for weight in convolutions.weights]
    weights = zip(kernels_and_biases, shapes, strict=True)
    convolutions.set_weights([weight.reshape(shape) for weight, shape in weights])
    return convolutions


def difference(width, d_ff, length=50, rows=4):
    """Returns the largest difference of the outputs, as a share of the largest one."""
    keras.utils.set_random_seed(4)
    network = kt.FeedForward(d_ff, bias_initializer="random_normal")
    inputs = np.random.default_rng(1).standard_normal((rows, length, width), "float32")
    outputs = keras.ops.convert_to_numpy(network(inputs))
    others = keras.ops.convert_to_numpy(as_convolutions(network, width)(inputs))
    return float(np.abs(outputs - others).max() / np.abs(outputs).max())


def main(arguments=None):
    options = report.parser(__doc__, widths=(64, 512)).parse_args(arguments)
    found = {width: difference(width, 4 * width) for width in options.widths}
    heading = ["width", "d_ff", "largest difference"]
    report.show(heading, [[width, 4 * width, row] for width, row in found.items()])
    return found


if __name__ == "__main__":
    main()
