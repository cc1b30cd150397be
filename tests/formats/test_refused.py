"""What is refused, by the name of what has no form here, in one line."""

import io
import json
import pickle
import shutil
import struct

import numpy as np
import pytest

from keras_transformer.formats import IMPORTERS, import_model
from tests.formats import foreign

BIN, NPZ, SAFETENSORS = "model.ende.bin", "opus.npz", "model.safetensors"
SIZE = len(foreign.pieces_of(foreign.sentencepiece_model()))


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A good folder of each kind."""
    folder, rng = tmp_path_factory.mktemp("good"), np.random.default_rng(3)
    foreign.write_student(folder / "student", rng)
    foreign.write_opus(folder / "opus", rng)
    foreign.write_hugging_face(folder / "hugging_face", rng)
    return folder


@pytest.fixture
def spoiled(good, tmp_path):
    """Copies a good folder, for a test to spoil."""
    return lambda kind: shutil.copytree(good / kind, tmp_path / kind)


def check_refused(folder, *expected, error=ValueError):
    kind = "hugging_face" if folder.name == "hugging_face" else "marian"
    with pytest.raises(error) as caught:
        IMPORTERS[kind](folder)
    message = str(caught.value)
    assert all(word in message for word in expected), message
    assert "\n" not in message and len(message) < 600


def write_student(folder, change=lambda tensors: None, **options):
    """Writes the student's weights again, with other tensors or options."""
    rng = np.random.default_rng(3)
    tensors = foreign.random_tensors(rng, sizes=(SIZE, SIZE))
    change(tensors)
    options = foreign.marian_options(sizes=(SIZE, SIZE)) | options
    (folder / BIN).write_bytes(foreign.bin_bytes(tensors, options))


def write_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.one_case("hugging_face")
@pytest.mark.parametrize("kind", ["student", "opus", "hugging_face"])
def test_the_folders_that_are_spoiled_below_are_good(good, kind):
    assert import_model(good / kind)(["a b"])


