"""Silences TensorFlow's start-up messages: import this module before Keras.

TensorFlow prints lines about CUDA, oneDNN and the processor before Python can stop it.
This module loads Keras and its backend with standard error hidden, and sets
`TF_CPP_MIN_LOG_LEVEL`, unless the environment does, and TensorFlow's logger to errors.
On JAX and PyTorch TensorFlow is loaded later, if at all, and prints.

    import keras_transformer.quiet

    import keras
"""

import os

from keras_transformer.terminal import native_messages_hidden, replace_closed_streams

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
replace_closed_streams()
with native_messages_hidden():
    import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
