"""The public names, for type checkers; `__init__.py` loads each when asked for."""

from .attention_maps import (
    attention as attention,
    sentence_attention as sentence_attention,
)
from .curves import training_curves as training_curves
