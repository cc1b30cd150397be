"""What every layer must be able to do, as one test class to inherit from."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.testing import assert_serializable
from tests.layers.reference_weights import assert_close, randomise

# For the encoder and the decoder layer, which take the same arguments.
RESIDUAL_LAYER_OPTIONS = {
    "num_heads": 3,
    "d_ff": 11,
    "key_dim": 5,
    "value_dim": 7,
    "dropout_rate": 0.5,
    "attention_dropout_rate": 0.4,
    "activation_dropout_rate": 0.3,
    "activation": "gelu",
    "norm_first": True,
    "use_bias": True,
}
# What Keras does with the weights; none is a default.
WEIGHT_OPTIONS = {
    "kernel_initializer": "he_normal",
    "bias_initializer": keras.initializers.serialize(keras.initializers.Constant(2.0)),
    "kernel_regularizer": keras.regularizers.serialize(keras.regularizers.L2(1e-3)),
    "bias_regularizer": keras.regularizers.serialize(keras.regularizers.L1(1e-3)),
    "kernel_constraint": keras.constraints.serialize(keras.constraints.MaxNorm(100)),
    "bias_constraint": keras.constraints.serialize(keras.constraints.MaxNorm(99)),
}
RESIDUAL_LAYER_OPTIONS |= {
    "layer_norm_epsilon": 1e-3,
    "attention": "local",
    "attention_window": 2,
    "num_key_value_heads": 1,
    "positions": "alibi",
    **WEIGHT_OPTIONS,
}
# Of `MultiHeadAttention` and its subclasses.
ATTENTION_OPTIONS = {
    "num_heads": 3,
    "key_dim": 4,
    "value_dim": 7,
    "dropout": 0.5,
    "use_bias": False,
    "output_shape": 23,
    "attention_axes": (1,),
    "sliding_window": 3,
    "flash_attention": False,
    **WEIGHT_OPTIONS,
    "activity_regularizer": keras.regularizers.serialize(keras.regularizers.L2(1e-3)),
    "use_gate": True,
    "seed": 7,
    "num_key_value_heads": 1,
    "positions": "rotary",
}
# With these a bias is tested, and it moves by the loss alone.
EXACT_ATTENTION = {
    "dropout": 0.0,
    "use_bias": True,
    "bias_regularizer": None,
    "activity_regularizer": None,
}
NO_DROPOUT = {
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
    "activation_dropout_rate": 0.0,
}
# A bias then moves by the loss alone.
EXACT_RESIDUAL_LAYER = NO_DROPOUT | {"bias_regularizer": None}
# Of the layers with a table of tokens.
TABLE_OPTIONS = {
    "embeddings_initializer": "he_normal",
    "embeddings_regularizer": WEIGHT_OPTIONS["kernel_regularizer"],
    "embeddings_constraint": WEIGHT_OPTIONS["kernel_constraint"],
}


class LayerBattery:
    """Subclass it in a layer's test file and set the attributes below."""

    # The class under test.
    layer_class = None
    # A value other than the default for every argument of its constructor.
    options = {}
    # Options that the numeric tests replace, such as the dropout rates.
    exact_options = {}
    # Shapes of the inputs, batch first.
    input_shapes = ()
    # Inputs are integers below this number, or floats where it is None.
    integers_below = None
    output_shape = ()
    # Arguments that are other names of some, or have one value alone.
    aliases = ()
    # Weights that have no influence on the output, by the layer's mathematics.
    weights_without_gradient = ()

    def layer(self, **changes):
        return self.layer_class(**(self.options | self.exact_options | changes))

    def inputs(self, rng):
        shapes, limit = self.input_shapes, self.integers_below
        if limit is not None:
            return [rng.integers(limit, size=shape) for shape in shapes]
        return [rng.standard_normal(shape).astype("float32") for shape in shapes]

    def functional_model(self, layer):
        dtype = "float32" if self.integers_below is None else "int32"
        inputs = [
            keras.Input((None, *shape[2:]), dtype=dtype) for shape in self.input_shapes
        ]
        return keras.Model(inputs, layer(*inputs))

    def constructor_arguments(self):
        parameters = inspect.signature(self.layer_class.__init__).parameters.values()
        kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        named = [p for p in parameters if p.kind in kinds]
        return [p for p in named if p.name not in ("self", *self.aliases)]

    def kept(self, layer, name):
        """What the layer keeps of an argument."""
        is_of_weights = name.endswith(("_initializer", "_regularizer", "_constraint"))
        return layer.get_config()[name] if is_of_weights else getattr(layer, name)

    def test_battery_sets_every_argument_to_something_else_than_its_default(self):
        arguments = self.constructor_arguments()
        assert {argument.name for argument in arguments} == set(self.options)
        for argument in arguments:
            assert self.options[argument.name] != argument.default, argument.name

    def test_config_covers_every_constructor_argument(self):
        layer = self.layer_class(**self.options, name="named")
        config = layer.get_config()
        for name, value in self.options.items():
            assert config[name] == value, name
            assert self.kept(layer, name) == (
                keras.activations.get(value) if name == "activation" else value
            )
        assert config["name"] == "named"

    def test_config_and_file_give_the_same_layer(self, rng):
        inputs = tuple(self.inputs(rng))
        for dtype in ("float32", "mixed_bfloat16"):
            layer = self.layer_class(**self.options, dtype=dtype)
            assert_serializable(layer, inputs, aliases=self.aliases)

    def test_registered_under_the_package_name(self):
        name = f"keras_transformer>{self.layer_class.__name__}"
        assert keras.saving.get_registered_name(self.layer_class) == name

    def test_compute_output_shape_agrees_with_the_output(self, rng):
        layer, inputs = self.layer(), self.inputs(rng)
        assert tuple(layer(*inputs).shape) == self.output_shape
        assert layer.compute_output_shape(*self.input_shapes) == self.output_shape

    def test_mixed_precision_computes_in_bfloat16_and_keeps_float32_weights(self, rng):
        exact, mixed = self.layer(), self.layer(dtype="mixed_bfloat16")
        inputs = self.inputs(rng)
        exact(*inputs)
        randomise(exact, rng)
        mixed(*inputs)
        mixed.set_weights(exact.get_weights())
        output = mixed(*inputs)
        assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
        assert {weight.dtype for weight in mixed.weights} <= {"float32"}
        for part in vars(mixed).values():
            if isinstance(part, keras.layers.Layer):
                assert part.compute_dtype == "bfloat16", part.path
        # bfloat16 keeps 8 bits.
        expected = ops.convert_to_numpy(exact(*inputs))
        assert_close(ops.cast(output, "float32"), expected, tolerance=0.1)

    def test_gradient_reaches_every_weight(self, rng):
        model = randomise(self.functional_model(self.layer()), rng)
        before = [ops.convert_to_numpy(weight).copy() for weight in model.weights]
        model.compile(optimizer=keras.optimizers.SGD(1.0), loss="mse")
        target = rng.standard_normal(self.output_shape)
        model.train_on_batch(self.inputs(rng), target)
        for weight, old in zip(model.weights, before, strict=True):
            moved = np.abs(ops.convert_to_numpy(weight) - old).max()
            if weight.name in self.weights_without_gradient:
                assert moved < 1e-6, weight.path
            else:
                assert moved > 1e-6, weight.path

    def test_dropout_acts_in_training_only(self, rng):
        layer = self.layer_class(**self.options)
        inputs = self.inputs(rng)
        silent = ops.convert_to_numpy(layer(*inputs, training=False))
        again = ops.convert_to_numpy(layer(*inputs, training=False))
        noisy = ops.convert_to_numpy(layer(*inputs, training=True))
        np.testing.assert_array_equal(silent, again)
        assert np.abs(noisy - silent).max() > 1e-3

    def test_sizes_must_be_positive_integers(self):
        sizes = [name for name in self.options if type(self.options[name]) is int]
        for name in set(sizes) - {"pad_id", "seed"}:
            for bad in (0, -3, 2.0, True, "2"):
                with pytest.raises(ValueError, match=f"`{name}` must be a positive"):
                    self.layer_class(**(self.options | {name: bad}))

    def test_rates_must_lie_below_one(self):
        rates = [n for n in self.options if n.endswith(("dropout_rate", "dropout"))]
        assert rates
        for name in rates:
            for bad in (1.0, -0.1, "0.1"):
                with pytest.raises(ValueError, match=f"`{name}` must be a number in"):
                    self.layer_class(**(self.options | {name: bad}))


class AttentionBattery(LayerBattery):
    """Of `MultiHeadAttention` and what has its constructor."""

    options = ATTENTION_OPTIONS
    exact_options = EXACT_ATTENTION
    aliases = ("dropout_rate", "output_dim")

    def kept(self, layer, name):
        if name == "output_shape":
            return layer.output_dim
        return super().kept(layer, name)
