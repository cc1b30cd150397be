from .ctranslate2 import export_ctranslate2 as export_ctranslate2
from .exporters import EXPORTERS as EXPORTERS
from .hugging_face import import_hugging_face as import_hugging_face
from .importers import (
    IMPORTERS as IMPORTERS,
    format_of as format_of,
    import_model as import_model,
)
from .lite_translator import LiteTranslator as LiteTranslator
from .litert import (
    export_litert as export_litert,
)
from .load import load as load
from .marian import import_marian as import_marian
from .onnx import export_onnx as export_onnx
from .safetensors import export_safetensors as export_safetensors
from .saved_model import (
    ExportedTranslator as ExportedTranslator,
    export_saved_model as export_saved_model,
)
from .web import export_web as export_web
