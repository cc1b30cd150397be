"""Silences TensorFlow's start-up messages: import this module before Keras.

TensorFlow prints lines about CUDA, oneDNN and the processor before Python can stop it.
After this import only an exception reaches standard error while TensorFlow loads, on
every backend and whenever that is. The module also sets TensorFlow's logger and, unless
the environment does, `TF_CPP_MIN_LOG_LEVEL` to errors.

    import keras_transformer.quiet

    import keras
"""

import importlib.abc
import importlib.util
import os
import sys

from keras_transformer.terminal import native_messages_hidden, replace_closed_streams


class _TensorFlow(importlib.abc.MetaPathFinder):
    """Finds TensorFlow where others do, to load it without its messages."""

    def find_spec(self, name, path=None, target=None):
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec and spec.loader.exec_module

        def load_quietly(module):
            with native_messages_hidden():
                load(module)
            module.get_logger().setLevel("ERROR")

        if spec is not None:
            spec.loader.exec_module = load_quietly
        return spec


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
replace_closed_streams()
if "tensorflow" not in sys.modules:
    sys.meta_path.insert(0, _TensorFlow())
