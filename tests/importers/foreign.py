"""Tiny models of other systems, with random weights, written as those systems do.

Nothing here uses the package: files are made with `struct`, `zipfile` through NumPy,
SentencePiece and JSON.
"""

from __future__ import annotations

import functools
import io
import json
import struct

import numpy as np
import sentencepiece

from tests.reference.numpy_marian import Form

TEXTS = [
    "the old man sleeps near the big house.",
    "a young dog runs and sings in the garden!",
    "der alte Mann schläft beim großen Haus.",
    "ein junger Hund rennt und singt im Garten!",
    "good birds sing well, old bears do not.",
    "gute Vögel singen gut, alte Bären nicht.",
]
WIDTH, HIDDEN, HEADS = 12, 20, 3


@functools.cache
def sentencepiece_model(part=(0, 6), size=60, algorithm="unigram", **ids):
    """The content of a SentencePiece model; Marian's special ids by default."""
    ids = ids or {"eos_id": 0, "unk_id": 1, "bos_id": -1, "pad_id": -1}
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS[slice(*part)]), model_writer=model,
        vocab_size=size, model_type=algorithm, hard_vocab_limit=False, num_threads=1,
        minloglevel=2, **ids,
    )  # fmt: skip
    return model.getvalue()


def pieces_of(model):
    """The pieces of a SentencePiece model by their ids."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def random_tensors(rng, form=None, sizes=(60, 60), tied="all"):
    """Marian's tensors of a model, float32; `tied` is "all", "target" or "none"."""
    form = Form(2, 1, HEADS) if form is None else form
    tensors = {}

    def matrix(name, *shape):
        tensors[name] = rng.normal(scale=shape[0] ** -0.5, size=shape)

    def linear(name, letter, inputs, outputs):
        matrix(f"{name}_W{letter}", inputs, outputs)
        tensors[f"{name}_b{letter}"] = rng.normal(scale=0.3, size=(1, outputs))

    def norm(name, suffix=""):
        tensors[f"{name}_ln_scale{suffix}"] = rng.uniform(0.5, 1.5, (1, WIDTH))
        tensors[f"{name}_ln_bias{suffix}"] = rng.normal(scale=0.3, size=(1, WIDTH))

    pre = "_pre" if form.pre_norm else ""

    def attention(name):
        for letter in "qkvo":
            linear(name, letter, WIDTH, WIDTH)
        norm(f"{name}_Wo", pre)

    def feed_forward(name):
        linear(name, "1", WIDTH, HIDDEN)
        linear(name, "2", HIDDEN, WIDTH)
        norm(f"{name}_ffn", pre)

    for i in range(1, form.encoder_depth + 1):
        attention(f"encoder_l{i}_self")
        feed_forward(f"encoder_l{i}_ffn")
    for i in range(1, form.decoder_depth + 1):
        layer = f"decoder_l{i}"
        if form.ssru:
            matrix(f"{layer}_rnn_W", WIDTH, WIDTH)
            linear(f"{layer}_rnn", "f", WIDTH, WIDTH)
            norm(f"{layer}_rnn" if pre else f"{layer}_rnn_ffn", pre)
        else:
            attention(f"{layer}_self")
        attention(f"{layer}_context")
        feed_forward(f"{layer}_ffn")
    for side in ("encoder", "decoder"):
        if form.emb_norm:
            norm(f"{side}_emb", "_pre")
        if form.pre_norm:
            norm(f"{side}_top")
    if tied == "all":
        tensors["Wemb"] = rng.normal(scale=0.4, size=(sizes[0], WIDTH))
    else:
        tensors["encoder_Wemb"] = rng.normal(scale=0.4, size=(sizes[0], WIDTH))
        tensors["decoder_Wemb"] = rng.normal(scale=0.4, size=(sizes[1], WIDTH))
    if tied == "none":
        matrix("decoder_ff_logit_out_W", WIDTH, sizes[1])
    bias = rng.normal(scale=0.3, size=(1, sizes[1]))
    bias[0, 0] += 0.5  # Sentences end now and then.
    tensors["decoder_ff_logit_out_b"] = bias
    return {name: array.astype(np.float32) for name, array in tensors.items()}


def marian_options(form=None, sizes=(60, 60), tied="all", **changes):
    """The options of such a model, with many that mean nothing to it."""
    form = Form(2, 1, HEADS) if form is None else form
    options = {
        "bert-type-vocab-size": 2,
        "dec-cell": "ssru" if form.ssru else "gru",
        "dec-cell-base-depth": 2,
        "dec-depth": form.decoder_depth,
        "dim-emb": WIDTH,
        "dim-rnn": 1024,
        "dim-vocabs": list(sizes),
        "enc-cell": "gru",
        "enc-depth": form.encoder_depth,
        "enc-type": "bidirectional",
        "input-types": [],
        "layer-normalization": False,
        "lemma-dim-emb": 0,
        "output-omit-bias": False,
        "right-left": False,
        "skip": False,
        "tied-embeddings": tied == "target",
        "tied-embeddings-all": tied == "all",
        "tied-embeddings-src": False,
        "transformer-decoder-autoreg": "rnn" if form.ssru else "self-attention",
        "transformer-dim-ffn": HIDDEN,
        "transformer-ffn-activation": "swish" if form.swish else "relu",
        "transformer-ffn-depth": 2,
        "transformer-guided-alignment-layer": "last",
        "transformer-heads": form.heads,
        "transformer-no-projection": False,
        "transformer-postprocess": "da" if form.pre_norm else "dan",
        "transformer-postprocess-emb": "nd" if form.emb_norm else "d",
        "transformer-postprocess-top": "n" if form.pre_norm else "",
        "transformer-preprocess": "n" if form.pre_norm else "",
        "transformer-tied-layers": [],
        "transformer-train-position-embeddings": False,
        "type": "transformer",
        "ulr": False,
        "version": "v1.9.0",
    }
    return {name: v for name, v in (options | changes).items() if v is not ...}


