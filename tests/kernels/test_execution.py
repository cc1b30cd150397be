"""What the questions about a TensorFlow graph answer; sizes."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_transformer.kernels.execution import shape_of


def test_known_sizes_are_integers():
    assert tuple(shape_of(keras.ops.ones((2, 3)))) == (2, 3)


@pytest.mark.parametrize("jit_compile", (False, True))
def test_sizes_left_open_are_scalars_of_a_graph(jit_compile):
    tf = pytest.importorskip("tensorflow")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("only TensorFlow leaves sizes of a graph open")
    seen = []

    @tf.function(
        input_signature=[tf.TensorSpec((None, 3, None))], jit_compile=jit_compile
    )
    def sizes(tensor):
        seen.extend(shape_of(tensor))
        return tf.stack(shape_of(tensor))

    assert sizes(np.zeros((5, 3, 7), "float32")).numpy().tolist() == [5, 3, 7]
    assert seen[1] == 3
    assert [tuple(size.shape) for size in (seen[0], seen[2])] == [(), ()]
