"""A conformer, composed of this package's layers, labels each frame of speech.

The block of Gulati et al., 2020, https://arxiv.org/abs/2005.08100, with rotary
positions. The baseline is an `EncoderLayer`. Needs espeak-ng, as speech.py.
"""

import argparse
import shutil
from functools import partial
import keras_transformer.quiet

import keras
from keras import ops
from speech import VOICES, make_model, record, spoken

import keras_transformer as kt


class ConvolutionModule(keras.layers.Layer):
    """A gated linear map, a convolution of each channel over time, a linear map.

    Padding is zero before the convolution and excluded from batch statistics.
    """

    def build(self, shape):
        self.supports_masking = True
        self.gated = keras.layers.Dense(2 * shape[-1])
        self.convolution = keras.layers.DepthwiseConv1D(15, padding="same")
        self.batch_norm = keras.layers.BatchNormalization()
        self.linear = keras.layers.Dense(shape[-1])
        for part in (self.gated, self.convolution, self.batch_norm, self.linear):
            part.build(shape)

    def call(self, inputs, mask, training=None):
        states = ops.where(mask[..., None], ops.glu(self.gated(inputs)), 0.0)
        states = self.convolution(states)
        states = self.batch_norm(states, training=training, mask=mask)
        return self.linear(ops.silu(states))


class ConformerBlock(keras.layers.Layer):
    """Four residual sub-layers, each normalised first, and a final norm."""

    def __init__(self, num_heads, d_ff, dropout_rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.num_heads, self.d_ff = num_heads, d_ff
        self.dropout = kt.layers.Dropout(dropout_rate)
        self.supports_masking = True

    def build(self, shape):
        rate, size = self.dropout.rate, (self.num_heads, shape[-1] // self.num_heads)
        attention = kt.MultiHeadAttention(*size, dropout=rate, positions="rotary")
        halves = [kt.FeedForward(self.d_ff, "silu", rate) for _ in range(2)]
        self.parts = [halves[0], attention, ConvolutionModule(), halves[1]]
        self.norms = [kt.layers.LayerNormalization() for _ in range(5)]
        for layer in (*self.parts, *self.norms):
            layer.build(shape)

    def call(self, inputs, mask=None, training=None):
        mask = ops.ones(ops.shape(inputs)[:2], "bool") if mask is None else mask
        masks, states = [{}, {"mask": mask[:, None]}, {"mask": mask}, {}], inputs
        for number, share in enumerate((0.5, 1.0, 1.0, 0.5)):
            outputs = self.norms[number](states)
            outputs = self.parts[number](outputs, training=training, **masks[number])
            states = states + share * self.dropout(outputs, training=training)
        return self.norms[4](states)


class Stack(kt.EncoderStack):
    def make_encoder_layer(self, name):
        config = self.config
        return ConformerBlock(
            config.num_heads, config.d_ff, config.dropout_rate, name=name
        )


CONFORMER = {"stack": Stack, "positions": partial(kt.PositionalEncoding, "none")}


def main(arguments=None, speak=spoken):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in {"recordings": 200, "epochs": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options, found = parser.parse_args(arguments), []
    if speak is spoken and not shutil.which("espeak-ng"):
        raise SystemExit("espeak-ng must be installed: apt-get install espeak-ng")
    x, y, _ = record(options.recordings, VOICES[:8], (130, 190), speak, 1)
    new, tags, _ = record(options.recordings // 4, VOICES[8:], (130, 190), speak, 2)
    config = kt.EncoderConfig(num_layers=2, d_model=64, d_ff=128, num_heads=4)
    # Positions are inside the attention.
    for name, parts in {"Transformer": {}, "conformer": CONFORMER}.items():
        keras.utils.set_random_seed(1)
        model = make_model(config, 12, **parts)
        model.compile(kt.Adam(0.002), kt.MaskedCrossentropy(), jit_compile=False)
        model.fit(x, y, 16, epochs=options.epochs, verbose=2)
        right = model.predict(new, verbose=0).argmax(-1) == tags
        found.append(right[tags > 0].mean())
        print(f"{name}: {found[-1]:.1%} right")
    return found


if __name__ == "__main__":
    main()
