"""Marian's Transformer in float64 NumPy, for the tests.

Written from Marian's own formulas (src/models/transformer.h, src/rnn/cells.h and
src/common/binary.cpp of marian-nmt): it imports neither Keras nor the package, and
reads the files itself. Tensors keep Marian's names; matrices are (in, out), biases and
norms (1, D).

Relatives compute the same with another epsilon and other positions: `Form` has both.

Letters: B batch, S source length, T target length, P positions before, D width, V
vocabulary, H heads.
"""

import dataclasses
import struct

import numpy as np


@dataclasses.dataclass
class Form:
    """The options that the formulas depend on; defaults are a Firefox student's."""

    encoder_depth: int = 6
    decoder_depth: int = 2
    heads: int = 8
    pre_norm: bool = False
    swish: bool = False
    ssru: bool = True
    emb_norm: bool = False
    epsilon: float = 1e-6
    # Frequencies are 10000^(-i / (D/2 - 1)), or with this 10000^(-2i / D).
    paper_frequencies: bool = False


def read_bin(path):
    """Returns the tensors of a binary file, and the text of its options.

    A matrix of 8 bits is stored transposed, but for the embeddings, and its multiplier
    follows: what is stored is the number times the multiplier, rounded.
    """
    with open(path, "rb") as file:
        version, count = struct.unpack("<2Q", file.read(16))
        assert version == 1
        headers = [struct.unpack("<4Q", file.read(32)) for _ in range(count)]
        names = [file.read(header[0])[:-1].decode() for header in headers]
        shapes = [struct.unpack(f"<{h[2]}i", file.read(4 * h[2])) for h in headers]
        (gap,) = struct.unpack("<Q", file.read(8))
        file.read(gap)
        items = [file.read(header[3]) for header in headers]
    tensors, options = {}, None
    for name, shape, header, item in zip(names, shapes, headers, items, strict=True):
        size = int(np.prod(shape))
        if name == "special:model.yml":
            options = item[:size].rstrip(b"\0").decode()
        elif header[1] == 0x404:
            values = np.frombuffer(item, "<f4", size).astype(np.float64)
            tensors[name] = values.reshape(shape)
        elif header[1] == 0x4101:
            numbers = np.frombuffer(item, np.int8, size).astype(np.float64)
            (multiplier,) = struct.unpack("<f", item[size : size + 4])
            numbers /= multiplier
            if name == "Wemb":
                tensors[name] = numbers.reshape(shape)
            else:
                tensors[name] = numbers.reshape(shape[1], shape[0]).T
    return tensors, options