OPTIONS = {
    "student": [
        ("type", "s2s"), ("transformer-moe-experts", 8), ("enc-depth", "six"),
        ("transformer-ffn-activation", "gelu"), ("transformer-tied-layers", [1]),
        ("right-left", True), ("transformer-decoder-autoreg", "average-attention"),
        ("dec-cell", "gru"), ("transformer-postprocess", "dhn"), ("lemma-dim-emb", 8),
        ("transformer-train-position-embeddings", True), ("input-types", ["class"]),
    ],
    "hugging_face": [
        ("model_type", "bart"), ("num_experts", 8), ("normalize_before", True),
        ("activation_function", "gelu_new"), ("decoder_attention_heads", 4),
        ("pad_token_id", 10**9), ("bad_words_ids", [[7, 8]]), ("do_sample", True),
        ("forced_bos_token_id", 4), ("repetition_penalty", 1.5), ("d_model", None),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [(kind, *row) for kind, rows in OPTIONS.items() for row in rows],
)
def test_an_option_without_a_form_here(spoiled, kind, option, value):
    folder, file = spoiled(kind), BIN
    if kind == "student":
        write_student(folder, **{option: value})
    else:
        file = "config.json"
        write_json(folder / file, **{option: value})
    check_refused(folder, file, f"`{option}`", repr(value))


# Marian's option, a value that no model has, and what is named.
SIZES = [
    ("enc-depth", 10**9, "num_encoder_layers"), ("transformer-heads", 5, "num_heads"),
    ("dim-emb", -12, "Wemb"),
]  # fmt: skip


@pytest.mark.parametrize(("option", "value", "named"), SIZES)
def test_a_size_that_no_model_has(spoiled, option, value, named):
    folder = spoiled("student")
    write_student(folder, **{option: value})
    check_refused(folder, named)


def test_options_of_a_search_that_would_change_the_outputs(spoiled):
    folder = spoiled("hugging_face")
    write_json(folder / "config.json", renormalize_logits=True, min_length=4)
    check_refused(folder, "`min_length`", "`renormalize_logits`")
    # Where there is a generation_config.json, config.json's search means nothing.
    (folder / "generation_config.json").write_text("{}")
    assert IMPORTERS["hugging_face"](folder).config.beam_size == 1
    (folder / "generation_config.json").write_text('{"num_beam_groups": 2}')
    check_refused(folder, "generation_config.json", "`num_beam_groups`")
    folder = spoiled("opus")
    search = folder / "decoder.yml"
    search.write_text(search.read_text().replace("word-penalty: 0", "word-penalty: 1"))
    check_refused(folder, "decoder.yml", "`word-penalty`")


TENSORS = {
    "missing": ("decoder_l1_rnn_Wf", lambda x: x.pop("decoder_l1_rnn_Wf")),
    "one more": ("adapter_W", lambda x: x.update(adapter_W=np.ones((2, 2), "f4"))),
    "one more layer": (
        "encoder_l3_self_Wq",
        lambda x: x.update(encoder_l3_self_Wq=x["encoder_l2_self_Wq"]),
    ),
    "of another shape": (
        "encoder_l1_ffn_W1",
        lambda x: x.update(encoder_l1_ffn_W1=x["encoder_l1_ffn_W1"].T),
    ),
    "not finite": (
        "encoder_l1_self_bq", lambda x: x["encoder_l1_self_bq"].fill(np.nan)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TENSORS)
def test_a_tensor_that_does_not_fit(spoiled, case):
    folder = spoiled("student")
    name, change = TENSORS[case]
    write_student(folder, change)
    check_refused(folder, BIN, name)


@pytest.mark.parametrize("layers", [1, 3])
def test_tensors_of_hugging_face_that_are_too_many_or_too_few(spoiled, layers):
    folder = spoiled("hugging_face")
    write_json(folder / "config.json", encoder_layers=layers)
    check_refused(folder, SAFETENSORS, f"model.encoder.layers.{min(layers, 2)}.")


def put(at, kind, *numbers):
    """A change of bytes: numbers of a kind of `struct` at a place."""
    packed = struct.pack(f"<{len(numbers)}{kind}", *numbers)
    return lambda content: content[:at] + packed + content[at + len(packed) :]


def headers_of(content):
    """Length of the name, type, axes and bytes of each item of a .bin."""
    (count,) = struct.unpack("<Q", content[8:16])
    return np.frombuffer(content, "<u8", 4 * count, 16).reshape(count, 4)


def in_first_item(at, kind, number):
    """A change of the numbers of the first item of a .bin."""

    def change(content):
        start = len(content) - int(headers_of(content)[:, 3].sum())
        return put(start + at, kind, number)(content)

    return change


def options_of(text):
    """A change of the options of a .bin."""

    def change(content):
        at = content.index(b'{"type"')
        return content[:at] + text + content[at + len(text) :]

    return change


class Harm:
    """Raises when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("code of a file was run",)


def npz(**arrays):
    """The content of a .npz; what is no number is pickled."""
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


# What to change in which file of which folder, and what the error names.
DAMAGED = {
    "half a .bin": ("student", BIN, lambda c: c[: len(c) // 2], BIN),
    "version": ("student", BIN, put(0, "Q", 2), "version"),
    "count": ("student", BIN, put(8, "Q", 2**64 - 1), BIN),
    "type": ("student", BIN, put(24, "Q", 0x4801), "0x4801"),
    "name": (
        "student", BIN,
        lambda c: c.replace(b"encoder_l2_self_Wq\0", b"encoder_l1_self_Wq\0"),
        "encoder_l1_self_Wq",
    ),
    "no options": (
        "student", BIN, lambda c: c.replace(b"special:", b"spacial:"), "special:model"
    ),
    "multiplier": ("student", BIN, in_first_item(144, "f", np.inf), "inf"),
    "object in YAML": ("student", BIN, options_of(b"!!python/name:os.abort #"), "YAML"),
    "list in YAML": ("student", BIN, options_of(b"[1, 2] #"), "special:model.yml"),
    "half a .spm": ("student", "vocab.ende.spm", lambda c: c[:50], "vocab.ende.spm"),
    "other .spm": (
        "student", "vocab.ende.spm", lambda c: foreign.sentencepiece_model(size=40),
        "40 pieces",
    ),
    "pickle": ("opus", NPZ, lambda c: pickle.dumps(Harm()), NPZ),
    "pickle in a zip": ("opus", NPZ, lambda c: npz(Wemb=np.array([Harm()])), NPZ),
    "gap in YAML's numbers": (
        "opus", "opus.vocab.yml", lambda c: c.replace(b'"nor": ', b'"nor": 9'),
        "opus.vocab.yml",
    ),
    "no end": (
        "opus", "opus.vocab.yml", lambda c: c.replace(b"</s>", b"<end>"), "</s>"
    ),
    "two models": (
        "opus", "decoder.yml", lambda c: c.replace(b"models:", b"models: [a, b]\nx:"),
        "`models`",
    ),
    "no JSON": ("hugging_face", "config.json", lambda c: c[:-9], "config.json"),
    "safetensors' end": ("hugging_face", SAFETENSORS, lambda c: c[:-99], SAFETENSORS),
    "safetensors' type": (
        "hugging_face", SAFETENSORS, lambda c: c.replace(b'"F32"', b'"I32"', 1), "'I32'"
    ),
    "gap in JSON's numbers": (
        "hugging_face", "vocab.json",
        lambda c: c.replace(b'"<unk>": 1', b'"<unk>": 10000'), "vocab.json",
    ),
    "piece twice": (
        "hugging_face", "vocab.json", lambda c: c.replace(b'"nor": ', b'"": '), "''"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file(spoiled, case):
    kind, name, change, expected = DAMAGED[case]
    folder = spoiled(kind)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(change(content))
    assert (folder / name).read_bytes() != content
    check_refused(folder, expected)


READ = {
    "student": [BIN, "config.yml", "vocab.ende.spm"],
    "opus": [NPZ, "opus.npz.yml", "decoder.yml", "opus.vocab.yml", "target.spm"],
    "hugging_face": [
        SAFETENSORS, "config.json", "generation_config.json", "vocab.json",
        "source.spm", "target.spm",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in READ.items() for name in names]
)
def test_a_pointer_of_git_lfs_in_place_of_a_file(spoiled, kind, name):
    folder = spoiled(kind)
    (folder / name).write_text(foreign.POINTER)
    words = f"{folder / name} is a pointer of Git LFS", "`git lfs pull`"
    check_refused(folder, *words, "`hf download`")


@pytest.mark.parametrize(
    ("kind", "name"),
    [("student", BIN), ("opus", "source.spm"), ("hugging_face", SAFETENSORS)],
)
def test_a_missing_file(spoiled, kind, name):
    folder = spoiled(kind)
    (folder / name).unlink()
    check_refused(folder, name, error=FileNotFoundError)


def test_a_file_elsewhere_is_never_read(spoiled):
    folder = spoiled("opus")
    search = folder / "decoder.yml"
    search.write_text(search.read_text().replace("- opus.vocab.yml", "- /etc/passwd"))
    check_refused(folder, str(folder / "passwd"), error=FileNotFoundError)


def test_another_cutting_of_words(spoiled):
    folder = spoiled("opus")
    (folder / "source.spm").rename(folder / "source.bpe")
    check_refused(folder, ".bpe")
