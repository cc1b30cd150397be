"""The Transformer of "Attention Is All You Need" in float64 NumPy, for the tests.

Written from the equations of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762,
in the plainest way: loops over heads and layers, no caching, no fusing. It imports
neither Keras nor the package, so that it can witness against them.

Weights are plain nested dicts of arrays:

- attention: `query_kernel` [D_query, H * K], `key_kernel` [D_key, H * K],
  `value_kernel` [D_value, H * Kv], `output_kernel` [H * Kv, D_out]; a bias of the
  same first name is added where the dict has one; fewer columns of keys and values
  are fewer heads of them; a self-attention of another kind than section 3.2.2's has
  its `function`, with the arguments of `multi_head_attention`
- feed-forward: `hidden_kernel`, `hidden_bias`, `output_kernel`, `output_bias`
- SSRU, in place of a decoder layer's self-attention: `input_kernel` and
  `forget_kernel` [D, D], `forget_bias` [D]
- layer normalisation: `gamma`, `beta` and, unless it is the usual one, `epsilon`
- encoder layer: `self_attention`, `self_attention_norm`, `feed_forward`,
  `feed_forward_norm`; a decoder layer has `cross_attention`, `cross_attention_norm` too
- model: see `transformer`

Letters: B batch, S source length, T target length, H heads, D d_model, K key_dim,
Kv value_dim, V vocabulary. Masks are boolean, True = may attend.
"""

import numpy as np

EPSILON = 1e-6


def softmax(scores, mask=None):
    """Softmax over the last axis of the entries where `mask` is True.

    A row without any True gives zeros.
    """
    scores = np.asarray(scores, np.float64)
    if mask is None:
        mask = np.ones(scores.shape, bool)
    mask = np.broadcast_to(mask, scores.shape)
    probabilities = np.zeros(scores.shape)
    for index in np.ndindex(scores.shape[:-1]):
        allowed = mask[index]
        if allowed.any():
            row = scores[index][allowed]
            exponentials = np.exp(row - row.max())
            probabilities[index][allowed] = exponentials / exponentials.sum()
    return probabilities


