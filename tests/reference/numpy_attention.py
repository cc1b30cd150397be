"""Other kinds of attention in float64 NumPy, for the tests.

Written from the equations of the papers named, one query and one key at a time. It
imports neither Keras nor the package. Letters and masks are those of
`numpy_transformer`.
"""

import numpy as np

from tests.reference.numpy_transformer import project, softmax, ssru


def additive_attention(query, key, value, weights, mask=None):
    """Bahdanau et al., 2015, A.1.2: softmax_s(w . tanh(W_q q_t + W_k k_s)) V.

    Args:
        query: [B, T, D_query].
        key: [B, S, D_key].
        value: [B, S, D_value].
        weights: `query_kernel` [D_query, U], `key_kernel` [D_key, U], `score_kernel`
            [U] and optionally `query_bias` [U].
        mask: Boolean, broadcast to [B, T, S].

    Returns:
        The output [B, T, D_value] and the attention weights [B, T, S].
    """
    queries, keys = project(query, weights, "query"), project(key, weights, "key")
    scores = np.zeros((len(query), query.shape[1], key.shape[1]))
    for b, t, s in np.ndindex(scores.shape):
        scores[b, t, s] = weights["score_kernel"] @ np.tanh(queries[b, t] + keys[b, s])
    attention_weights = softmax(scores, mask)
    return attention_weights @ np.asarray(value, np.float64), attention_weights


def relu_weights(scores, mask):
    """Wortsman et al., 2023, section 3: relu(score) over the number of keys."""
    weights = np.zeros(scores.shape)
    mask = np.broadcast_to(mask, scores.shape)
    for index in np.ndindex(scores.shape[:-1]):
        allowed = mask[index]
        positive = np.maximum(scores[index][allowed], 0)
        weights[index][allowed] = positive / max(allowed.sum(), 1)
    return weights


