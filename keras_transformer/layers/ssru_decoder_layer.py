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
    decoding read one state, not the keys and values of all positions before. It has the
    arguments of `DecoderLayer`; those of attention are for that to the source.

    Example:
        >>> layer = SSRUDecoderLayer(num_heads=2, d_ff=8)
        >>> target, source = np.ones((1, 4, 6)), np.ones((1, 5, 6))
        >>> layer(target, source).shape  # (1, 4, 6)
    """

    def make_attention(self, name: str, d_model: int) -> keras.layers.Layer:
        """Returns the `SSRU` or, of another name, the attention of `DecoderLayer`."""
        if name != "self_attention":
            return super().make_attention(name, d_model)
        return SSRU(dtype=self.dtype_policy, name=name, **kept_options(self))
