"""The recurrent translator in float64 NumPy, for the tests.

Written from appendix A of Bahdanau et al., 2015, https://arxiv.org/abs/1409.0473, and
the differences that `AttentiveDecoder` names, in the plainest way: one sentence at a
time, cut to its tokens, one step after the other. It imports neither Keras nor the
package.

Weights are a dict of arrays:

- `source_embeddings` [V, D], `target_embeddings` [V, D], `output_embeddings` [V, D]
- `forward`, `backward`: lists of layers, all GRUs or all LSTMs; `backward` may be
  empty. A GRU is a dict of `kernel` [D_in, 3 U], `recurrent_kernel` [U, 3 U] and
  `bias` [2, 3 U], in each the parts of the update gate, the reset gate and the
  candidate side by side. An LSTM has 4 U columns, those of the input gate, the forget
  gate, the candidate and the output gate, and a `bias` [4 U].
- `initial`, `readout`: dicts of `kernel` and `bias`
- `attention`: `query_kernel` [U, A], `key_kernel` [E, A], `score_kernel` [A]
- `cells`: the decoder's layers, the first one lowest; `initial` gives their first
  states side by side, of an LSTM the state and then the cell

Letters: S source length, T target length, D width of embeddings, U of a GRU, E = U or
2 U of the encoder's states, A of the attention, V vocabulary.
"""

from __future__ import annotations

import numpy as np


def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def gru_step(x, state, weights):
    """One step of a GRU whose reset gate acts after the product.

    z and r gate with the input's and the state's products; the new state is
    z s + (1 - z) tanh(W x + r * (U s)).

    Args:
        x: [D_in].
        state: [U].
        weights: See the head of this file.

    Returns:
        The new state [U].
    """
    of_input, of_state = weights["bias"]
    x_z, x_r, x_h = np.split(x @ weights["kernel"] + of_input, 3)
    s_z, s_r, s_h = np.split(state @ weights["recurrent_kernel"] + of_state, 3)
    update, reset = sigmoid(x_z + s_z), sigmoid(x_r + s_r)
    return update * state + (1 - update) * np.tanh(x_h + reset * s_h)


def lstm_step(x, state, cell, weights):
    """One step of an LSTM: Hochreiter and Schmidhuber, 1997, with a forget gate.

    i, f and o gate with the products' sums; the new cell is f c + i tanh(...), the new
    state o tanh(cell).

    Args:
        x: [D_in].
        state: [U].
        cell: [U].
        weights: See the head of this file.

    Returns:
        The new state [U] and the new cell [U].
    """
    sums = x @ weights["kernel"] + state @ weights["recurrent_kernel"] + weights["bias"]
    i, f, candidate, o = np.split(sums, 4)
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(candidate)
    return sigmoid(o) * np.tanh(cell), cell


def layer_step(x, states, weights):
    """One step of a layer: its states, the first of which is its output."""
    if weights["bias"].ndim == 2:
        return [gru_step(x, states[0], weights)]
    return list(lstm_step(x, *states, weights))


def zeros(weights):
    """The states of a layer before its first step."""
    count = 1 if weights["bias"].ndim == 2 else 2
    return [np.zeros(len(weights["recurrent_kernel"]))] * count


def layer(inputs, weights):
    """The states [S, U] of a layer over inputs [S, D_in], from zeros."""
    outputs, states = [], zeros(weights)
    for x in inputs:
        states = layer_step(x, states, weights)
        outputs.append(states[0])
    return np.array(outputs)


def encode(source, weights):
    """The states [S, E] of one sentence [S] without padding."""
    embeddings = weights["source_embeddings"]
    states = embeddings[source] * np.sqrt(embeddings.shape[1])
    for i, forward in enumerate(weights["forward"]):
        read = [layer(states, forward)]
        if weights["backward"]:
            read.append(layer(states[::-1], weights["backward"][i])[::-1])
        states = np.concatenate(read, axis=1)
    return states


def attend(state, values, weights):
    """Equation 6: a context [E] and its weights [S], for values [S, E]."""
    scores = [
        weights["score_kernel"]
        @ np.tanh(state @ weights["query_kernel"] + value @ weights["key_kernel"])
        for value in values
    ]
    exponentials = np.exp(np.array(scores) - max(scores))
    attention_weights = exponentials / exponentials.sum()
    return attention_weights @ values, attention_weights


def dense(x, weights):
    """tanh(W x + b)."""
    return np.tanh(x @ weights["kernel"] + weights["bias"])


def translate_one(source, target_in, weights):
    """Logits [T, V] and attention weights [T, S] of one pair without padding."""
    values, cells = encode(source, weights), weights["cells"]
    units = len(cells[0]["recurrent_kernel"])
    whole = values[0, units:] if weights["backward"] else values[-1]
    firsts = iter(dense(whole, weights["initial"]).reshape(-1, units))
    states = [[next(firsts) for _ in zeros(cell)] for cell in cells]
    embeddings = weights["target_embeddings"]
    logits, attention_weights = [], []
    for token in target_in:
        embedded = embeddings[token] * np.sqrt(embeddings.shape[1])
        context, looked_at = attend(states[-1][0], values, weights["attention"])
        x = np.concatenate([embedded, context])
        for i, cell in enumerate(cells):
            states[i] = layer_step(x, states[i], cell)
            x = states[i][0]
        readout = dense(np.concatenate([x, embedded, context]), weights["readout"])
        logits.append(weights["output_embeddings"] @ readout)
        attention_weights.append(looked_at)
    return np.array(logits), np.array(attention_weights)


def recurrent(source, target_in, weights, pad_id=0):
    """Logits [B, T, V] and attention weights [B, T, S] of padded pairs.

    What belongs to padding, of the target or of the source, is 0.
    """
    vocabulary_size = len(weights["output_embeddings"])
    logits = np.zeros((*target_in.shape, vocabulary_size))
    attention_weights = np.zeros((*target_in.shape, source.shape[1]))
    for row, (one_source, one_target) in enumerate(zip(source, target_in, strict=True)):
        one_source = one_source[one_source != pad_id]
        one_target = one_target[one_target != pad_id]
        s, t = len(one_source), len(one_target)
        logits[row, :t], attention_weights[row, :t, :s] = translate_one(
            one_source, one_target, weights
        )
    return logits, attention_weights
