"""Taggers that see one word, a window, or the whole sentence."""

import keras
from keras import ops

import keras_transformer as kt

NEAR = 5  # Words to each side that the net with a window sees.


def make_model(kind, words, tags):
    """Returns a compiled model of ids (B, S) to logits (B, S, tags).

    Args:
        kind: "one word", "window", "attention" or "ReLU attention".
        words: Size of the vocabulary; id 0 is padding.
        tags: Number of tags; 0 is padding.
    """
    if "attention" in kind:
        model = attention_net(words, tags, is_relu="ReLU" in kind)
    else:
        model = window_net(words, tags, size=1 if kind == "one word" else 1 + 2 * NEAR)
    # XLA would compile for longer than it trains; JAX has nothing else.
    is_jax = keras.backend.backend() == "jax"
    model.compile(kt.Adam(2e-3), kt.MaskedCrossentropy(), jit_compile=is_jax)
    return model


def window_net(words, tags, size):
    """A fully connected net of `size` words: at every place the same, a convolution."""
    ids = keras.Input((None,), dtype="int32")
    is_word = ops.expand_dims(ops.cast(ids > 0, "float32"), -1)
    states = keras.layers.Embedding(words, 64)(ids) * is_word
    states = keras.layers.Conv1D(256, size, padding="same", activation="relu")(states)
    states = keras.layers.Dense(128, activation="relu")(states)
    return keras.Model(ids, keras.layers.Dense(tags)(states))


def attention_net(words, tags, is_relu):
    """A tagger of two layers of self-attention, weighed by softmax or by ReLU."""
    sizes = {"num_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 4}
    config = kt.EncoderConfig(**sizes, norm_first=True)
    encoder = kt.Encoder(config, words)
    kind = kt.ReluAttention if is_relu else kt.MultiHeadAttention
    for layer in encoder.stack.encoder_layers:
        # Rotary positions find the word before sooner than sinusoids do.
        layer.make_attention = lambda name, width: kind(
            4, width // 4, dropout=0.1, use_bias=False, positions="rotary"
        )
    return kt.Tagger(encoder, tags)
