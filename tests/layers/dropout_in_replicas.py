"""A program that writes what two replicas drop, alone and within an attention.

Run by a test as `python -m tests.layers.dropout_in_replicas OUT`, because the devices
of a process are fixed when TensorFlow starts.
"""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

SHAPE = (64, 128)


def main(path):
    cpu = tf.config.list_physical_devices("CPU")[0]
    device = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(cpu, [device] * 2)
    from keras_transformer.kernels.few_passes import of_this_replica
    from keras_transformer.layers import Dropout, MultiHeadAttention

    def attended():
        attention = MultiHeadAttention(1, 4, dropout=0.5)
        attention.attention_dropout = Dropout(0.5, seed=7)
        # Each position attends to itself alone, so what is dropped shows as a zero.
        inputs = tf.ones((*SHAPE, 1, 4))
        inputs = tf.reshape(inputs, (-1, 1, 4))
        attention.build(inputs.shape)
        return lambda: attention(inputs, training=True)[:, 0, :1]

    def marked():
        layer = Dropout(0.5, seed=7)

        def drop():
            state = layer.seed_generator.state.value
            state.assign(of_this_replica(state))
            return layer(tf.ones(SHAPE), training=True)

        return drop

    def alone():
        layer = Dropout(0.5, seed=7)
        return lambda: layer(tf.ones(SHAPE), training=True)

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    results = {"one": alone()()}
    for name, make in (("alone", alone), ("marked", marked), ("attention", attended)):
        for mode, traced in (("eager", lambda call: call), ("graph", tf.function)):
            with strategy.scope():
                drop = make()
            outputs = strategy.run(traced(drop))
            outputs = strategy.experimental_local_results(outputs)
            results[f"{name}, {mode}"] = np.stack(outputs)
    np.savez(path, **results)


if __name__ == "__main__":
    main(sys.argv[1])
