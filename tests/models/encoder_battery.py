"""What every model that is no translator must be able to do, as a class to inherit."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.testing import assert_serializable
from tests.layers.reference_weights import assert_close, randomise


def flat(inputs):
    """The arrays of a model's inputs, one or a tuple of them."""
    return keras.tree.flatten(inputs)


class EncoderModelBattery:
    """Subclass it in a model's test file and define what follows."""

    # The class under test.
    model_class = None
    # Inputs of `call`, an array or a tuple of them.
    inputs = None
    # Targets of `loss`, and the loss.
    targets = None
    loss = None

    def model(self, **options):
        """Returns a new model; `options` go to its constructor."""
        raise NotImplementedError

    def random_model(self, rng):
        return randomise(self.model(), rng)

    def output(self, model, **options):
        return ops.convert_to_numpy(model(self.inputs, **options))

    def test_registered_under_the_package_name(self):
        name = f"keras_transformer>{self.model_class.__name__}"
        assert keras.saving.get_registered_name(self.model_class) == name

    def test_weights_exist_from_the_start(self):
        model = self.model()
        count = len(model.weights)
        model(self.inputs)
        assert len(model.weights) == count > 0

    def test_config_round_trip(self):
        model = self.model(name="named", dtype="mixed_bfloat16")
        again = self.model_class.from_config(model.get_config())
        assert again.name == "named"
        assert again.dtype_policy.name == "mixed_bfloat16"

    def test_config_and_file_give_the_same_model(self, rng):
        inputs = tuple(keras.tree.flatten(self.inputs))
        assert_serializable(self.random_model(rng), inputs)

    def test_compute_output_shape_agrees_with_the_output(self):
        model = self.model()
        shapes = keras.tree.map_structure(lambda x: tuple(x.shape), self.inputs)
        assert model.compute_output_shape(shapes) == self.output(model).shape

    def test_dropout_acts_in_training_only(self, rng):
        model = self.random_model(rng)
        silent = self.output(model, training=False)
        np.testing.assert_array_equal(self.output(model), silent)
        assert np.abs(self.output(model, training=True) - silent).max() > 1e-3

    def test_mixed_precision_stays_close_and_keeps_float32_weights(self, rng):
        exact, mixed = self.random_model(rng), self.model(dtype="mixed_bfloat16")
        mixed.set_weights(exact.get_weights())
        assert {weight.dtype for weight in mixed.weights} == {"float32"}
        output = mixed(self.inputs)
        assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
        assert_close(ops.cast(output, "float32"), self.output(exact), tolerance=0.3)

    def test_gradient_reaches_every_weight(self, rng):
        model = self.random_model(rng)
        before = [ops.convert_to_numpy(weight).copy() for weight in model.weights]
        model.compile(optimizer=keras.optimizers.SGD(1.0), loss=self.loss)
        model.train_on_batch(self.inputs, self.targets)
        for weight, old in zip(model.weights, before, strict=True):
            moved = np.abs(ops.convert_to_numpy(weight) - old).max()
            assert moved > 1e-7, weight.path

    def test_fit_learns_the_batch_by_heart(self, rng):
        model = self.model()
        model.compile(keras.optimizers.Adam(0.01), self.loss, jit_compile=False)
        batch = self.inputs, self.targets
        rows = len(flat(self.targets)[0])

        def fit(data):
            history = model.fit(*data, rows, verbose=0, shuffle=False).history
            return history["loss"][0]

        first = fit(batch)
        fit(keras.tree.map_structure(lambda x: np.concatenate([x] * 60), batch))
        last = fit(batch)
        assert last < 0.5 * first

    @pytest.mark.skipif(
        keras.backend.backend() != "tensorflow", reason="a SavedModel of TensorFlow"
    )
    def test_exported_model_equals_the_live_one_on_any_batch(self, rng, tmp_path):
        import tensorflow as tf

        model = self.random_model(rng)
        model.export(tmp_path / "1", verbose=False)
        exported = tf.saved_model.load(tmp_path / "1")
        for rows in (slice(0, 1), slice(None)):
            inputs = keras.tree.map_structure(lambda x, r=rows: x[r], self.inputs)
            assert_close(exported.serve(inputs), ops.convert_to_numpy(model(inputs)))
