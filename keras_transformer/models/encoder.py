"""What the models without a decoder share: the stack of layers, the class token."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.encoder_config import EncoderConfig
from keras_transformer.layers.attention_record import recorded_attention
from keras_transformer.layers.encoder_layer import EncoderLayer
from keras_transformer.layers.layer_normalization import LayerNormalization
from keras_transformer.models.has_config import HasConfig
from keras_transformer.models.has_signature import HasSignature


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderStack(HasConfig, keras.layers.Layer):
    """Encoder layers one after the other, with a last norm if they normalise first.

    The left side of figure 1 of Vaswani et al., 2017,
    https://arxiv.org/abs/1706.03762, without the embedding. To use other layers,
    override `make_encoder_layer`.

    Args:
        config: An `EncoderConfig`.
    Call arguments:
        states: Float tensor (B, S, D).
        mask: Boolean tensor (B, S), (B, 1, S) or (B, S, S), True where a position may
            be attended to, in every layer; default the Keras mask of `states`.
        training: Whether dropout is applied.
    Returns:
        Float tensor (B, S, D).
    Raises:
        TypeError: If `config` is not an `EncoderConfig`.

    Example:
        >>> config = EncoderConfig(num_layers=2, d_model=6, d_ff=8, num_heads=2)
        >>> EncoderStack(config)(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    config_class = EncoderConfig

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.encoder_layers = [
            self.make_encoder_layer(f"encoder_layer_{i}")
            for i in range(config.num_layers)
        ]
        # Pre-norm leaves the last layer's sum without a norm; post-norm does not.
        self.norm = None
        if config.norm_first:
            self.norm = LayerNormalization(
                epsilon=1e-6, dtype=self.dtype_policy, name="norm"
            )
        self.supports_masking = True

    def make_encoder_layer(self, name):
        """Returns an encoder layer called `name`; override to use another one."""
        return EncoderLayer(
            **self.config.layer_options(), dtype=self.dtype_policy, name=name
        )

    def build(self, states_shape):
        for layer in self.encoder_layers:
            layer.build(states_shape)
        if self.norm is not None:
            self.norm.build(states_shape)
        self.built = True

    def call(self, states, mask=None, training=None):
        for layer in self.encoder_layers:
            states = layer(states, mask=mask, training=training)
        return states if self.norm is None else self.norm(states, training=training)

    def compute_output_shape(self, states_shape):
        return tuple(states_shape)


@keras.saving.register_keras_serializable(package="keras_transformer")
class ClassToken(keras.layers.Layer):
    """Puts a learned vector before the first position, to stand for the whole row.

    The [CLS] token of Devlin et al., 2019, https://arxiv.org/abs/1810.04805, and
    x_class of Dosovitskiy et al., 2021, https://arxiv.org/abs/2010.11929.

    Call arguments:
        states: Float tensor (B, S, D).
    Returns:
        Float tensor (B, S + 1, D).

    Example:
        >>> ClassToken()(np.ones((1, 5, 6), "float32")).shape  # (1, 6, 6)
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, states_shape):
        self.token = self.add_weight(
            shape=(states_shape[-1],),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            name="token",
        )
        self.built = True

    def call(self, states):
        shape = (ops.shape(states)[0], 1, states.shape[-1])
        token = ops.cast(ops.convert_to_tensor(self.token), states.dtype)
        return ops.concatenate([ops.broadcast_to(token, shape), states], axis=1)

    def compute_mask(self, inputs, previous_mask):
        """The class token may be attended to, and the others as before."""
        if previous_mask is None:
            return None
        first = ops.ones_like(previous_mask[:, :1])
        return ops.concatenate([first, previous_mask], axis=1)

    def compute_output_shape(self, states_shape):
        batch, length, width = states_shape
        return batch, None if length is None else length + 1, width


class EncoderModel(HasSignature, keras.Model):
    """Base of the models without a decoder: they show their attention and export.

    A subclass has an `EncoderStack` as its attribute `stack`.
    """

    def attention(self, inputs, layer=-1):
        """Returns how the positions attend to each other in one layer.

        Args:
            inputs: As of a call.
            layer: Encoder layer, counted from 0, or from -1 backwards.

        Returns:
            Attention weights (B, H, S, S): row t is the attention of position t. A
            class token is position 0.

        Raises:
            ValueError: If there is no such layer, or its attention has no weights, as
                `LinearAttention` has none.
        """
        layers = self.stack.encoder_layers
        if not -len(layers) <= layer < len(layers):
            raise ValueError(
                f"`layer` must be from {-len(layers)} to {len(layers) - 1}. Received: "
                f"layer={layer}"
            )
        chosen = layers[layer].self_attention
        with recorded_attention() as record:
            self(inputs, training=False)
        if chosen not in record:
            raise ValueError(
                f"The attention of layer {layer} has no weights to show: it is "
                f"{type(chosen).__name__}."
            )
        return record[chosen][0]


def check_pooling(pooling):
    """Raises `ValueError` unless `pooling` is "mean" or "class_token"."""
    if pooling not in ("mean", "class_token"):
        raise ValueError(
            f"`pooling` must be 'mean' or 'class_token'. Received: pooling={pooling!r}"
        )
