"""Keeps TensorFlow's own lines away: import this module before Keras.

TensorFlow prints lines about CUDA, oneDNN and the processor's instructions when it is
loaded, before anything in Python can tell it not to. `TF_CPP_MIN_LOG_LEVEL` hides those
of later, such as the ends of iterators, and the level of its logger what it says of
functions traced anew and, in notebooks, of files. Importing this module sets both, the
variable only where the environment does not, and loads Keras, with its backend, while
nothing can reach standard error; an exception still does. Where Keras is already loaded
it changes little. On JAX and PyTorch TensorFlow is loaded later, if at all, and then
prints.

    import keras_transformer.quiet

    import keras

The rest of the package does nothing of the kind: what a program prints is its own
affair.
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
