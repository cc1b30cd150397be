"""The models without a decoder in float64 NumPy, for the tests.

Written from the papers that each function names, in the plainest way, on top of
`numpy_transformer`, which also says how weights are named and what the letters mean.
A stack's weights are `encoder_layers` and, when `norm_first`, `norm`; a linear map's
are `kernel` [D, C] and `bias` [C].
"""

from __future__ import annotations

import numpy as np

from tests.reference.numpy_transformer import (
    decoder_layer,
    embed,
    encoder_layer,
    layer_norm,
    padding_mask,
    sinusoidal_positions,
)


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


def masked_mean(states, mask):
    """Mean of the positions that `mask` [B, S] allows, [B, D]; of none, zeros."""
    outputs = np.zeros((len(states), states.shape[-1]))
    for row in range(len(states)):
        if mask[row].any():
            outputs[row] = states[row][mask[row]].mean(axis=0)
    return outputs


def with_class_token(states, token):
    """Equation 1 of Dosovitskiy et al., 2021: [token; states], [B, S + 1, D]."""
    return np.stack([np.concatenate([token[None], row]) for row in states])


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


def image_captioner(images, target, weights, num_heads, patch_size, norm_first=False):
    """Logits [B, T, V]: a Transformer whose source are the patches of images.

    Args:
        images: [B, height, width, channels].
        target: Integers [B, T], the decoder's input.
        weights: As for `numpy_transformer.transformer`, but for the source a linear map
            `patches` and `source_positions` [S, D].
        num_heads: H.
        patch_size: P, pixels.
        norm_first: Whether to normalise before each sub-layer and after the stacks.
    """
    patches = linear(image_patches(images, patch_size), weights["patches"])
    encoded = patches + weights["source_positions"]
    if "source_embedding_norm" in weights:
        encoded = layer_norm(encoded, weights["source_embedding_norm"])
    for layer in weights["encoder_layers"]:
        encoded = encoder_layer(encoded, layer, num_heads, None, norm_first)
    if norm_first:
        encoded = layer_norm(encoded, weights["encoder_norm"])
    decoded, mask = embed(target, weights, "target"), padding_mask(target)
    for layer in weights["decoder_layers"]:
        decoded = decoder_layer(
            decoded, encoded, layer, num_heads, mask, None, norm_first
        )
    if norm_first:
        decoded = layer_norm(decoded, weights["decoder_norm"])
    logits = decoded @ np.asarray(weights["output_embeddings"], np.float64).T
    return logits + weights.get("output_bias", 0.0)
