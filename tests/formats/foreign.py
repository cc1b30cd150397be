"""Tiny models of other systems, with random weights, written as those systems do.

Nothing here uses the package: files are made with `struct`, NumPy, SentencePiece, JSON
and safetensors. Hugging Face's tensors are Marian's by other names, (out, in). At the
end: an imported translator's logits, in the numbers of the other system.
"""

import functools
import io
import json
import struct

import numpy as np
import sentencepiece
from keras import ops
from safetensors.numpy import save_file

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
# What a clone has in place of a large file that Git LFS has not fetched.
POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    "size 301243\n"
)


@functools.cache
def sentencepiece_model(part=(0, 6), size=60, algorithm="unigram", **ids):
    """The content of a SentencePiece model; Marian's special ids by default."""
    ids = ids or {"eos_id": 0, "unk_id": 1, "bos_id": -1, "pad_id": -1}
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS[slice(*part)]),
        model_writer=model,
        vocab_size=size,
        model_type=algorithm,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **ids,
    )
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
        "type": "transformer", "version": "v1.9.0", "skip": False, "enc-type": "any",
        "enc-cell": "gru", "dim-rnn": 1024, "bert-type-vocab-size": 2,
        "enc-depth": form.encoder_depth, "dec-depth": form.decoder_depth,
        "dim-emb": WIDTH, "dim-vocabs": list(sizes), "input-types": [],
        "dec-cell": "ssru" if form.ssru else "gru", "right-left": False, "ulr": False,
        "layer-normalization": False, "lemma-dim-emb": 0, "output-omit-bias": False,
        "tied-embeddings": tied == "target", "tied-embeddings-all": tied == "all",
        "tied-embeddings-src": False,
        "transformer-decoder-autoreg": "rnn" if form.ssru else "self-attention",
        "transformer-dim-ffn": HIDDEN, "transformer-heads": form.heads,
        "transformer-ffn-activation": "swish" if form.swish else "relu",
        "transformer-ffn-depth": 2, "transformer-no-projection": False,
        "transformer-guided-alignment-layer": "last", "transformer-tied-layers": [],
        "transformer-train-position-embeddings": False,
        "transformer-preprocess": "n" if form.pre_norm else "",
        "transformer-postprocess": "da" if form.pre_norm else "dan",
        "transformer-postprocess-emb": "nd" if form.emb_norm else "d",
        "transformer-postprocess-top": "n" if form.pre_norm else "",
    }  # fmt: skip
    return options | changes


def options_item(options):
    """The options as the tensor that holds them; JSON is YAML."""
    return np.frombuffer(json.dumps(options).encode() + b"\0", np.int8)


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


def write_student(folder, rng, quantised=True, **changes):
    """Writes a folder as of Firefox: .bin, one vocab.spm and a yml."""
    folder.mkdir(parents=True, exist_ok=True)
    model = sentencepiece_model()
    size = len(pieces_of(model))
    tensors = random_tensors(rng, sizes=(size, size))
    options = marian_options(sizes=(size, size), **changes)
    content = bin_bytes(tensors, options, quantised)
    (folder / "model.ende.bin").write_bytes(content)
    (folder / "vocab.ende.spm").write_bytes(model)
    (folder / "config.yml").write_text(
        "relative-paths: true\nmodels:\n  - model.ende.bin\nvocabs:\n"
        "  - vocab.ende.spm\n  - vocab.ende.spm\nbeam-size: 1\nnormalize: 1.0\n"
        "word-penalty: 0\nshortlist:\n  - lex.bin\n  - false\n"
    )


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
    item = {"special:model.yml": options_item(options)}
    np.savez(folder / "opus.npz", **item, **tensors)
    for side, model in models.items():
        (folder / f"{side}.spm").write_bytes(model)
    # Each piece in quotes, as Marian writes them.
    lines = (f"{json.dumps(piece)}: {i}\n" for i, piece in enumerate(pieces))
    (folder / "opus.vocab.yml").write_text("".join(lines), encoding="utf-8")
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


def hugging_face_form(**changes):
    """What Hugging Face computes: another epsilon and other frequencies."""
    options = dict(ssru=False, epsilon=1e-5, paper_frequencies=True) | changes
    return Form(2, 1, HEADS, **options)


