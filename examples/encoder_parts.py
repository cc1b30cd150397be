"""Parts that several encoders of the examples share: embeddings, a class token.

Beside them a function that reads the attention of the last layer.
"""

import math

import keras
from keras import ops

import keras_transformer as kt


@keras.saving.register_keras_serializable(package="examples")
class FeatureEmbedding(kt.PositionalEmbedding):
    """Embeds tokens (B, T, F) of several ids each, such as a word and its endings.

    The sum of the vectors of a token's features (equation 3 of Bojanowski et al., 2017,
    https://arxiv.org/abs/1607.04606) is divided by the square root of their number. 0
    is no feature; a token without any is padding.
    """

    def __init__(self, vocabulary_size, d_model, **options):
        options.setdefault("pad_id", 0)
        super().__init__(vocabulary_size, d_model, **options)

    def token_vectors(self, ids):
        ids = ops.cast(ids, "int32")
        is_feature = ops.cast(ops.not_equal(ids, self.pad_id), self.compute_dtype)
        is_feature = ops.expand_dims(is_feature, -1)  # LiteRT lacks [..., None] here.
        total = ops.sum(self.token_embedding(ids) * is_feature, axis=2)  # (B, T, D)
        number = ops.maximum(ops.sum(is_feature, axis=2), 1.0)
        return total * math.sqrt(self.d_model) * ops.rsqrt(number)

    def compute_mask(self, inputs, previous_mask):
        """Returns True where a token has a feature."""
        return ops.any(ops.not_equal(inputs, self.pad_id), axis=-1)


@keras.saving.register_keras_serializable(package="examples")
class PatchEmbedding(keras.layers.Layer):
    """Cuts images (B, height, width, C) into square patches and embeds each: (B, S, D).

    Section 3.1 of Dosovitskiy et al., 2021, https://arxiv.org/abs/2010.11929, followed
    there by a `PositionalEncoding("learned", patches.num_patches)`.

    Args:
        image_shape: Height (pixels), width (pixels) and channels of an image.
        patch_size: Side of a patch (pixels), a divisor of height and width.
        d_model: Width of the vectors, D.
    """

    def __init__(self, image_shape, patch_size, d_model, **options):
        super().__init__(**options)
        height, width, _ = image_shape
        if height % patch_size or width % patch_size:
            raise ValueError(
                "`patch_size` must divide the height and the width of `image_shape`. "
                f"Received: patch_size={patch_size}, image_shape={image_shape}"
            )
        self.image_shape = tuple(image_shape)
        self.patch_size = patch_size
        self.d_model = d_model
        self.num_patches = height // patch_size * (width // patch_size)  # S
        # A convolution whose stride is its size projects each patch.
        self.patch_map = keras.layers.Conv2D(
            d_model, patch_size, strides=patch_size, data_format="channels_last"
        )

    def build(self, input_shape=None):
        self.patch_map.build((None, *self.image_shape))

    def call(self, images):
        return ops.reshape(self.patch_map(images), (-1, self.num_patches, self.d_model))

    def get_config(self):
        names = "image_shape", "patch_size", "d_model"
        return super().get_config() | {name: getattr(self, name) for name in names}


@keras.saving.register_keras_serializable(package="examples")
class ClassToken(keras.layers.Layer):
    """Puts a learned vector before states (B, S, D); its state represents them all.

    The [CLS] token of Devlin et al., 2019, https://arxiv.org/abs/1810.04805.
    """

    def build(self, input_shape):
        normal = keras.initializers.RandomNormal(stddev=0.02)
        self.token = self.add_weight(input_shape[-1:], normal, name="token")

    def call(self, states):
        shape = (ops.shape(states)[0], 1, states.shape[-1])
        token = ops.cast(ops.convert_to_tensor(self.token), states.dtype)
        return ops.concatenate([ops.broadcast_to(token, shape), states], axis=1)

    def compute_output_shape(self, input_shape):
        batch, length, width = input_shape
        return batch, None if length is None else length + 1, width


def last_attention(model, inputs):
    """Returns the weights (B, H, S, S) of the last layer of the `EncoderStack` "stack".

    `model` must be a functional model with such a stack.
    """
    last = model.get_layer("stack").encoder_layers[-1]
    with kt.layers.recorded_attention() as record:
        model(inputs)
    return ops.convert_to_numpy(record[last.self_attention][0])
