"""Who decodes: each contender's module, its variant and its environment."""

from __future__ import annotations

from worker import MACHINE, Contender

_TENSORFLOW = {"KERAS_BACKEND": "tensorflow"}
_JAX = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}

CONTENDERS = {
    "ours-float32": Contender("peers.ours", "float32"),
    "ours-bfloat16": Contender("peers.ours", "bfloat16"),
    "ours-litert-float32": Contender("peers.lite", "litert-none"),
    "ours-litert-int8": Contender("peers.lite", "litert-int8"),
    "ours-onnx-float32": Contender("peers.lite", "onnx-none"),
    "ours-onnx-int8": Contender("peers.lite", "onnx-int8"),
    "ctranslate2-float32": Contender("peers.ctranslate2_peer", "float32"),
    "ctranslate2-int8": Contender("peers.ctranslate2_peer", "int8"),
    "marian-float32": Contender("peers.marian_peer", "float32"),
    "marian-bfloat16": Contender("peers.marian_peer", "bfloat16"),
    "kerashub-tensorflow": Contender("peers.kerashub_peer", "graph", _TENSORFLOW),
    "kerashub-tensorflow-xla": Contender("peers.kerashub_peer", "xla", _TENSORFLOW),
    "kerashub-jax": Contender("peers.kerashub_peer", "xla", _JAX),
    MACHINE: Contender("peers.machine", "peaks"),
}
KERASHUB = tuple(name for name in CONTENDERS if name.startswith("kerashub-"))
OURS = tuple(name for name in CONTENDERS if name.startswith("ours-"))
