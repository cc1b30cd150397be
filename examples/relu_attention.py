"""Attention with ReLU in place of softmax, by overriding `weigh`.

A subclass of `MultiHeadAttention` overrides `weigh`, from scores to weights (Wortsman
et al., 2023, https://arxiv.org/abs/2309.08586). The task is that of
linformer_attention.py.

    python examples/relu_attention.py
"""

import keras_transformer.quiet

import keras
from keras import ops
from linformer_attention import train

import keras_transformer as kt


def relu_weights(scores, mask=None):
    """Returns the positive scores divided by the number of allowed positions.

    Section 3 of the paper divides by the length, padding included.
    """
    positive = ops.relu(scores)
    if mask is None:
        return positive / ops.cast(ops.shape(scores)[-1], positive.dtype)
    number = ops.sum(ops.cast(mask, positive.dtype), axis=-1, keepdims=True)
    return ops.where(mask, positive, 0.0) / ops.maximum(number, 1.0)


@keras.saving.register_keras_serializable(package="examples")
class ReluAttention(kt.MultiHeadAttention):
    """Multi-head attention whose weights need not sum to 1; called like its base."""

    weigh = staticmethod(relu_weights)
    equals_keras = False  # `from_keras` refuses weights made for a softmax.


@keras.saving.register_keras_serializable(package="examples")
class ReluLayer(kt.EncoderLayer):
    def make_attention(self, name, d_model):
        return ReluAttention(
            self.num_heads,
            d_model // self.num_heads,
            dropout=self.attention_dropout_rate,
            use_bias=self.use_bias,
            positions=self.positions,
            name=name,
        )


def main(arguments=None):
    return train(ReluLayer, arguments)


if __name__ == "__main__":
    main()
