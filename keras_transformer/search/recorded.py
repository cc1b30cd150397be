"""Steps of decoding on PyTorch, recorded as plain operations and replayed.

Keras' layers take several times as long as the arithmetic of a step. A record is the
same operations without them, so the results are the same to the bit.
"""

from __future__ import annotations

import functools

import keras

from keras_transformer.models.own_model import Recomputing

_MOST_KEPT = 24  # records of a model


def records_steps(model) -> bool:
    """Whether PyTorch records the steps of a model."""
    # The inputs of a user's model grow with the output.
    return keras.backend.backend() == "torch" and not isinstance(model, Recomputing)


def step_maker(model):
    """Returns a function of `decoding_weights` that returns a step with them."""
    if records_steps(model):
        return RecordedStep(model).start
    return lambda weights: functools.partial(model.decode_step, weights=weights)


class RecordedStep:
    """`model.decode_step`, recorded for each shape of its inputs.

    A step that looks at a value, as `int(tensor)` does, is called instead.
    """

    def __init__(self, model):
        self._model = model
        self._records = {}

    def start(self, weights):
        """Returns `decode_step` with weights that stay the same."""
        variables = self._model.variables
        plain = functools.partial(self._model.decode_step, weights=weights)
        given = [variable.value for variable in variables]
        given += keras.tree.flatten(weights)
        sizes = _sizes(given)

        def step(ids, parents, state):
            inputs = ids, parents, state
            tensors = keras.tree.flatten(inputs)
            key = sizes, _sizes(tensors)
            if key not in self._records:
                self._records[key] = self._recorded(given, weights, inputs)
                if len(self._records) > _MOST_KEPT:
                    del self._records[next(iter(self._records))]
            record, outputs = self._records[key]
            if record is None:
                return plain(*inputs)
            return keras.tree.pack_sequence_as(outputs, record(given, tensors))

        return step

    def _recorded(self, given, weights, inputs):
        """Returns the record of a step and its nested outputs; `None` if it fails."""
        from torch.fx.experimental.proxy_tensor import make_fx

        variables = self._model.variables
        outputs = []

        def run(given, tensors):
            values = given[: len(variables)]
            rest = given[len(variables) :]
            own = keras.tree.pack_sequence_as(weights, rest)
            with keras.StatelessScope(zip(variables, values, strict=True)):
                found = self._model.decode_step(
                    *keras.tree.pack_sequence_as(inputs, tensors), weights=own
                )
            outputs.append(found)
            return keras.tree.flatten(found)

        try:
            record = make_fx(run)(given, keras.tree.flatten(inputs))
        except RuntimeError:  # PyTorch's error about a value
            return None, None
        record.graph.eliminate_dead_code()
        record.recompile()
        return record, outputs[0]


def _sizes(tensors):
    return tuple((x.shape, x.dtype) for x in tensors)