def positions(start, length, width, form):
    """Sines, then cosines, of position / 10000^(i / (D/2 - 1)), [length, D]."""
    half = width // 2
    divisor = half if form.paper_frequencies else half - 1
    angles = np.zeros((length, half))
    for position in range(length):
        for i in range(half):
            place = start + position
            angles[position, i] = place * np.exp(-i * np.log(10000.0) / divisor)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def layer_norm(x, tensors, name, form, suffix=""):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias."""
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    scale, bias = (tensors[f"{name}_ln_{part}{suffix}"] for part in ("scale", "bias"))
    return centred / np.sqrt(variance + form.epsilon) * scale[0] + bias[0]


def product(x, matrix):
    """x W of x [B, T, D] or [B, D]; NumPy would make a product of each sentence."""
    return (x.reshape(-1, x.shape[-1]) @ matrix).reshape(*x.shape[:-1], -1)


def affine(x, tensors, name, letter):
    """x W + b."""
    matrix, bias = (tensors[f"{name}_{part}{letter}"] for part in "Wb")
    return product(x, matrix) + bias[0]


def sigmoid(x):
    """1 / (1 + e^-x)."""
    return 1 / (1 + np.exp(-x))


def around(x, tensors, name, form, function, norm_before=None):
    """A sub-layer with its residual connection and its norm, before or after."""
    if form.pre_norm:
        inputs = layer_norm(x, tensors, norm_before or name, form, "_pre")
        return x + function(inputs)
    return layer_norm(x + function(x), tensors, name, form)


def multi_head(tensors, name, heads, queries, values, mask):
    """Attention of [B, T, D] to [B, S, D]; `mask`, broadcast, is True to see."""
    q = affine(queries, tensors, name, "q")
    k = affine(values, tensors, name, "k")
    v = affine(values, tensors, name, "v")
    size = q.shape[-1] // heads
    outputs = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = q[..., part] @ k[..., part].transpose(0, 2, 1) / np.sqrt(size)
        scores = np.where(mask, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        outputs.append(weights / weights.sum(-1, keepdims=True) @ v[..., part])
    return affine(np.concatenate(outputs, -1), tensors, name, "o")


def feed_forward(tensors, name, form):
    """The function x -> act(x W1 + b1) W2 + b2."""

    def function(x):
        hidden = affine(x, tensors, name, "1")
        hidden = hidden * sigmoid(hidden) if form.swish else np.maximum(hidden, 0)
        return affine(hidden, tensors, name, "2")

    return function


def ssru(tensors, name, x, cell):
    """c = s(f) c + (1 - s(f)) x W with f = x Wf + bf; the output is relu(c).

    Args:
        tensors: The weights.
        name: Their prefix.
        x: [B, T, D].
        cell: The state before, [B, D].

    Returns:
        The outputs [B, T, D] and the state after.
    """
    outputs = []
    for t in range(x.shape[1]):
        gate = sigmoid(affine(x[:, t], tensors, name, "f"))
        cell = gate * cell + (1 - gate) * product(x[:, t], tensors[f"{name}_W"])
        outputs.append(np.maximum(cell, 0))
    return np.stack(outputs, axis=1), cell


def embedded(vectors, start, tensors, side, form):
    """sqrt(D) e + position, normalised if the form says so."""
    width = vectors.shape[-1]
    x = np.sqrt(width) * vectors + positions(start, vectors.shape[1], width, form)
    if form.emb_norm:
        x = layer_norm(x, tensors, f"{side}_emb", form, "_pre")
    return x


def encode(tensors, form, source, lengths):
    """The encoder's output [B, S, D] and its mask [B, 1, S].

    Args:
        tensors: The weights.
        form: A `Form`.
        source: Integers [B, S], each row ends in the end of the sentence.
        lengths: Tokens of each row.
    """
    mask = (np.arange(source.shape[1]) < np.array(lengths)[:, None])[:, None]
    table = tensors["Wemb" if "Wemb" in tensors else "encoder_Wemb"]
    x = embedded(table[source], 0, tensors, "encoder", form)
    for i in range(1, form.encoder_depth + 1):
        name = f"encoder_l{i}_self"
        x = around(
            x,
            tensors,
            f"{name}_Wo",
            form,
            lambda y, name=name: multi_head(tensors, name, form.heads, y, y, mask),
        )
        name = f"encoder_l{i}_ffn"
        x = around(x, tensors, f"{name}_ffn", form, feed_forward(tensors, name, form))
    if form.pre_norm:
        x = layer_norm(x, tensors, "encoder_top", form)
    return x, mask


def decode(tensors, form, vectors, encoded, mask, states=None):
    """Logits [B, T, V] of the words after T input vectors, and the layers' states.

    Args:
        tensors: The weights.
        form: A `Form`.
        vectors: Embeddings [B, T, D] of the words before, zeros before the first.
        encoded: From `encode`.
        mask: From `encode`.
        states: What a call for the positions before returned.
    """
    batch, length, width = vectors.shape
    start, before = states or (0, [None] * form.decoder_depth)
    x, after = embedded(vectors, start, tensors, "decoder", form), []
    for i, state in enumerate(before, start=1):
        layer = f"decoder_l{i}"

        def recurrent(y, layer=layer, state=state):
            cell = np.zeros((batch, width)) if state is None else state
            outputs, cell = ssru(tensors, f"{layer}_rnn", y, cell)
            after.append(cell)
            return outputs

        def attention(y, layer=layer, state=state):
            past = y if state is None else np.concatenate([state, y], axis=1)
            after.append(past)
            seen = np.arange(past.shape[1]) <= start + np.arange(length)[:, None]
            name = f"{layer}_self"
            return multi_head(tensors, name, form.heads, y, past, seen[None])

        def across(y, layer=layer):
            name = f"{layer}_context"
            return multi_head(tensors, name, form.heads, y, encoded, mask)

        if form.ssru:
            name = f"{layer}_rnn"
            x = around(x, tensors, f"{name}_ffn", form, recurrent, name)
        else:
            x = around(x, tensors, f"{layer}_self_Wo", form, attention)
        x = around(x, tensors, f"{layer}_context_Wo", form, across)
        name = f"{layer}_ffn"
        x = around(x, tensors, f"{name}_ffn", form, feed_forward(tensors, name, form))
    if form.pre_norm:
        x = layer_norm(x, tensors, "decoder_top", form)
    output = tensors.get("decoder_ff_logit_out_W")
    if output is None:
        output = tensors["Wemb" if "Wemb" in tensors else "decoder_Wemb"].T
    logits = product(x, output) + tensors["decoder_ff_logit_out_b"][0]
    return logits, (start + length, after)


def target_table(tensors):
    """The embeddings of the target."""
    return tensors["Wemb" if "Wemb" in tensors else "decoder_Wemb"]


def teacher_forced(tensors, form, source, lengths, target, first=None):
    """Logits [B, T, V] of every word of a target [B, T], given those before it.

    `first` is the word before the first one; `None` is a vector of zeros.
    """
    encoded, mask = encode(tensors, form, source, lengths)
    vectors = target_table(tensors)[target]
    start = np.zeros_like(vectors[:, :1])
    if first is not None:
        start += target_table(tensors)[first]
    vectors = np.concatenate([start, vectors[:, :-1]], axis=1)
    return decode(tensors, form, vectors, encoded, mask)[0]


def greedy(tensors, form, source, lengths, longest, end=0, unknown=1):
    """The words of each row by greedy search; the unknown one is never taken.

    Args:
        tensors: The weights.
        form: A `Form`.
        source: Integers [B, S].
        lengths: Tokens of each row.
        longest: Most words of each row, the end counted.
        end: Word that ends a sentence.
        unknown: Word that is never produced.

    Returns:
        Lists of integers, without the end.
    """
    encoded, mask = encode(tensors, form, source, lengths)
    table = target_table(tensors)
    vectors, states = np.zeros((len(source), 1, table.shape[1])), None
    rows, done = [[] for _ in source], np.zeros(len(source), bool)
    while not done.all():
        logits, states = decode(tensors, form, vectors, encoded, mask, states)
        logits[..., unknown] = -np.inf
        words = logits[:, 0].argmax(axis=-1)
        for i, word in enumerate(words):
            done[i] |= word == end
            if not done[i]:
                rows[i].append(int(word))
                done[i] |= len(rows[i]) == longest[i]
        vectors = table[words][:, None]
    return rows
