"""Saving and loading of the models that are made from one object of options."""

from __future__ import annotations

import keras


class HasConfig:
    """Mixin before a Keras model whose one argument `config` is a `config_class`.

    The model keeps it as `config`, and its own configuration holds the options.
    """

    config_class = None

    def get_config(self):
        return {
            "config": self.config.to_dict(),
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.saving.serialize_keras_object(self.dtype_policy),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        options = dict(config)
        options["config"] = cls.config_class.from_dict(options["config"])
        options["dtype"] = keras.saving.deserialize_keras_object(options["dtype"])
        return cls(**options)
