"""Which digits are in the image? An encoder reads patches, a decoder spells them out.

    python examples/caption_images.py --plot captions.png

One to three of scikit-learn's digits stand side by side; the caption names them from
left to right: "three seven". The images for the test hold digits that were never seen.
The picture shows where the decoder looks as it chooses each word.
"""

import argparse
import keras_transformer.quiet

import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_transformer as kt

WORDS = "zero one two three four five six seven eight nine".split()
PAD, START, END, FIRST = 0, 1, 2, 4  # Ids; those of the words begin at FIRST.
WIDTH, PATCH_SIZE, MOST = 24, 4, 3  # Pixels, pixels, digits.


def compose(digits, classes, count, rng):
    """Returns images (B, 8, WIDTH, 1), in [0, 1], and captions (B, MOST + 2)."""
    images = np.zeros((count, 8, WIDTH, 1), "float32")
    captions = np.full((count, MOST + 2), PAD)
    for image, caption in zip(images, captions, strict=True):
        chosen = rng.integers(len(digits), size=rng.integers(1, MOST + 1))
        image[:, : 8 * len(chosen), 0] = np.hstack(digits[chosen])
        caption[: len(chosen) + 2] = [START, *(FIRST + classes[chosen]), END]
    return images, captions


def spell(ids):
    return " ".join(WORDS[i - FIRST] for i in ids if i >= FIRST)


def make_model():
    config = kt.TransformerConfig(
        target_vocabulary_size=FIRST + len(WORDS), tied_embeddings="two-way",
        num_encoder_layers=2, num_decoder_layers=2, d_model=64, d_ff=128, num_heads=4,
        norm_first=True, attention_dropout_rate=0.0, activation_dropout_rate=0.0,
    )  # fmt: skip
    return kt.ImageCaptioner(config, (8, WIDTH, 1), PATCH_SIZE)


def draw(image, words, weights, path):
    """Draws the attention (H, T, S) of each of T words on the image, as a file."""
    from matplotlib.figure import Figure

    weights = weights.mean(axis=0).reshape(-1, 8 // PATCH_SIZE, WIDTH // PATCH_SIZE)
    figure = Figure(figsize=(6, 1.7 * len(words)), layout="constrained")
    axes = figure.subplots(len(words), squeeze=False)[:, 0]
    for ax, word, grid in zip(axes, words, weights, strict=False):
        ax.imshow(image[..., 0], cmap="gray_r")
        place = (-0.5, WIDTH - 0.5, 7.5, -0.5)
        ax.imshow(grid, cmap="Reds", alpha=0.5, extent=place)
        ax.set(title=word, xticks=[], yticks=[])
    figure.savefig(path)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", help="picture of the attention, such as captions.png")
    parser.add_argument("--images", type=int, default=10000)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(1)
    digits, classes = load_digits(return_X_y=True)
    digits, is_new = digits.reshape(-1, 8, 8) / 16, np.arange(len(digits)) % 5 == 0
    rng = np.random.default_rng(1)
    images, captions = compose(digits[~is_new], classes[~is_new], options.images, rng)
    new, asked = compose(digits[is_new], classes[is_new], options.images // 10, rng)
    model, steps = make_model(), options.epochs * len(images) // 32
    rate = keras.optimizers.schedules.CosineDecay(0.002, steps)
    optimizer = keras.optimizers.Adam(rate)
    model.compile(optimizer, kt.MaskedCrossentropy(), jit_compile=False)
    inputs, targets = (images, captions[:, :-1]), captions[:, 1:]
    model.fit(inputs, targets, batch_size=32, epochs=options.epochs, verbose=2)
    decoding = kt.DecodingConfig(beam_size=4, max_output_length=MOST + 1)
    generator = kt.Generator(model, decoding)
    found = keras.ops.convert_to_numpy(generator.search(new).ids)[:, 0]
    right = np.array([spell(a) == spell(b) for a, b in zip(found, asked, strict=True)])
    count = (asked >= FIRST).sum(axis=1)
    each = ", ".join(f"of {n}: {right[count == n].mean():.1%}" for n in (1, 2, 3))
    print(f"captions right: {right.mean():.1%}; {each}")
    if options.plot:
        row = np.argmax(10 * right + count)  # As many digits as can be, and right.
        weights = generator.attention(new[[row]], asked[[row], 1:])
        words = spell(asked[row]).split()
        draw(new[row], words, keras.ops.convert_to_numpy(weights)[0], options.plot)
    return right.mean()


if __name__ == "__main__":
    main()
