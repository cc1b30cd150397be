"""One layer of a decoder whose state does not grow."""

from __future__ import annotations

import keras

from keras_transformer.layers.decoder_layer import DecoderLayer
from keras_transformer.layers.ssru import SSRU
from keras_transformer.layers.weight_options import kept_options


@keras.saving.register_keras_serializable(package="keras_transformer")
class SSRUDecoderLayer(DecoderLayer):
    """A `DecoderLayer` whose `self_attention` is an `SSRU`.

    Kim et al., 2019, section 2.2, https://aclanthology.org/D19-5632: its steps of
    decoding read one state, not the keys and values of all positions before. The
    options of attention are for that to the source.

    Args:
        num_heads: Attention heads, h in the paper.
        d_ff: Width of the feed-forward network's hidden layer, d_ff in the paper.
        key_dim: Width of a head's queries and keys; default the input's width divided
            by `num_heads`, which must then divide it.
        value_dim: Width of a head's values; default `key_dim`.
        dropout_rate: Share of each sub-layer's output dropped in training, in [0, 1);
            P_drop in the paper.
        attention_dropout_rate: Share of the attention weights dropped in training.
        activation_dropout_rate: Share of the feed-forward network's hidden units
            dropped in training.
        activation: Activation of the feed-forward network.
        norm_first: Whether to normalise before each sub-layer instead of after it.
        use_bias: Whether the attention projections add a bias.
        layer_norm_epsilon: What the norms add to the variance.
        attention: "dot-product": no other kind takes the place of the SSRU.
        attention_window: `None`, as no attention has a window.
        num_key_value_heads: Heads of keys and values, a divisor of `num_heads`; default
            `num_heads`. See `MultiHeadAttention`.
        positions: `None`: the SSRU knows the order by itself.
        kernel_initializer: Initializer of the matrices.
        bias_initializer: Initializer of the biases.
        kernel_regularizer: Regularizer of the matrices, or `None`.
        bias_regularizer: Regularizer of the biases, or `None`.
        kernel_constraint: Constraint on the matrices, or `None`.
        bias_constraint: Constraint on the biases, or `None`.
    Call arguments:
        inputs: As `DecoderLayer` takes them, like the rest.
    Returns:
        Float tensor (B, T, D).

    Example:
        >>> layer = SSRUDecoderLayer(num_heads=2, d_ff=8)
        >>> target, source = np.ones((1, 4, 6)), np.ones((1, 5, 6))
        >>> layer(target, source).shape  # (1, 4, 6)
    """

    def make_attention(self, name: str, d_model: int) -> keras.layers.Layer:
        """Returns the `SSRU` or, of another name, the attention of `DecoderLayer`."""
        if name != "self_attention":
            return super().make_attention(name, d_model)
        if self.attention != "dot-product" or self.positions is not None:
            raise ValueError(
                "`attention` and `positions` must be left out: an SSRU takes the place "
                f"of the self-attention. Received: attention={self.attention!r}, "
                f"positions={self.positions!r}"
            )
        return SSRU(dtype=self.dtype_policy, name=name, **kept_options(self))
