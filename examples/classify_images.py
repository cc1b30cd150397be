"""Image classification with a Vision Transformer, as a functional model.

Section 3.1 of Dosovitskiy et al., 2021, https://arxiv.org/abs/2010.11929.

    python examples/classify_images.py --images DIRECTORY --patch-size 4

DIRECTORY holds files of MNIST: {train,valid}-{images-idx3,labels-idx1}-ubyte.gz.
Default: the 1,797 images of scikit-learn (`pip install scikit-learn`).
"""

import argparse
import gzip
from pathlib import Path
import keras_transformer.quiet

import keras
import numpy as np
from encoder_parts import ClassToken, PatchEmbedding, last_attention
from keras import ops

import keras_transformer as kt
from keras_transformer import plots

CONFIG = kt.EncoderConfig(
    num_layers=4, d_model=64, d_ff=128, num_heads=4, norm_first=True, activation="gelu"
)


def read_idx(path):
    """Returns the array of a file of the IDX format."""
    data = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(data, ">i4", count=data[3], offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)


def read_images(directory):
    """Yields images (N, height, width, 1), in [0, 1], and classes, for each part."""
    for part in ("train", "valid"):
        images = read_idx(Path(directory) / f"{part}-images-idx3-ubyte.gz")
        classes = read_idx(Path(directory) / f"{part}-labels-idx1-ubyte.gz")
        yield images[..., None].astype("float32") / 255, classes


def load_small_images():
    """Returns the same for images of 8 x 8 pixels, a fifth of them for validation."""
    from sklearn.datasets import load_digits

    images, classes = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    is_valid = np.arange(len(images)) % 5 == 0
    return [(images[part], classes[part]) for part in (~is_valid, is_valid)]


class Shifted(keras.utils.PyDataset):
    """Batches of the images in a new order, each shifted by up to `most` pixels."""

    def __init__(self, images, classes, most, batch_size=64):
        super().__init__()
        self.images, self.classes, self.most = images, classes, most
        self.batch_size, self.rng = batch_size, np.random.default_rng(1)
        self.on_epoch_end()

    def __len__(self):
        return -(-len(self.images) // self.batch_size)

    def __getitem__(self, index):
        rows = self.order[index * self.batch_size :][: self.batch_size]
        moves = self.rng.integers(-self.most, self.most + 1, (len(rows), 2))
        pairs = zip(self.images[rows], moves, strict=True)
        moved = [np.roll(image, move, axis=(0, 1)) for image, move in pairs]
        return np.stack(moved), self.classes[rows]

    def on_epoch_end(self):
        self.order = self.rng.permutation(len(self.images))


def make_model(
    image_shape, patch_size, num_classes=10, pooling="class_token", config=CONFIG
):
    """Returns a model from images (B, height, width, channels) to logits (B, classes).

    The classes are computed from the last state of a class token before the patches, or
    from the mean of all last states (appendix D.3 of Dosovitskiy et al., 2021).
    """
    images = keras.Input(image_shape, name="images")
    patches = PatchEmbedding(image_shape, patch_size, config.d_model)
    count, states = patches.num_patches, patches(images)
    if pooling == "class_token":
        count, states = count + 1, ClassToken(name="class_token")(states)
    positions = kt.PositionalEncoding("learned", count, config.dropout_rate)
    states = kt.EncoderStack(config, name="stack")(positions(states))
    is_token = pooling == "class_token"
    state = states[:, 0] if is_token else ops.mean(states, axis=1)
    state = kt.layers.Dropout(config.dropout_rate)(state)
    logits = keras.layers.Dense(num_classes, name="logits")(state)
    return keras.Model(images, logits)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", help="directory of MNIST's files")
    parser.add_argument("--patch-size", type=int, default=2, help="pixels")
    parser.add_argument("--picture", default="image.png", help="attention, drawn")
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(1)
    path = options.images
    train, valid = read_images(path) if path else load_small_images()
    model = make_model(train[0].shape[1:], options.patch_size)
    batches = Shifted(*train, most=2 if path else 0)  # Small ones have no margin.
    steps = options.epochs * len(batches)
    warm_up = {"warmup_target": 0.002, "warmup_steps": 1 + steps // 10}
    rate = keras.optimizers.schedules.CosineDecay(0.0, steps, **warm_up)
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.01)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    model.fit(batches, validation_data=valid, epochs=options.epochs, verbose=2)
    accuracy = model.history.history["val_accuracy"][-1]
    print(f"right: {accuracy:.1%} of {len(valid[0])} images")
    # The attention of the class token to the patches, as an image.
    weights = last_attention(model, valid[0][:1])[0, :, 0, 1:].mean(axis=0)
    grid = weights.reshape(valid[0].shape[1] // options.patch_size, -1)
    plots.attention(grid).savefig(options.picture)
    return accuracy


if __name__ == "__main__":
    main()
