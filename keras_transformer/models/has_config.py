"""Layers and models that are made from one object of options."""

from __future__ import annotations


class HasConfig:
    """Mixin before a Keras layer or model whose argument `config` is a `config_class`.

    It keeps the options as `config`, and its own configuration holds them.

    Raises:
        TypeError: If `config` is not a `config_class`.
    """

    config_class = None

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(config, self.config_class):
            raise TypeError(
                f"`config` must be of the class `{self.config_class.__name__}`. "
                f"Received: {config!r}"
            )
        self.config = config

    def get_config(self):
        return super().get_config() | {"config": self.config.to_dict()}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        options = cls.config_class.from_dict(config["config"])
        return cls(**(config | {"config": options}))