def rotation(position, width, base=10000.0):
    """Su et al., 2021, equation 15: the matrix R of a position, [K, K]."""
    matrix = np.zeros((width, width))
    for i in range(width // 2):
        angle = position * base ** (-2 * i / width)
        pair = slice(2 * i, 2 * i + 2)
        sine, cosine = np.sin(angle), np.cos(angle)
        matrix[pair, pair] = [[cosine, -sine], [sine, cosine]]
    return matrix


def self_attention(
    inputs,
    weights,
    num_heads,
    num_key_value_heads=None,
    mask=None,
    weigh=softmax,
    rotary_base=None,
    slopes=None,
    after=1.0,
):
    """Multi-head self-attention with the options of its relatives, a pair at a time.

    Args:
        inputs: [B, T, D].
        weights: Attention weights, see `numpy_transformer`; with `score_kernel` [K, H]
            scores are those of `additive_attention`.
        num_heads: H.
        num_key_value_heads: G; head h uses keys and values of head h // (H / G).
        mask: Boolean, broadcast to [B, T, T].
        weigh: Function of scores [B, T, T] and mask.
        rotary_base: Turns queries and keys by `rotation` with this base.
        slopes: ALiBi: of each head, what a score loses for each position of distance.
        after: What that is multiplied by for keys after the query.

    Returns:
        The output [B, T, D_out] and the attention weights [B, H, T, T].
    """
    queries = project(inputs, weights, "query")
    keys, values = project(inputs, weights, "key"), project(inputs, weights, "value")
    groups = num_key_value_heads or num_heads
    key_dim, value_dim = queries.shape[-1] // num_heads, values.shape[-1] // groups
    batch, length = queries.shape[:2]
    mask = np.ones((1, 1, length), bool) if mask is None else mask
    outputs, attention_weights = [], []
    for head in range(num_heads):
        group = head // (num_heads // groups)
        q = queries[..., head * key_dim : (head + 1) * key_dim]
        k = keys[..., group * key_dim : (group + 1) * key_dim]
        scores = np.zeros((batch, length, length))
        for b, t, s in np.ndindex(scores.shape):
            if rotary_base is None:
                product = q[b, t] @ k[b, s]
            else:
                turned = rotation(t, key_dim, rotary_base) @ q[b, t]
                product = turned @ rotation(s, key_dim, rotary_base) @ k[b, s]
            scores[b, t, s] = product / np.sqrt(key_dim)
            if "score_kernel" in weights:  # Additive.
                hidden = np.tanh(q[b, t] + k[b, s])
                scores[b, t, s] = weights["score_kernel"][:, head] @ hidden
            if slopes is not None:
                distance = t - s if s <= t else after * (s - t)
                scores[b, t, s] -= slopes[head] * distance
        attention_weights.append(weigh(scores, mask))
        v = values[..., group * value_dim : (group + 1) * value_dim]
        outputs.append(attention_weights[-1] @ v)
    output = project(np.concatenate(outputs, axis=-1), weights, "output")
    return output, np.stack(attention_weights, axis=1)


def linear_attention(query, key, value, weights, num_heads, mask=None):
    """Katharopoulos et al., 2020, equation 4 with phi(x) = elu(x) + 1.

    The arguments and the output are those of `numpy_transformer.multi_head_attention`.
    """
    queries, keys = project(query, weights, "query"), project(key, weights, "key")
    values = project(value, weights, "value")
    key_dim = queries.shape[-1] // num_heads
    value_dim = values.shape[-1] // num_heads
    shape = (len(queries), queries.shape[1], keys.shape[1])
    mask = np.broadcast_to(True if mask is None else mask, shape)
    outputs = np.zeros((*shape[:2], num_heads * value_dim))
    for b, t, head in np.ndindex(*shape[:2], num_heads):
        of_key = slice(head * key_dim, (head + 1) * key_dim)
        of_value = slice(head * value_dim, (head + 1) * value_dim)
        products = [
            mask[b, t, s] * (_phi(queries[b, t, of_key]) @ _phi(keys[b, s, of_key]))
            for s in range(shape[2])
        ]
        if sum(products) > 0:
            shares = np.array(products) / sum(products)
            outputs[b, t, of_value] = shares @ values[b, :, of_value]
    return project(outputs, weights, "output")


def _phi(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def performer_attention(query, key, value, weights, num_heads, vectors, mask=None):
    """Choromanski et al., 2021, lemma 1 and equation 4, one pair at a time.

    The arguments and the output are those of `linear_attention`, and `vectors` [F, K].
    """
    queries, keys = project(query, weights, "query"), project(key, weights, "key")
    values = project(value, weights, "value")
    key_dim, value_dim = (x.shape[-1] // num_heads for x in (queries, values))
    shape = (len(queries), queries.shape[1], keys.shape[1])
    mask = np.broadcast_to(True if mask is None else mask, shape)
    outputs = np.zeros((*shape[:2], num_heads * value_dim))
    for b, t, head in np.ndindex(*shape[:2], num_heads):
        of_key = slice(head * key_dim, (head + 1) * key_dim)
        of_value = slice(head * value_dim, (head + 1) * value_dim)
        feature = _random_features(queries[b, t, of_key], vectors)
        products = (
            np.array(
                [
                    feature @ _random_features(keys[b, s, of_key], vectors)
                    for s in range(shape[2])
                ]
            )
            * mask[b, t]
        )
        if products.sum() > 0:
            shares = products / products.sum()
            outputs[b, t, of_value] = shares @ values[b, :, of_value]
    return project(outputs, weights, "output")


def _random_features(x, vectors):
    x = x / len(x) ** 0.25
    return np.exp(vectors @ x - x @ x / 2) / np.sqrt(len(vectors))


def shared_key_attention(inputs, weights, num_heads, mask):
    """Kitaev et al., 2020, section 2: keys q / |q|, itself only if there is no other.

    Args:
        inputs: [B, T, D].
        weights: Attention weights, see `numpy_transformer`, without those of keys.
        num_heads: H.
        mask: Boolean, broadcast to [B, H, T, T].

    Returns:
        [B, T, D_out].
    """
    queries, values = (
        project(inputs, weights, "query"),
        project(inputs, weights, "value"),
    )
    batch, length, width = queries.shape
    mask = np.broadcast_to(mask, (batch, num_heads, length, length)).copy()
    own = np.eye(length, dtype=bool)
    alone = ~(mask & ~own).any(axis=-1, keepdims=True)
    mask &= ~own | alone
    heads = []
    for head, (q, v) in enumerate(
        zip(*(np.split(x, num_heads, axis=-1) for x in (queries, values)), strict=True)
    ):
        keys = q / np.linalg.norm(q, axis=-1, keepdims=True)
        scores = q @ keys.transpose(0, 2, 1) / np.sqrt(width // num_heads)
        heads.append(softmax(scores, mask[:, head]) @ v)
    return project(np.concatenate(heads, axis=-1), weights, "output")


def lsh_attention(inputs, weights, num_heads, chunk_size, mask=None):
    """Kitaev et al., 2020, section 2: what each position sees, then one softmax.

    Args:
        inputs: [B, T, D].
        weights: As of `shared_key_attention`, and `hash_vectors` [R, K, N / 2].
        num_heads: H.
        chunk_size: C.
        mask: Boolean [B, T], or `None`.

    Returns:
        The output [B, T, D_out] and what is seen, boolean [B, H, T, T].
    """
    queries = project(inputs, weights, "query")
    batch, length, _ = queries.shape
    heads = np.split(queries, num_heads, axis=-1)
    seen = np.zeros((batch, num_heads, length, length), bool)
    for b, head in np.ndindex(batch, num_heads):
        kept = [t for t in range(length) if mask is None or mask[b, t]]
        for vectors in weights["hash_vectors"]:
            turned = heads[head][b] @ vectors
            bucket = np.concatenate([turned, -turned], axis=-1).argmax(axis=-1)
            order = sorted(kept, key=lambda t: (bucket[t], t))
            for i, j in np.ndindex(len(order), len(order)):
                is_near = 0 <= i // chunk_size - j // chunk_size <= 1
                t, s = order[i], order[j]
                seen[b, head, t, s] |= bucket[t] == bucket[s] and is_near
    return shared_key_attention(inputs, weights, num_heads, seen), seen


def alibi_slopes(num_heads):
    """Press et al., 2022, section 3; what lies between powers of two as their code."""
    power = 1
    while 2 * power <= num_heads:
        power *= 2
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    if power == num_heads:
        return slopes
    return slopes + alibi_slopes(2 * power)[::2][: num_heads - power]


def kind_of_self_attention(attention, positions=None):
    """The `function` of a layer's self-attention; see `numpy_transformer`.

    Args:
        attention: "dot-product" or "ssru".
        positions: "rotary", "alibi" or anything else for vectors added before.
    """

    def attend(query, key, value, weights, num_heads, mask=None):
        if attention == "ssru":  # It looks back alone, and padding ends a row.
            return ssru(query, weights), None
        mask = np.ones((1, 1, query.shape[1]), bool) if mask is None else mask
        key_dim = weights["query_kernel"].shape[1] // num_heads
        return self_attention(
            query,
            weights,
            num_heads,
            weights["key_kernel"].shape[1] // key_dim,
            mask,
            rotary_base=10000.0 if positions == "rotary" else None,
            slopes=alibi_slopes(num_heads) if positions == "alibi" else None,
            after=2.0,  # What is causal sees no key there.
        )

    return attend
