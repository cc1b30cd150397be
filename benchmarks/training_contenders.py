"""Who trains: each contender's module and variant, and who takes turns with whom."""

from __future__ import annotations

from worker import MACHINE, Contender

DTYPES = ("float32", "bfloat16")
_TENSORFLOW = {"KERAS_BACKEND": "tensorflow"}
# Name, module, ways beside the plain one, environment.
_SYSTEMS = (
    ("ours", "peers.ours_training", ("xla",), _TENSORFLOW),
    ("kerashub", "peers.kerashub_training", ("xla",), _TENSORFLOW),
    ("tutorial", "peers.tutorial_training", ("xla",), _TENSORFLOW),
    ("pytorch", "peers.torch_training", ("compile",), {}),
    ("marian", "peers.marian_training", (), {}),
)


def _of_type(dtype):
    contenders = {}
    for system, module, ways, environment in _SYSTEMS:
        for variant in (dtype, *(f"{dtype}-{way}" for way in ways)):
            contenders[f"{system}-{variant}"] = Contender(module, variant, environment)
    return contenders


BY_DTYPE = {dtype: tuple(_of_type(dtype)) for dtype in DTYPES}
CONTENDERS = {
    **_of_type("float32"),
    **_of_type("bfloat16"),
    MACHINE: Contender("peers.machine", "peaks"),
}
# A process of `base` takes up to 4 GB: few fit into memory at a time, and so each group
# holds one system's peers, and ours and the machine to compare them with.
_RIVALS = (("kerashub",), ("tutorial",), ("pytorch", "marian"))
GROUPS = [
    (*(name for name in names if name.partition("-")[0] in ("ours", *rivals)), MACHINE)
    for names in BY_DTYPE.values()
    for rivals in _RIVALS
]