def options_item(options):
    """The options as the tensor that holds them; JSON is YAML."""
    return np.frombuffer(json.dumps(options).encode() + b"\0", np.int8)


def write_npz(path, tensors, options):
    """Writes a `.npz` as Marian's cnpy does: not compressed."""
    np.savez(path, **{"special:model.yml": options_item(options)}, **tensors)


def bin_bytes(tensors, options, quantised=False):
    """The content of a `.bin`; `quantised` has matrices of 8 bits, as Firefox has."""
    items = []
    for name, array in tensors.items():
        if quantised and (array.shape[0] > 1 or name == "Wemb"):
            multiplier = np.float32(127 / np.abs(array).max())
            numbers = np.rint(array * multiplier).astype(np.int8)
            stored = numbers if name == "Wemb" else numbers.T
            content = stored.tobytes() + struct.pack("<f", multiplier)
            items.append((name, 0x4101, array.shape, content))
            alpha = np.float32(17.0).tobytes()
            items.append((f"{name}_QuantMultA", 0x404, (1, 1), alpha))
        else:
            items.append((name, 0x404, array.shape, array.astype("<f4").tobytes()))
    text = options_item(options)
    items.append(("special:model.yml", 0x101, text.shape, text.tobytes()))
    headers, names, shapes, values = b"", b"", b"", b""
    for name, kind, shape, content in items:
        encoded = name.encode() + b"\0"
        content += bytes(-len(content) % 256)
        headers += struct.pack("<4Q", len(encoded), kind, len(shape), len(content))
        names += encoded
        shapes += struct.pack(f"<{len(shape)}i", *shape)
        values += content
    start = struct.pack("<2Q", 1, len(items)) + headers + names + shapes
    gap = -(len(start) + 8) % 256
    return start + struct.pack("<Q", gap) + bytes(gap) + values


def rounded(tensors):
    """The tensors as 8 bits hold them, float64."""
    found = {}
    for name, array in tensors.items():
        found[name] = array.astype(np.float64)
        if array.shape[0] > 1 or name == "Wemb":
            multiplier = np.float32(127 / np.abs(array).max())
            found[name] = np.rint(array * multiplier).astype(np.float64) / multiplier
    return found


def write_vocab_yml(path, pieces):
    """Writes a vocab.yml as Marian does, each piece in quotes."""
    lines = (f"{json.dumps(piece)}: {i}\n" for i, piece in enumerate(pieces))
    path.write_text("".join(lines), encoding="utf-8")


def write_student(folder, rng, quantised=True, **changes):
    """A folder as of Firefox: .bin, one vocab.spm and a yml; returns the tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    model = sentencepiece_model()
    size = len(pieces_of(model))
    tensors = random_tensors(rng, sizes=(size, size))
    options = marian_options(sizes=(size, size), **changes)
    (folder / "model.bin").with_name("model.ende.bin").write_bytes(
        bin_bytes(tensors, options, quantised)
    )
    (folder / "vocab.ende.spm").write_bytes(model)
    (folder / "config.yml").write_text(
        "relative-paths: true\nmodels:\n  - model.ende.bin\nvocabs:\n"
        "  - vocab.ende.spm\n  - vocab.ende.spm\nbeam-size: 1\nnormalize: 1.0\n"
        "word-penalty: 0\nshortlist:\n  - lex.bin\n  - false\n"
    )
    return rounded(tensors) if quantised else tensors


def write_opus(folder, rng, form=None, pieces=None, tied="all", **changes):
    """A folder as OPUS-MT releases it: .npz, decoder.yml, two .spm, vocab.yml.

    Returns the tensors and the pieces by their rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    form = Form(2, 1, HEADS, ssru=False, swish=True) if form is None else form
    models = opus_models()
    if pieces is None:
        pieces = opus_pieces(models)
    sizes = (len(pieces), len(pieces))
    tensors = random_tensors(rng, form, sizes, tied)
    options = marian_options(form, sizes, tied, **changes)
    write_npz(folder / "opus.npz", tensors, options)
    for side, model in models.items():
        (folder / f"{side}.spm").write_bytes(model)
    write_vocab_yml(folder / "opus.vocab.yml", pieces)
    (folder / "decoder.yml").write_text(
        "relative-paths: true\nmodels:\n  - opus.npz\nvocabs:\n  - opus.vocab.yml\n"
        "  - opus.vocab.yml\nbeam-size: 6\nnormalize: 1\nword-penalty: 0\n"
    )
    return tensors, pieces


def opus_models():
    """SentencePiece models of the two sides, with SentencePiece's own special ids."""
    own = {"unk_id": 0, "bos_id": 1, "eos_id": 2}
    return {
        "source": sentencepiece_model((0, 4), 50, **own),
        "target": sentencepiece_model((2, 6), 45, **own),
    }


def opus_pieces(models):
    """A joint vocabulary: not all that the models have, and two that neither has."""
    both = dict.fromkeys(
        piece for model in models.values() for piece in pieces_of(model)[3:]
    )
    kept = [piece for i, piece in enumerate(both) if i % 9]
    return ["</s>", "<unk>", *kept[:20], "▁neither", *kept[20:], "nor"]
