"""Files that are damaged, lie or ask for what is not here: one line, little memory."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from keras_transformer.importers import FORMATS, import_model
from tests.importers import foreign, foreign_others

_MOST_MEMORY = 30e6  # bytes, beyond what a tiny model takes


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A good folder of each kind."""
    folder, rng = tmp_path_factory.mktemp("good"), np.random.default_rng(3)
    foreign.write_student(folder / "student", rng)
    foreign.write_opus(folder / "opus", rng)
    foreign_others.write_hugging_face(folder / "hugging_face", rng)
    foreign_others.write_ctranslate2(folder / "ctranslate2", rng)
    return folder


@pytest.mark.one_case
@pytest.mark.parametrize("kind", ["student", "opus", "hugging_face", "ctranslate2"])
def test_the_files_that_are_made_bad_below_are_good(good, kind):
    assert import_model(good / kind)(["a b"])


class Spoiled:
    """A copy of a good folder, to spoil."""

    def __init__(self, folder):
        self.folder = folder

    def bytes(self, name, change):
        path = self.folder / name
        path.write_bytes(change(path.read_bytes()))

    def json(self, name, **changes):
        path = self.folder / name
        values = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({k: v for k, v in values.items() if v is not ...}))

    def text(self, name, old, new):
        path = self.folder / name
        content = path.read_text("utf-8")
        assert old in content
        path.write_text(content.replace(old, new), "utf-8")

    def student(self, change=None, **options):
        """Writes the student again, with other tensors or options."""
        size = len(foreign.pieces_of(foreign.sentencepiece_model()))
        tensors = foreign.random_tensors(np.random.default_rng(3), sizes=(size, size))
        if change:
            change(tensors)
        options = foreign.marian_options(sizes=(size, size)) | options
        content = foreign.bin_bytes(tensors, options)
        (self.folder / "model.ende.bin").write_bytes(content)

    def npz(self, name, content):
        """Puts another member in the place of one of the .npz."""
        path = self.folder / "opus.npz"
        members = dict(_members(path))
        assert name in members
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, old in (members | {name: content}).items():
                archive.writestr(member, old)

    def safetensors(self, change):
        path = self.folder / "model.safetensors"
        content = path.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        values = bytearray(content[8 + length :])
        change(header, values)
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(values))

    def variables(self, change, aliases=(), **options):
        """Writes model.bin again, with other variables."""
        form = foreign_others.ctranslate2_form()
        rng = np.random.default_rng(3)
        tensors = foreign.random_tensors(rng, form, (14, 11), "none")
        variables = foreign_others.ctranslate2_variables(tensors, form)
        change(variables)
        content = foreign_others.ctranslate2_bytes(variables, aliases, **options)
        (self.folder / "model.bin").write_bytes(content)


def _members(path):
    with zipfile.ZipFile(path) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def put(at, kind, *numbers):
    """A change of bytes: numbers of a kind of `struct` at a place."""

    def change(content):
        packed = struct.pack(f"<{len(numbers)}{kind}", *numbers)
        return content[:at] + packed + content[at + len(packed) :]

    return change


def npy(shape, descr="<f4", data=b""):
    """The bytes of a .npy whose header says what it likes."""
    stream = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + data


def pickled_npy():
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.array([Harm(), None]), allow_pickle=True)
    return stream.getvalue()


class Harm:
    """Raises when it is unpickled."""

    def __reduce__(self):
        return _harm, ()


def _harm():
    raise AssertionError("code of a file was run")


def drop(name):
    return lambda tensors: tensors.pop(name)


def set_to(name, value):
    return lambda tensors: tensors.update({name: np.asarray(value, np.float32)})


def shapes_at(content):
    """Where the shapes of a .bin begin."""
    (count,) = struct.unpack("<Q", content[8:16])
    lengths = struct.unpack(f"<{4 * count}Q", content[16 : 16 + 32 * count])[::4]
    return 16 + 32 * count + sum(lengths)


def values_at(content):
    """Where the numbers of the first item of a .bin begin, a matrix of 12 x 12."""
    (count,) = struct.unpack("<Q", content[8:16])
    axes = struct.unpack(f"<{4 * count}Q", content[16 : 16 + 32 * count])[2::4]
    at = shapes_at(content) + 4 * sum(axes)
    return at + 8 + struct.unpack("<Q", content[at : at + 8])[0]


def yml(text):
    """Puts text in the place of the student's options."""

    def change(content):
        at = content.index(b'{"bert')
        return content[:at] + text + content[at + len(text) :]

    return change


