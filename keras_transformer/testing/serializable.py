"""A check that a layer can be saved and loaded."""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
from keras import ops

from keras_transformer.testing import calls
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
    """Checks that a layer or model can be made again from its configuration and file.

    The configuration must hold every argument of the constructor and make the same
    layer, also from JSON. With the same weights the new layer must return the same
    outputs, and so must a `.keras` file of it after every weight was changed.

    Args:
        layer: A layer or a model, with or without weights.
        inputs: See `assert_causal`; a `keras.Model` takes several as one tuple.
        shape: See `assert_causal`.
        ids_below: See `assert_causal`.
        seed: Seed of the random inputs and weights.
        tolerance: See `assert_causal`.
        aliases: Arguments of the constructor that the configuration may leave out.
        **call_options: Keyword arguments of the call.

    Raises:
        AssertionError: If it cannot be made again, or differs.

    Example:
        >>> assert_serializable(EncoderLayer(num_heads=2, d_ff=16))
    """
    rng = calls.generator_of(seed, tolerance)
    name = calls.name_of(layer)
    arrays = calls.input_arrays(inputs, shape, ids_below, rng)
    expected = calls.output_of(layer, arrays, call_options)
    config = layer.get_config()
    signature = inspect.signature(type(layer).__init__)
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    given = [p.name for p in signature.parameters.values() if p.kind in kinds][1:]
    lacking = [one for one in given if one not in (*config, *aliases)]
    if lacking:
        raise AssertionError(
            f"`get_config` of {name} must hold every argument of the constructor. It "
            f"lacks: {', '.join(lacking)}"
        )
    again = _made_again(layer, name)
    calls.output_of(again, arrays, call_options)  # makes its weights
    shapes = [[tuple(w.shape) for w in x.weights] for x in (again, layer)]
    if shapes[0] != shapes[1]:
        raise AssertionError(
            f"{name} made again from its configuration has other weights: "
            f"{shapes[0]} in place of {shapes[1]}"
        )
    again.set_weights(layer.get_weights())
    output = calls.output_of(again, arrays, call_options)
    claim = f"{name} made again, with the same weights, has another output"
    calls.check_close(output, expected, tolerance, claim)
    for weight in again.weights:
        if "float" in weight.dtype:
            values = calls.as_array(weight.value)
            moved = values + 0.1 * rng.standard_normal(values.shape)
            weight.assign(moved.astype("float32"))
    loaded = _output_of_file(again, name, arrays, call_options)
    output = calls.output_of(again, arrays, call_options)
    claim = f"{name} loaded from a .keras file has another output"
    calls.check_close(loaded, output, tolerance, claim)


def _made_again(layer, name):
    """Returns the layer that Keras makes of its configuration."""

    def written(value):
        return json.loads(json.dumps(keras.saving.serialize_keras_object(value)))

    try:
        again = keras.saving.deserialize_keras_object(written(layer))
    except Exception as error:
        raise AssertionError(
            f"{name} cannot be made again from its configuration; register its class "
            "with keras.saving.register_keras_serializable: "
            f"{type(error).__name__}: {error}"
        ) from error
    if type(again) is not type(layer):
        raise AssertionError(
            f"{name} is made again as a {calls.name_of(again)}: two classes are "
            "registered under one name"
        )
    before = written(layer.get_config())
    after = written(again.get_config())
    others = [key for key in before if after.get(key) != before[key]]
    if others:
        raise AssertionError(
            f"{name} made again has another configuration: "
            + ", ".join(f"{n} {after.get(n)!r} for {before[n]!r}" for n in others)
        )
    return again


def _output_of_file(layer, name, arrays, options):
    """Returns the output of a layer, saved and loaded within a model."""
    model = layer
    is_model = isinstance(layer, keras.Model)
    if not is_model:
        # JAX makes int64 int32.
        types = [ops.convert_to_tensor(x).dtype for x in arrays]
        symbolic = [
            keras.Input(x.shape[1:], dtype=keras.backend.standardize_dtype(dtype))
            for x, dtype in zip(arrays, types, strict=True)
        ]
        model = keras.Model(symbolic, layer(*symbolic, **options))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        try:
            model.save(path)
            loaded = keras.saving.load_model(path)
        except Exception as error:
            raise AssertionError(
                f"{name} cannot be saved in a .keras file and loaded: "
                f"{type(error).__name__}: {error}"
            ) from error
    if is_model:
        return calls.output_of(loaded, arrays, options)
    return calls.as_array(keras.tree.flatten(loaded(arrays))[0])
