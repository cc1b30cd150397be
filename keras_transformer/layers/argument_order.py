"""The order of an attention layer's inputs, in files of before and now."""

from __future__ import annotations

import keras


class ValueBeforeKey(keras.layers.Layer):
    """Base of the layers that are called with query, value and key, in Keras' order.

    In files of version 0.1.0 the key came before the value. A call with two inputs
    meant both by the second one, as it does now, so it is read as it is.
    """

    _is_of_old_file = False

    def build_from_config(self, config):
        names = list(config.get("shapes_dict", ()))
        own = [name for name in names if name in ("value_shape", "key_shape")]
        if own[:1] == ["key_shape"]:
            self._is_of_old_file = True
            shapes = config["shapes_dict"]
            shapes = {"value_shape": shapes["key_shape"]} | shapes
            config = config | {"shapes_dict": shapes}
        super().build_from_config(config)

    def __call__(self, *args, **kwargs):
        is_symbolic = any(keras.backend.is_keras_tensor(x) for x in args)
        if self._is_of_old_file and len(args) > 2 and is_symbolic:
            raise ValueError(
                f"The layer {self.name!r} was saved by version 0.1.0, where `key` came "
                "before `value`, and is called with both by position: save the model "
                "there with `key=` and `value=`"
            )
        return super().__call__(*args, **kwargs)
