"""The writers of translators by the name of their format. Needs TensorFlow.

Each takes a `Translator`, a path and its own options.
"""

from keras_transformer.formats.ctranslate2 import export_ctranslate2
from keras_transformer.formats.litert import export_litert
from keras_transformer.formats.onnx import export_onnx
from keras_transformer.formats.safetensors import export_safetensors
from keras_transformer.formats.saved_model import export_saved_model
from keras_transformer.formats.web import export_web

EXPORTERS = {
    "saved_model": export_saved_model,
    "litert": export_litert,
    "onnx": export_onnx,
    "web": export_web,
    "ctranslate2": export_ctranslate2,
    "safetensors": export_safetensors,
}
