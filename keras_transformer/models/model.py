"""What the models share: one object of options."""

from __future__ import annotations

from typing import Any, Self


class Configured:
    """Mixin before a Keras layer or model whose argument `config` is a `config_class`.

    It keeps the options as `config`, and its own configuration holds them.

    Raises:
        TypeError: If `config` is not a `config_class`.
    """

    config_class: type

    def __init__(self, config: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(config, self.config_class):
            raise TypeError(
                f"`config` must be of the class `{self.config_class.__name__}`. "
                f"Received: {config!r}"
            )
        self.config = config

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"config": self.config.to_dict()}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        options = cls.config_class.from_dict(config["config"])
        return cls(**(config | {"config": options}))