def log_softmax(logits):
    """Log of the softmax over the last axis."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def dot_product_attention(query, key, value, mask=None):
    """Equation 1: softmax(Q K^T / sqrt(K)) V.

    Args:
        query: [B, T, K].
        key: [B, S, K].
        value: [B, S, Kv].
        mask: Boolean, broadcast to [B, T, S].

    Returns:
        The output [B, T, Kv] and the attention weights [B, T, S].
    """
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
    attention_weights = softmax(scores, mask)
    return attention_weights @ value, attention_weights


def project(inputs, weights, name):
    """Multiplies by the kernel `name` and adds its bias, where there is one."""
    outputs = inputs @ np.asarray(weights[name + "_kernel"], np.float64)
    if name + "_bias" in weights:
        outputs = outputs + weights[name + "_bias"]
    return outputs


def multi_head_attention(query, key, value, weights, num_heads, mask=None):
    """Section 3.2.2: heads attend apart, are concatenated and projected.

    Args:
        query: [B, T, D_query].
        key: [B, S, D_key].
        value: [B, S, D_value].
        weights: Attention weights, see the head of this file.
        num_heads: H.
        mask: Boolean, broadcast to [B, T, S], the same for every head.

    Returns:
        The output [B, T, D_out] and the attention weights [B, H, T, S].
    """
    queries = project(query, weights, "query")
    keys = project(key, weights, "key")
    values = project(value, weights, "value")
    key_dim = queries.shape[-1] // num_heads
    groups = keys.shape[-1] // key_dim
    value_dim = values.shape[-1] // groups
    heads, attention_weights = [], []
    for head in range(num_heads):
        # Ainslie et al., 2023, section 2.2: neighbours share keys and values.
        group = head // (num_heads // groups)
        of_query = slice(head * key_dim, (head + 1) * key_dim)
        of_key = slice(group * key_dim, (group + 1) * key_dim)
        of_value = slice(group * value_dim, (group + 1) * value_dim)
        output, probabilities = dot_product_attention(
            queries[..., of_query], keys[..., of_key], values[..., of_value], mask
        )
        heads.append(output)
        attention_weights.append(probabilities)
    outputs = project(np.concatenate(heads, axis=-1), weights, "output")
    return outputs, np.stack(attention_weights, axis=1)


def sinusoidal_positions(length, d_model):
    """Section 3.5: sin on even columns, cos on odd ones, [length, D]."""
    positions = np.zeros((length, d_model))
    for position in range(length):
        for column in range(d_model):
            i = column // 2
            angle = position / 10000 ** (2 * i / d_model)
            positions[position, column] = np.cos(angle) if column % 2 else np.sin(angle)
    return positions


def halved_positions(length, d_model, marian=False):
    """Sines in the first half, cosines in the second, [length, D].

    Hugging Face's `MarianSinusoidalPositionalEmbedding` turns by 10000^(-2i / D); with
    `marian`, Marian's `sinusoidalPositionEmbeddings` by 10000^(-i / (D / 2 - 1)).
    """
    half = d_model // 2
    positions = np.zeros((length, d_model))
    for position in range(length):
        for i in range(half):
            exponent = i / (half - 1) if marian else 2 * i / d_model
            angle = position / 10000**exponent
            positions[position, i] = np.sin(angle)
            positions[position, half + i] = np.cos(angle)
    return positions


def positional_embedding(ids, embeddings, positions=None):
    """Sections 3.4 and 3.5: sqrt(D) * embedding + position, [B, T, D].

    Args:
        ids: Integers [B, T].
        embeddings: [V, D].
        positions: Learned position vectors [at least T, D]; `None` for sinusoids.
    """
    embeddings = np.asarray(embeddings, np.float64)
    length, d_model = np.shape(ids)[1], embeddings.shape[1]
    if positions is None:
        positions = sinusoidal_positions(length, d_model)
    return embeddings[ids] * np.sqrt(d_model) + positions[:length]


def layer_norm(inputs, weights):
    """Layer normalisation (Ba et al., 2016, equation 4) over the last axis."""
    epsilon = weights.get("epsilon", EPSILON)
    mean = inputs.mean(axis=-1, keepdims=True)
    variance = ((inputs - mean) ** 2).mean(axis=-1, keepdims=True)
    normalised = (inputs - mean) / np.sqrt(variance + epsilon)
    return normalised * weights["gamma"] + weights["beta"]


def relu(inputs):
    """max(0, x)."""
    return np.maximum(inputs, 0.0)


def feed_forward(inputs, weights, activation=relu):
    """Equation 2: activation(x W1 + b1) W2 + b2."""
    return project(activation(project(inputs, weights, "hidden")), weights, "output")


def attend_to_itself(inputs, weights, num_heads, mask):
    """The self-attention that the weights say, [B, T, D_out]."""
    function = weights.get("function", multi_head_attention)
    return function(inputs, inputs, inputs, weights, num_heads, mask)[0]


def residual(inputs, sublayer, norm_weights, norm_first):
    """Section 3.1: LayerNorm(x + f(x)); x + f(LayerNorm(x)) when `norm_first`."""
    if norm_first:
        return inputs + sublayer(layer_norm(inputs, norm_weights))
    return layer_norm(inputs + sublayer(inputs), norm_weights)


def encoder_layer(inputs, weights, num_heads, mask=None, norm_first=False):
    """Section 3.1, encoder: self-attention, then feed-forward, [B, S, D].

    `mask` is broadcast to [B, S, S].
    """
    outputs = residual(
        np.asarray(inputs, np.float64),
        lambda x: attend_to_itself(x, weights["self_attention"], num_heads, mask),
        weights["self_attention_norm"],
        norm_first,
    )
    return residual(
        outputs,
        lambda x: feed_forward(x, weights["feed_forward"]),
        weights["feed_forward_norm"],
        norm_first,
    )


def decoder_layer(
    inputs,
    encoder_output,
    weights,
    num_heads,
    mask=None,
    encoder_output_mask=None,
    norm_first=False,
):
    """Section 3.1, decoder: causal self-attention, cross-attention, feed-forward.

    Args:
        inputs: [B, T, D].
        encoder_output: [B, S, D].
        weights: Decoder layer weights, see the head of this file.
        num_heads: H.
        mask: Boolean, broadcast to [B, T, T]; the causal mask is always added.
        encoder_output_mask: Boolean, broadcast to [B, T, S].
        norm_first: Whether to normalise before each sub-layer.

    Returns:
        [B, T, D].
    """
    encoder_output = np.asarray(encoder_output, np.float64)
    outputs = residual(
        decoder_self_attention(inputs, weights, num_heads, mask, norm_first),
        lambda x: multi_head_attention(
            x,
            encoder_output,
            encoder_output,
            weights["cross_attention"],
            num_heads,
            encoder_output_mask,
        )[0],
        weights["cross_attention_norm"],
        norm_first,
    )
    return residual(
        outputs,
        lambda x: feed_forward(x, weights["feed_forward"]),
        weights["feed_forward_norm"],
        norm_first,
    )


def ssru(inputs, weights, mask=None):
    """Kim et al., 2019, section 2.2: f = sigmoid(x W_f + b_f), c = f c + (1 - f) x W.

    One sentence and one position after the other, from c = 0.

    Args:
        inputs: [B, T, D].
        weights: See the head of this file.
        mask: Boolean [B, T]; where it is False c stays as it is.

    Returns:
        relu(c), [B, T, D].
    """
    inputs = np.asarray(inputs, np.float64)
    outputs = np.zeros(inputs.shape)
    for b, sentence in enumerate(inputs):
        state = np.zeros(inputs.shape[-1])
        for t, x in enumerate(sentence):
            gate = x @ weights["forget_kernel"] + weights["forget_bias"]
            forget = 1 / (1 + np.exp(-gate))
            if mask is None or mask[b, t]:
                state = forget * state + (1 - forget) * (x @ weights["input_kernel"])
            outputs[b, t] = relu(state)
    return outputs


def decoder_self_attention(inputs, weights, num_heads, mask=None, norm_first=False):
    """The first sub-layer of a decoder layer, [B, T, D]; see `decoder_layer`."""
    inputs = np.asarray(inputs, np.float64)
    if "forget_kernel" in weights["self_attention"]:
        return residual(
            inputs,
            lambda x: ssru(x, weights["self_attention"]),
            weights["self_attention_norm"],
            norm_first,
        )
    self_mask = causal_mask(inputs.shape[1])
    if mask is not None:
        self_mask = self_mask & mask
    return residual(
        inputs,
        lambda x: attend_to_itself(x, weights["self_attention"], num_heads, self_mask),
        weights["self_attention_norm"],
        norm_first,
    )


def cross_attention_weights(
    source, target, weights, num_heads, layer, norm_first=False, pad_id=0
):
    """The attention [B, H, T, S] of decoder layer number `layer` to the source.

    Row t is that with which the token after target[t] is chosen. The arguments are
    those of `transformer`; layers are counted from 0.
    """
    source_mask = padding_mask(source, pad_id)
    target_mask = padding_mask(target, pad_id)
    encoded = encode(source, weights, num_heads, norm_first, pad_id)
    decoded = embed(target, weights, "target")
    for before in weights["decoder_layers"][:layer]:
        decoded = decoder_layer(
            decoded, encoded, before, num_heads, target_mask, source_mask, norm_first
        )
    chosen = weights["decoder_layers"][layer]
    decoded = decoder_self_attention(
        decoded, chosen, num_heads, target_mask, norm_first
    )
    if norm_first:
        decoded = layer_norm(decoded, chosen["cross_attention_norm"])
    return multi_head_attention(
        decoded, encoded, encoded, chosen["cross_attention"], num_heads, source_mask
    )[1]


def causal_mask(length):
    """Row t may attend to columns 0 to t, [length, length]."""
    return np.array([[s <= t for s in range(length)] for t in range(length)])


def padding_mask(ids, pad_id=0):
    """True where a token is not padding, [B, 1, S]."""
    return (np.asarray(ids) != pad_id)[:, None, :]


def embed(ids, weights, side):
    """The input of the encoder or the decoder, [B, T, D]; see `transformer`."""
    embedded = positional_embedding(
        ids, weights[f"{side}_embeddings"], weights.get(f"{side}_positions")
    )
    norm = weights.get(f"{side}_embedding_norm")
    return embedded if norm is None else layer_norm(embedded, norm)


def encode(source, weights, num_heads, norm_first=False, pad_id=0):
    """The encoder's output [B, S, D]; see `transformer`."""
    source_mask = padding_mask(source, pad_id)
    encoded = embed(source, weights, "source")
    for layer in weights["encoder_layers"]:
        encoded = encoder_layer(encoded, layer, num_heads, source_mask, norm_first)
    if norm_first:
        encoded = layer_norm(encoded, weights["encoder_norm"])
    return encoded


