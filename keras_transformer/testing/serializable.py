"""Whether a layer comes back from its configuration and from a file as it was."""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer.testing.inputs import as_array, input_arrays
from keras_transformer.testing.outputs import check_close, name_of, output_of
from keras_transformer.types import TensorLike


def assert_serializable(
    layer: keras.layers.Layer,
    inputs: TensorLike | tuple[TensorLike, ...] | None = None,
    *,
    shape: Sequence[Any] | None = None,
    ids_below: int | None = None,
    seed: int = 0,
    tolerance: float = 1e-6,
    aliases: Sequence[str] = (),
    **call_options: Any,
) -> None:
    """Checks that a layer or model comes back as it was.

    Its configuration must hold every argument of its constructor and make the same
    layer again, also from JSON. Made again with the same weights it must give the same
    outputs; and so must a `.keras` file of it, after every weight has been changed, so
    that a weight that is not saved shows. The layer itself stays as it is.

    Args:
        layer: A layer or a model, with weights or without.
        inputs: As in `assert_causal`; a `keras.Model` takes several as one tuple.
        shape: As in `assert_causal`.
        ids_below: As in `assert_causal`.
        seed: Of the random inputs and weights.
        tolerance: As in `assert_causal`.
        aliases: Arguments of the constructor that the configuration need not hold.
        **call_options: Keyword arguments of the call.

    Raises:
        AssertionError: If it does not come back, or comes back another.

    Example:
        >>> assert_serializable(EncoderLayer(num_heads=2, d_ff=16))
    """
    rng = np.random.default_rng(seed)
    arrays = input_arrays(inputs, shape, ids_below, 0, rng)
    expected = output_of(layer, arrays, call_options)
    _check_arguments(layer, aliases)
    again = _made_again(layer)
    actual = output_of(again, arrays, call_options)
    shapes = [[tuple(w.shape) for w in x.weights] for x in (again, layer)]
    if shapes[0] != shapes[1]:
        raise AssertionError(
            f"{name_of(layer)} made again from its configuration has other weights: "
            f"{shapes[0]} in place of {shapes[1]}"
        )
    again.set_weights(layer.get_weights())
    actual = output_of(again, arrays, call_options)
    check_close(
        actual,
        expected,
        tolerance,
        f"{name_of(layer)} made again from its configuration, with the same weights, "
        "has another output",
    )
    _change_weights(again, rng)
    expected = output_of(again, arrays, call_options)
    check_close(
        _output_of_file(again, arrays, call_options),
        expected,
        tolerance,
        f"{name_of(layer)} loaded from a .keras file has another output",
    )


def _check_arguments(layer, aliases):
    """Raises if the configuration lacks an argument of the constructor."""
    parameters = inspect.signature(type(layer).__init__).parameters.values()
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    names = [p.name for p in parameters if p.kind in kinds][1:]
    config = layer.get_config()
    lacking = [name for name in names if name not in (*config, *aliases)]
    if lacking:
        raise AssertionError(
            f"`get_config` of {name_of(layer)} must hold every argument of the "
            f"constructor. It lacks: {', '.join(lacking)}"
        )


def _made_again(layer):
    """Returns the layer that Keras makes of the layer's configuration."""
    try:
        written = json.dumps(keras.saving.serialize_keras_object(layer))
        again = keras.saving.deserialize_keras_object(json.loads(written))
    except Exception as error:
        raise AssertionError(
            f"{name_of(layer)} cannot be made again from its configuration, as its "
            "class must be, with keras.saving.register_keras_serializable: "
            f"{type(error).__name__}: {error}"
        ) from error
    if type(again) is not type(layer):
        raise AssertionError(
            f"{name_of(layer)} is made again as a {name_of(again)}: two classes are "
            "registered under one name"
        )
    before, after = (_plain(x.get_config()) for x in (layer, again))
    others = [name for name in before if after.get(name) != before[name]]
    if others:
        raise AssertionError(
            f"{name_of(layer)} made again has another configuration: "
            + ", ".join(f"{n} {after.get(n)!r} for {before[n]!r}" for n in others)
        )
    return again


def _plain(config):
    return json.loads(json.dumps(keras.saving.serialize_keras_object(config)))


def _change_weights(layer, rng):
    """Moves every weight of floats, so that none has its first value."""
    for weight in layer.weights:
        if "float" in weight.dtype:
            values = as_array(weight.value)
            moved = values + 0.1 * rng.standard_normal(values.shape)
            weight.assign(moved.astype("float32"))


def _output_of_file(layer, arrays, options):
    """Saves a layer, in a model if it is none, loads it and returns its output."""
    is_model = isinstance(layer, keras.Model)
    model = layer
    if not is_model:
        symbolic = [keras.Input(x.shape[1:], dtype=str(x.dtype)) for x in arrays]
        model = keras.Model(symbolic, layer(*symbolic, **options))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        try:
            model.save(path)
            loaded = keras.saving.load_model(path)
        except Exception as error:
            raise AssertionError(
                f"{name_of(layer)} cannot be saved in a .keras file and loaded: "
                f"{type(error).__name__}: {error}"
            ) from error
    if is_model:
        return output_of(loaded, arrays, options)
    return as_array(keras.tree.flatten(loaded(arrays))[0])
