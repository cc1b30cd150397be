"""Sentence pairs, tokenizers and batches. Needs TensorFlow and tensorflow-text.

Each name is loaded when it is asked for: `text.lines` needs neither.
Read `pairs.py` first.
"""

import lazy_loader

# The names are those of __init__.pyi.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