def transformer(source, target, weights, num_heads, norm_first=False, pad_id=0):
    """Figure 1: logits [B, T, V] of source ids [B, S] and target ids [B, T].

    Args:
        source: Integers [B, S].
        target: Integers [B, T], the decoder's input.
        weights: `source_embeddings` and `target_embeddings` [V, D],
            `output_embeddings` [V, D], lists `encoder_layers` and `decoder_layers`,
            and, when `norm_first`, `encoder_norm` and `decoder_norm`; optionally
            `source_positions` and `target_positions`, other position vectors than the
            paper's, `source_embedding_norm` and `target_embedding_norm`, and
            `output_bias` [V].
        num_heads: H.
        norm_first: Whether to normalise before each sub-layer and after the stacks.
        pad_id: Id of padding.
    """
    source_mask = padding_mask(source, pad_id)
    target_mask = padding_mask(target, pad_id)
    encoded = encode(source, weights, num_heads, norm_first, pad_id)
    decoded = embed(target, weights, "target")
    for layer in weights["decoder_layers"]:
        decoded = decoder_layer(
            decoded, encoded, layer, num_heads, target_mask, source_mask, norm_first
        )
    if norm_first:
        decoded = layer_norm(decoded, weights["decoder_norm"])
    logits = decoded @ np.asarray(weights["output_embeddings"], np.float64).T
    return logits + weights.get("output_bias", 0.0)


