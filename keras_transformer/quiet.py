"""Keeps TensorFlow's own lines away: import this module before Keras.

TensorFlow prints lines about CUDA, oneDNN and the processor's instructions when it is
loaded, before anything in Python can tell it not to. Importing this module loads Keras
and its backend while nothing but an exception can reach standard error, and sets
`TF_CPP_MIN_LOG_LEVEL`, where the environment does not, and TensorFlow's logger to
errors. On JAX and PyTorch TensorFlow is loaded later, if at all, and then prints.

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