WQ = "model.encoder.layers.0.self_attn.q_proj.weight"
STUDENT = {
    "empty": (lambda s: s.bytes("model.ende.bin", lambda c: b""), "damaged"),
    "half": (
        lambda s: s.bytes("model.ende.bin", lambda c: c[: len(c) // 2]),
        "damaged",
    ),
    "header cut": (lambda s: s.bytes("model.ende.bin", lambda c: c[:20]), "damaged"),
    "version": (lambda s: s.bytes("model.ende.bin", put(0, "Q", 2)), "version 1"),
    "count lies": (lambda s: s.bytes("model.ende.bin", put(8, "Q", 2**60)), "claims"),
    "count of most": (
        lambda s: s.bytes("model.ende.bin", put(8, "Q", 2**64 - 1)),
        "claims",
    ),
    "name length lies": (
        lambda s: s.bytes("model.ende.bin", put(16, "Q", 2**40)),
        "claims",
    ),
    "no end of name": (
        lambda s: s.bytes("model.ende.bin", put(16, "Q", 3)),
        "does not end",
    ),
    "type of a processor": (
        lambda s: s.bytes("model.ende.bin", put(24, "Q", 0x4801)),
        "0x4801",
    ),
    "axes lie": (lambda s: s.bytes("model.ende.bin", put(32, "Q", 2**50)), "claims"),
    "bytes lie": (lambda s: s.bytes("model.ende.bin", put(40, "Q", 2**50)), "claims"),
    "shape lies": (
        lambda s: s.bytes(
            "model.ende.bin", lambda c: put(shapes_at(c), "i", 2**31 - 1, 2**31 - 1)(c)
        ),
        "has the shape",
    ),
    "negative shape": (
        lambda s: s.bytes(
            "model.ende.bin", lambda c: put(shapes_at(c), "i", -12, -12)(c)
        ),
        "has the shape",
    ),
    "name of other bytes": (
        lambda s: s.bytes(
            "model.ende.bin",
            lambda c: c.replace(b"encoder_l1_self_Wq\0", b"encoder_\xff1_self_Wq\0"),
        ),
        "not UTF-8",
    ),
    "name twice": (
        lambda s: s.bytes(
            "model.ende.bin",
            lambda c: c.replace(b"encoder_l2_self_Wq\0", b"encoder_l1_self_Wq\0"),
        ),
        "twice",
    ),
    "nan": (
        lambda s: s.student(set_to("encoder_l1_self_bq", [[np.nan] * 12])),
        "finite",
    ),
    "infinite multiplier": (
        lambda s: s.bytes(
            "model.ende.bin", lambda c: put(values_at(c) + 144, "f", np.inf)(c)
        ),
        "was multiplied by inf",
    ),
    "multiplier of 0": (
        lambda s: s.bytes(
            "model.ende.bin", lambda c: put(values_at(c) + 144, "f", 0.0)(c)
        ),
        "was multiplied by 0.0",
    ),
    "missing": (lambda s: s.student(drop("decoder_l1_rnn_Wf")), "decoder_l1_rnn_Wf"),
    "one more": (
        lambda s: s.student(set_to("encoder_l1_adapter_W", np.ones((2, 2)))),
        "adapter",
    ),
    "one more layer": (
        lambda s: s.student(set_to("encoder_l3_self_Wq", np.ones((12, 12)))),
        "l3",
    ),
    "other shape": (
        lambda s: s.student(set_to("encoder_l1_ffn_W1", np.ones((20, 12)))),
        "shape",
    ),
    "no options": (
        lambda s: s.bytes(
            "model.ende.bin",
            lambda c: c.replace(b"special:model.yml", b"special:model.yaml"[:17]),
        ),
        "holds no",
    ),
    "object in yml": (
        lambda s: s.bytes("model.ende.bin", yml(b"!!python/object/apply:os.abort []#")),
        "YAML",
    ),
    "list in yml": (
        lambda s: s.bytes("model.ende.bin", yml(b"[1, 2] #")),
        "options by",
    ),
    "not yml": (lambda s: s.bytes("model.ende.bin", yml(b"\xff\xfe{{{:")), "YAML"),
    "gelu": (
        lambda s: s.student(**{"transformer-ffn-activation": "gelu"}),
        "ffn-activation",
    ),
    "tied layers": (
        lambda s: s.student(**{"transformer-tied-layers": [1]}),
        "tied-layers",
    ),
    "unknown option": (
        lambda s: s.student(**{"transformer-moe-experts": 8}),
        "moe-experts",
    ),
    "right to left": (lambda s: s.student(**{"right-left": True}), "right-left"),
    "average attention": (
        lambda s: s.student(**{"transformer-decoder-autoreg": "average-attention"}),
        "decoder-autoreg",
    ),
    "gru": (lambda s: s.student(**{"dec-cell": "gru"}), "dec-cell"),
    "highway": (
        lambda s: s.student(**{"transformer-postprocess": "dhn"}),
        "postprocess",
    ),
    "many layers": (lambda s: s.student(**{"enc-depth": 10**9}), "encoder_l3_self"),
    "layers in words": (lambda s: s.student(**{"enc-depth": "six"}), "enc-depth"),
    "width below 0": (lambda s: s.student(**{"dim-emb": -12}), "Wemb"),
    "heads": (lambda s: s.student(**{"transformer-heads": 5}), "num_heads"),
    "one vocabulary": (lambda s: s.student(**{"dim-vocabs": [60]}), "dim-vocabs"),
    "rnn": (lambda s: s.student(type="s2s"), "type"),
    "spm": (lambda s: s.bytes("vocab.ende.spm", lambda c: c[:50]), "SentencePiece"),
    "other spm": (
        lambda s: s.bytes(
            "vocab.ende.spm", lambda c: foreign.sentencepiece_model(size=40)
        ),
        "pieces",
    ),
    "file is missing": (lambda s: (s.folder / "model.ende.bin").unlink(), "missing"),
    "two models": (
        lambda s: s.text(
            "config.yml", "  - model.ende.bin\n", "  - a.npz\n  - b.npz\n"
        ),
        "models",
    ),
    "word penalty": (
        lambda s: s.text("config.yml", "word-penalty: 0", "word-penalty: 0.5"),
        "word-penalty",
    ),
}
OPUS = {
    "no zip": (lambda s: s.bytes("opus.npz", lambda c: b"PK" + c[9:]), "npz"),
    "cut": (lambda s: s.bytes("opus.npz", lambda c: c[:-300]), "npz"),
    "bit": (
        lambda s: s.bytes(
            "opus.npz", lambda c: put(c.index(b"Wemb.npy") + 300, "I", 7)(c)), "npz"),
    "pickle": (lambda s: s.npz("Wemb.npy", pickled_npy()), "not numbers"),
    "pickle as the file": (
        lambda s: s.bytes("opus.npz", lambda c: pickle.dumps(Harm())), "npz"),
    "shape lies": (
        lambda s: s.npz("Wemb.npy", npy((70, 12), data=bytes(480))), "claims"),
    "absurd shape": (
        lambda s: s.npz("Wemb.npy", npy((10**12, 10**12), data=bytes(480))), "claims"),
    "negative shape": (
        lambda s: s.npz("Wemb.npy", npy((-4, -30), data=bytes(480))), "shape"),
    "bomb": (
        lambda s: s.npz("Wemb.npy", npy((10**7, 12), data=bytes(48 * 10**7))), "claim"),
    "text": (
        lambda s: s.npz("Wemb.npy", npy((2,), "<U4", bytes(32))), "not numbers"),
    "no header": (lambda s: s.npz("Wemb.npy", b"hello"), "npz"),
    "gap in the vocabulary": (
        lambda s: s.text("opus.vocab.yml", '"nor": ', '"nor": 9'), "number"),
    "no end in the vocabulary": (
        lambda s: s.text("opus.vocab.yml", "</s>", "<end>"), "</s>"),
    "vocabulary of other bytes": (
        lambda s: s.bytes("opus.vocab.yml", lambda c: c + b"\xff"), "UTF-8"),
    "vocabulary is a list": (
        lambda s: s.bytes("opus.vocab.yml", lambda c: b"- a\n- b\n"),
        "options by name",
    ),
    "no source.spm": (lambda s: (s.folder / "source.spm").unlink(), "source.spm"),
    "bpe": (lambda s: (s.folder / "source.spm").rename(s.folder / "source.bpe"),
            "another tool"),
    "vocabulary elsewhere": (
        lambda s: s.text("decoder.yml", "  - opus.vocab.yml\n", "  - /etc/passwd\n"),
        "missing",
    ),
}  # fmt: skip
HUGGING_FACE = {
    "no json": (lambda s: s.bytes("config.json", lambda c: c[:-9]), "JSON"),
    "deep json": (lambda s: s.bytes("config.json", lambda c: b"[" * 10**5), "JSON"),
    "other bytes": (lambda s: s.bytes("config.json", lambda c: b"\xff" + c), "UTF-8"),
    "no config": (lambda s: (s.folder / "config.json").unlink(), "config.json"),
    "list": (lambda s: s.bytes("config.json", lambda c: b"[]"), "options by name"),
    "bart": (lambda s: s.json("config.json", model_type="bart"), "model_type"),
    "pickle": (
        lambda s: (
            (s.folder / "model.safetensors").unlink(),
            (s.folder / "pytorch_model.bin").write_bytes(pickle.dumps(Harm())),
        ),
        "save_pretrained",
    ),
    "header length lies": (
        lambda s: s.bytes("model.safetensors", put(0, "Q", 2**60)), "cannot be read"),
    "cut": (
        lambda s: s.bytes("model.safetensors", lambda c: c[:-99]), "cannot be read"),
    "header is no json": (
        lambda s: s.bytes("model.safetensors", lambda c: c[:8] + b"x" * (len(c) - 8)),
        "cannot be read",
    ),
    "offsets lie": (
        lambda s: s.safetensors(
            lambda h, v: h[WQ].update(data_offsets=[0, 2**50])), "cannot be read"),
    "shape lies": (
        lambda s: s.safetensors(lambda h, v: h[WQ].update(shape=[2**40, 2**40])),
        "cannot be read",
    ),
    "other type": (
        lambda s: s.safetensors(lambda h, v: h[WQ].update(dtype="I32")), "float type"),
    "missing": (
        lambda s: s.json("config.json", encoder_layers=3), "model.encoder.layers.2"),
    "one more": (
        lambda s: s.json("config.json", encoder_layers=1), "model.encoder.layers.1"),
    "nan": (
        lambda s: s.safetensors(
            lambda h, v: v.__setitem__(slice(0, 4), struct.pack("<f", np.nan))),
        "finite",
    ),
    "pre-norm": (lambda s: s.json("config.json", normalize_before=True),
                 "normalize_before"),
    "gelu_new": (
        lambda s: s.json("config.json", activation_function="gelu_new"), "activation"),
    "unknown option": (
        lambda s: s.json("config.json", num_experts=8), "num_experts"),
    "other heads": (
        lambda s: s.json("config.json", decoder_attention_heads=4),
        "decoder_attention",
    ),
    "padding beyond": (
        lambda s: s.json("config.json", pad_token_id=10**9), "pad_token"),
    "no option": (lambda s: s.json("config.json", d_model=...), "d_model"),
    "sampling": (
        lambda s: (s.folder / "generation_config.json").write_text(
            '{"do_sample": true}'), "do_sample"),
    "banned words": (
        lambda s: s.json("config.json", bad_words_ids=[[7, 8]]), "bad_words_ids"),
    "renormalised shortest": (
        lambda s: s.json("config.json", renormalize_logits=True, min_length=4),
        "renormalize_logits"),
    "gap in the vocabulary": (
        lambda s: s.text("vocab.json", '"<unk>": 1', '"<unk>": 10000'), "number"),
    "words in the vocabulary": (
        lambda s: s.text("vocab.json", '"<unk>": 1', '"<unk>": "1"'), "number"),
    "no target.spm": (lambda s: (s.folder / "target.spm").unlink(), "target.spm"),
}  # fmt: skip
CTRANSLATE2 = {
    "newer": (lambda s: s.bytes("model.bin", put(0, "I", 7)), "binary version"),
    "oldest": (lambda s: s.bytes("model.bin", put(0, "I", 1)), "binary version"),
    "pickle": (
        lambda s: s.bytes("model.bin", lambda c: pickle.dumps(Harm())), "version"),
    "cut": (lambda s: s.bytes("model.bin", lambda c: c[:-700]), "damaged"),
    "empty": (lambda s: s.bytes("model.bin", lambda c: b""), "damaged"),
    "count lies": (lambda s: s.bytes("model.bin", put(26, "I", 2**32 - 1)), "damaged"),
    "name length lies": (
        lambda s: s.bytes("model.bin", put(30, "H", 65535)), "damaged"),
    "other specification": (
        lambda s: s.variables(lambda v: None, spec="WhisperSpec"), "WhisperSpec"),
    "newer specification": (
        lambda s: s.variables(lambda v: None, revision=8), "revision"),
    "alias of nothing": (
        lambda s: s.variables(lambda v: None, aliases=[("a", "b")]), "stands for"),
    "alibi": (
        lambda s: s.variables(lambda v: v.update({"decoder/alibi": np.int8(1)})),
        "alibi",
    ),
    "relative positions": (
        lambda s: s.variables(
            set_to("encoder/layer_0/self_attention/relative_position_keys",
                   np.ones((5, 4)))),
        "relative_position_keys",
    ),
    "gated": (
        lambda s: s.variables(
            set_to("encoder/layer_0/ffn/linear_0_noact/weight", np.ones((20, 12)))),
        "noact",
    ),
    "heads for keys": (
        lambda s: s.variables(
            lambda v: v.update(
                {"encoder/layer_0/self_attention/num_heads_kv": np.int32(1)})),
        "num_heads_kv",
    ),
    "no scale": (
        lambda s: s.variables(
            lambda v: v.update({"decoder/projection/weight": np.ones((11, 12), "i1")})),
        "scale",
    ),
    "scale of 0": (
        lambda s: s.variables(
            lambda v: v.update(
                {"decoder/projection/weight": np.ones((11, 12), "i1"),
                 "decoder/projection/weight_scale": np.zeros(11, "f4")})),
        "above 0",
    ),
    "scales of another shape": (
        lambda s: s.variables(
            lambda v: v.update({"decoder/projection/weight": np.ones((11, 12), "i1"),
                                "decoder/projection/weight_scale": np.ones(7, "f4")})),
        "scale",
    ),
    "activation": (
        lambda s: s.variables(
            lambda v: v.update({"encoder/activation": np.int8(1),
                                "decoder/activation": np.int8(1)})),
        "activation",
    ),
    "number is a matrix": (
        lambda s: s.variables(set_to("encoder/num_heads", np.ones((2, 2)))),
        "one number",
    ),
    "no layers": (
        lambda s: s.variables(
            lambda v: [v.pop(n) for n in list(v) if n.startswith("decoder/layer_")]),
        "layers",
    ),
    "nan": (
        lambda s: s.variables(set_to("decoder/projection/bias", [np.nan] * 11)),
        "finite",
    ),
    "missing": (
        lambda s: s.variables(drop("encoder/layer_1/ffn/linear_1/bias")),
        "linear_1/bias",
    ),
    "start goes first": (
        lambda s: s.json("config.json", add_source_bos=True), "add_source_bos"),
    "unknown option": (lambda s: s.json("config.json", rope=True), "rope"),
    "no start": (
        lambda s: s.json("config.json", decoder_start_token=None), "decoder_start"),
    "vocabulary of other bytes": (
        lambda s: (
            (s.folder / "source_vocabulary.json").unlink(),
            (s.folder / "source_vocabulary.txt").write_bytes(b"a\n\xff\n"),
        ),
        "UTF-8",
    ),
    "vocabulary of another size": (
        lambda s: s.bytes("target_vocabulary.json", lambda c: b'["<s>", "</s>"]'),
        "pieces",
    ),
    "vocabulary is no list": (
        lambda s: s.bytes("target_vocabulary.json", lambda c: b'{"a": 1}'), "list"),
    "piece twice": (
        lambda s: s.text("target_vocabulary.json", '"u"', '"v"'), "twice"),
    "no vocabulary": (
        lambda s: (s.folder / "target_vocabulary.json").unlink(), "vocabulary"),
}  # fmt: skip
CASES = [
    (kind, name)
    for kind, cases in (
        ("student", STUDENT), ("opus", OPUS), ("hugging_face", HUGGING_FACE),
        ("ctranslate2", CTRANSLATE2),
    )
    for name in cases
]  # fmt: skip
_ALL = {"student": STUDENT, "opus": OPUS, "hugging_face": HUGGING_FACE,
        "ctranslate2": CTRANSLATE2}  # fmt: skip
_FORMATS = {"student": "marian", "opus": "marian"}


@pytest.mark.parametrize("kind,name", CASES)
def test_a_bad_file_gets_one_line_and_no_memory(good, tmp_path, kind, name):
    shutil.copytree(good / kind, tmp_path / "bad")
    spoil, expected = _ALL[kind][name]
    spoil(Spoiled(tmp_path / "bad"))
    importer = FORMATS[_FORMATS.get(kind, kind)]
    tracemalloc.start()
    try:
        with pytest.raises((ValueError, FileNotFoundError)) as caught:
            importer(tmp_path / "bad")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert expected in message
    assert "\n" not in message and len(message) < 600
    assert peak < _MOST_MEMORY
