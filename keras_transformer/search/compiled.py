"""Functions of a model, compiled for inputs of many shapes.

TensorFlow traces one graph for all shapes, and PyTorch compiles nothing. XLA on JAX
compiles each shape: there the inputs get padding up to a few shapes, at most twelve for
batches of up to 32 rows.
"""

from __future__ import annotations

import functools
import math

import keras
import numpy as np
from keras import ops

from keras_transformer.search.tokens import as_rows

_ROWS = (1, 8, 32)
# The first size of columns, and the number of sizes.
_FIRST = 32
_COUNT = 4
MOST_KEPT = 24  # compiled variants of a function


class Compiled:
    """A function of a model, from tensors (B, ...) to nested tensors (B, ...).

    It follows new values of the model's variables. In a graph it is the function.
    """

    def __init__(self, function, model, columns, cut=None, options=None):
        # columns: how long padding may make inputs (B, C), by the number of the input.
        # cut: the input that an axis of the outputs is as long as, by the axis.
        # options: a function of the padded inputs that returns options of `function`.
        self._function = function
        self._model = model
        self._options = options
        self._columns = columns
        self._cut = cut or {}
        self.variant = functools.lru_cache(MOST_KEPT)(self._compile)

    def __call__(self, *inputs, **options):
        variables = self._model.variables  # a walk over all layers
        if is_traced(inputs, variables):
            return self._function(*inputs, **options)
        rows = [as_rows("source", x) for x in inputs]
        inputs = [x if x is None else ops.convert_to_numpy(x) for x in rows]
        pads = keras.backend.backend() == "jax"
        padded = self._padded(inputs) if pads else inputs
        if self._options is not None:
            options |= self._options(*padded)
        compiled = self.variant(_specs(padded), identity_of(variables), **options)
        outputs = compiled(variables, [x for x in padded if x is not None])
        if not pads:
            return outputs
        sizes = {axis: inputs[number].shape[1] for axis, number in self._cut.items()}
        return _without_padding(outputs, {0: len(inputs[0])} | sizes)

    def _compile(self, specs, variables, **options):
        """Returns the compiled function of the variables and the inputs given."""

        def run(*given):
            given = iter(given)
            inputs = [None if spec is None else next(given) for spec in specs]
            return self._function(*inputs, **options)

        return _COMPILERS[keras.backend.backend()](run, self._model, specs)

    def _padded(self, inputs):
        """Returns inputs with padding, up to one of a few shapes."""
        batch = len(inputs[0])
        widths = self._widths_for(inputs)
        more_rows = _rows_for(batch) - batch
        padded = []
        for number, x in enumerate(inputs):
            if number in widths:
                more = [(0, 0)] * x.ndim
                more[1] = (0, widths[number] - x.shape[1])
                x = np.pad(x, more, constant_values=self._model.config.pad_id)
            if np.ndim(x):  # neither `None` nor one number for all rows
                # Copies of a row end when it ends.
                last = x[-1:] if batch else np.zeros((1, *x.shape[1:]), x.dtype)
                x = np.concatenate([x, np.repeat(last, more_rows, axis=0)])
            padded.append(x)
        return padded

    def _widths_for(self, inputs):
        """Returns how many columns padding gives inputs, by their number."""
        widths = {n: inputs[n].shape[1] for n in self._columns if inputs[n] is not None}
        sizes = {n: _column_sizes(self._columns[n]) for n in widths}
        # One place for all: the shapes of two inputs would multiply.
        places = [sum(x < width for x in sizes[n]) for n, width in widths.items()]
        place = min(max(places, default=0), _COUNT - 1)
        return {n: max(width, sizes[n][place]) for n, width in widths.items()}


def identity_of(variables) -> tuple[int, ...]:
    """Returns what tells whether a model has the variables that it had.

    Quantising a model and adding adapters replace some.
    """
    return tuple(map(id, variables))


def as_graph(function, inputs):
    """Returns a `tf.function` of named inputs on TensorFlow, else `function`."""
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    signature = [tf.TensorSpec.from_spec(spec, name) for name, spec in inputs.items()]
    return tf.function(function, input_signature=signature, autograph=False)


def _on_tensorflow(run, model, specs):
    inputs = {
        f"input_{number}": keras.InputSpec(shape=spec[0], dtype=spec[1])
        for number, spec in enumerate(specs)
        if spec is not None
    }
    # TensorFlow warns of one piece of code that many graphs trace; a partial is none.
    graph = as_graph(functools.partial(run), inputs)
    return lambda variables, given: graph(*given)


def _on_jax(run, model, specs):
    import jax

    @jax.jit
    def compiled(values, given):
        pairs = zip(model.variables, values, strict=True)
        with keras.StatelessScope(pairs):
            return run(*given)

    return lambda variables, given: compiled(_values_of(variables), given)


def _on_torch(run, model, specs):
    import torch

    def without_gradients(variables, given):
        with torch.no_grad():
            return run(*[ops.convert_to_tensor(x) for x in given])

    return without_gradients


_COMPILERS = {"tensorflow": _on_tensorflow, "jax": _on_jax, "torch": _on_torch}


def _values_of(variables):
    return [variable.value for variable in variables]


def _rows_for(batch):
    """Returns how many rows padding gives a batch."""
    for rows in _ROWS:
        if batch <= rows:
            return rows
    return 2 ** math.ceil(math.log2(batch))


def _column_sizes(longest):
    """Returns a few numbers of columns, one as many times the last as the others."""
    first = min(_FIRST, longest)
    return [
        round(first * (longest / first) ** (place / (_COUNT - 1)))
        for place in range(_COUNT)
    ]


def _specs(inputs):
    """Returns the shape and type of each input, as far as a compiler needs them."""
    knows_sizes = keras.backend.backend() != "tensorflow"
    specs = []
    for x in inputs:
        if x is not None:
            shape = x.shape
            if not knows_sizes:  # but the features of float sources (B, S, F)
                shape = (None,) * len(shape[:2]) + shape[2:]
            x = shape, x.dtype.name
        specs.append(x)
    return tuple(specs)


def _without_padding(outputs, sizes):
    """Returns nested outputs cut to the sizes of some of their axes."""

    def cut(x):
        places = tuple(slice(sizes.get(axis)) for axis in range(len(x.shape)))
        # In NumPy: JAX would compile a slice of each size.
        return ops.convert_to_tensor(ops.convert_to_numpy(x)[places])

    return keras.tree.map_structure(cut, outputs)


def is_traced(inputs, variables):
    """Whether a graph is being traced that includes the inputs or the variables."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.inside_function()
    if backend == "torch":
        import torch

        return torch.compiler.is_compiling()
    import jax

    tensors = keras.tree.flatten((inputs, _values_of(variables)))
    return any(isinstance(x, jax.core.Tracer) for x in tensors)
