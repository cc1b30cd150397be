"""Writers of translators for other programs. Needs TensorFlow.

Each takes a `Translator`, a path and its own options. `translator` imports this folder,
so none can import that class.
"""

from keras_transformer.export.ctranslate2 import export_ctranslate2
from keras_transformer.export.litert import export_litert, export_litert_language_model
from keras_transformer.export.safetensors import export_safetensors
from keras_transformer.export.saved_model import ExportedTranslator, export_saved_model
from keras_transformer.export.web import export_web
from keras_transformer.files import latest_version

FORMATS = {
    "saved_model": export_saved_model,
    "litert": export_litert,
    "web": export_web,
    "ctranslate2": export_ctranslate2,
    "safetensors": export_safetensors,
}

__all__ = [
    "FORMATS",
    "ExportedTranslator",
    "export_ctranslate2",
    "export_litert",
    "export_litert_language_model",
    "export_safetensors",
    "export_saved_model",
    "export_web",
    "latest_version",
]