# Models without a decoder. A stack's weights are `encoder_layers` and, when
# `norm_first`, `norm`; a linear map's are `kernel` [D, C] and `bias` [C].


def linear(inputs, weights):
    """x W + b."""
    return np.asarray(inputs, np.float64) @ weights["kernel"] + weights["bias"]


def encoder_stack(states, weights, num_heads, mask=None, norm_first=False):
    """Figure 1, left, of Vaswani et al., 2017, after the embedding, [B, S, D]."""
    for layer in weights["encoder_layers"]:
        states = encoder_layer(states, layer, num_heads, mask, norm_first)
    return layer_norm(states, weights["norm"]) if norm_first else states


def feature_embedding(ids, embeddings, pad_id=0):
    """sqrt(D / n) times the sum of a token's n feature vectors, and positions.

    The sum is equation 3 of Bojanowski et al., 2017.

    Args:
        ids: Integers [B, T, F].
        embeddings: [V, D].
        pad_id: Id that is no feature.

    Returns:
        [B, T, D].
    """
    batch, length, _ = np.shape(ids)
    d_model = embeddings.shape[1]
    outputs = np.zeros((batch, length, d_model))
    for row, token in np.ndindex(batch, length):
        features = [feature for feature in ids[row, token] if feature != pad_id]
        for feature in features:
            outputs[row, token] += embeddings[feature]
        outputs[row, token] *= np.sqrt(d_model / max(len(features), 1))
    return outputs + sinusoidal_positions(length, d_model)


def image_patches(images, patch_size):
    """Section 3.1 of Dosovitskiy et al., 2021: squares row by row, each flattened.

    Args:
        images: [B, height, width, channels].
        patch_size: P, pixels.

    Returns:
        [B, (height / P) * (width / P), P * P * channels].
    """
    _, height, width, _ = images.shape
    patches = []
    for top in range(0, height, patch_size):
        for left in range(0, width, patch_size):
            patch = images[:, top : top + patch_size, left : left + patch_size]
            patches.append(patch.reshape(len(images), -1))
    return np.stack(patches, axis=1).astype(np.float64)


# Loss, metrics and the learning rate.


def smoothed_targets(target, vocabulary_size, label_smoothing):
    """Section 5.4: (1 - e) on the true class plus e / V on all V, [..., V]."""
    distribution = np.full((*np.shape(target), vocabulary_size), 0.0)
    for index in np.ndindex(np.shape(target)):
        distribution[index] += label_smoothing / vocabulary_size
        distribution[index][target[index]] += 1 - label_smoothing
    return distribution


def label_smoothed_cross_entropy(logits, target, label_smoothing=0.1, pad_id=0):
    """Mean cross-entropy of the tokens that are not padding (nats a token).

    Args:
        logits: [B, T, V].
        target: Integers [B, T].
        label_smoothing: e.
        pad_id: Id of padding.
    """
    target = np.asarray(target)
    distribution = smoothed_targets(target, np.shape(logits)[-1], label_smoothing)
    of_token = -(distribution * log_softmax(logits)).sum(axis=-1)
    return of_token[target != pad_id].mean()


def label_smoothed_cross_entropy_gradient(
    logits, target, label_smoothing=0.1, pad_id=0
):
    """Gradient of the loss with respect to the logits, [B, T, V].

    The cross-entropy of a softmax with a fixed distribution q has the gradient
    softmax(logits) - q; padding has none; the mean divides by the tokens that count.
    """
    target = np.asarray(target)
    counted = target != pad_id
    distribution = smoothed_targets(target, np.shape(logits)[-1], label_smoothing)
    difference = softmax(logits) - distribution
    return difference * counted[..., None] / counted.sum()


def perplexity(logits, target, pad_id=0):
    """exp of the mean cross-entropy without label smoothing."""
    return np.exp(label_smoothed_cross_entropy(logits, target, 0.0, pad_id))


def masked_accuracy(logits, target, pad_id=0):
    """Share of the tokens, padding apart, whose highest logit is the true class."""
    target = np.asarray(target)
    correct = np.argmax(logits, axis=-1) == target
    return correct[target != pad_id].mean()


def learning_rate(step, d_model, warmup_steps=4000):
    """Equation 3, for update number `step` counted from 1."""
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
