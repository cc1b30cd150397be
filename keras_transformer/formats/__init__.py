"""What is written for other programs, and read from them.

`exporters` lists the writers, such as `saved_model`, `litert` and `onnx`, and
`importers` the readers, `marian` and `hugging_face`. Read `saved_model.py` first. Each
name is loaded when it is asked for: `lite_translator` needs neither Keras nor
TensorFlow.
"""

from keras_transformer.extras import attach_stub

# The names are those of __init__.pyi.
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