def hugging_face_tensors(tensors, form):
    """The tensors of a `MarianMTModel`."""
    found = {}

    def linear(ours, theirs, letter):
        found[f"{ours}.weight"] = tensors[f"{theirs}_W{letter}"].T
        found[f"{ours}.bias"] = tensors[f"{theirs}_b{letter}"][0]

    def norm(ours, theirs):
        found[f"{ours}.weight"] = tensors[f"{theirs}_ln_scale"][0]
        found[f"{ours}.bias"] = tensors[f"{theirs}_ln_bias"][0]

    for side in ("encoder", "decoder"):
        attentions = {"self_attn": "self"}
        if side == "decoder":
            attentions["encoder_attn"] = "context"
        for i in range(getattr(form, f"{side}_depth")):
            ours, theirs = f"model.{side}.layers.{i}", f"{side}_l{i + 1}"
            for name, their_name in attentions.items():
                for letter, part in zip("qkvo", ("q", "k", "v", "out"), strict=True):
                    part = f"{ours}.{name}.{part}_proj"
                    linear(part, f"{theirs}_{their_name}", letter)
                norm(f"{ours}.{name}_layer_norm", f"{theirs}_{their_name}_Wo")
            linear(f"{ours}.fc1", f"{theirs}_ffn", "1")
            linear(f"{ours}.fc2", f"{theirs}_ffn", "2")
            norm(f"{ours}.final_layer_norm", f"{theirs}_ffn_ffn")
    theirs = {
        "model.shared.weight": "Wemb",
        "model.encoder.embed_tokens.weight": "encoder_Wemb",
        "model.decoder.embed_tokens.weight": "decoder_Wemb",
        "final_logits_bias": "decoder_ff_logit_out_b",
    }
    found |= {ours: tensors[name] for ours, name in theirs.items() if name in tensors}
    if "decoder_ff_logit_out_W" in tensors:
        found["lm_head.weight"] = tensors["decoder_ff_logit_out_W"].T
    return found


def write_hugging_face(folder, rng, form=None, tied="all", more=(), **changes):
    """A folder as `save_pretrained` writes it; returns the tensors and the pieces.

    `more` are pieces that the source has after all others, and the target lacks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    form = hugging_face_form() if form is None else form
    models = opus_models()
    pieces = [*opus_pieces(models), ">>deu<<", "<pad>"]
    size = len(pieces)
    tensors = random_tensors(rng, form, (size + len(more), size), tied)
    theirs = hugging_face_tensors(tensors, form)
    theirs = {name: np.ascontiguousarray(array) for name, array in theirs.items()}
    save_file(theirs, folder / "model.safetensors")
    for side, model in models.items():
        (folder / f"{side}.spm").write_bytes(model)
    files = {"vocab.json": [*pieces, *more]}
    if more:
        files["target_vocab.json"] = pieces
        # Which Transformers needs to read that.
        (folder / "tokenizer_config.json").write_text('{"separate_vocabs": true}')
    for name, numbered in files.items():
        ids = {piece: i for i, piece in enumerate(numbered)}
        (folder / name).write_text(json.dumps(ids), encoding="utf-8")
    config = {
        "model_type": "marian", "architectures": ["MarianMTModel"], "dropout": 0.1,
        "activation_function": "swish" if form.swish else "relu", "d_model": WIDTH,
        "encoder_layers": form.encoder_depth, "decoder_layers": form.decoder_depth,
        "encoder_ffn_dim": HIDDEN, "decoder_ffn_dim": HIDDEN,
        "vocab_size": size + len(more),
        "encoder_attention_heads": form.heads, "decoder_vocab_size": size,
        "decoder_attention_heads": form.heads, "pad_token_id": size - 1,
        "decoder_start_token_id": size - 1, "eos_token_id": 0, "max_length": 512,
        "forced_eos_token_id": 0, "bad_words_ids": [[size - 1]], "num_beams": 4,
        "id2label": {"0": "LABEL_0"}, "is_encoder_decoder": True,
        "normalize_before": False, "normalize_embedding": False,
        "scale_embedding": True, "static_position_embeddings": True,
        "tie_word_embeddings": tied != "none", "transformers_version": "4.22.0",
        "share_encoder_decoder_embeddings": tied == "all",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config | changes))
    return tensors, pieces


def ids_of(tokenizer):
    """Our ids by the names of the pieces."""
    size = tokenizer.vocabulary_size
    return {piece: i for i, piece in enumerate(tokenizer.pieces(range(size)))}


def logits_of(translator, sources, targets, source_pieces, target_pieces):
    """Our logits [B, T, V] in the order of their pieces.

    Args:
        translator: An imported `Translator`.
        sources: Lists of their ids, without the end.
        targets: Lists of their ids, of one length T.
        source_pieces: Their pieces by their ids.
        target_pieces: Likewise.
    """
    ids = ids_of(translator.tokenizers.source)
    ours = [ids[piece] for piece in source_pieces]
    width = max(map(len, sources)) + 1
    source = np.zeros((len(sources), width), "int32")
    for i, row in enumerate(sources):
        source[i, : len(row) + 1] = [ours[id] for id in row] + [2]
    ids = ids_of(translator.tokenizers.target)
    order = [ids[piece] for piece in target_pieces]
    target = np.array([[1] + [order[id] for id in row[:-1]] for row in targets])
    logits = translator.model((source, target.astype("int32")))
    logits = ops.convert_to_numpy(logits)
    return logits[..., order], logits


def log_softmax(logits):
    """Log-probabilities over the last axis, float64."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
