"""Image captions: an encoder reads patches, a decoder names the digits.

    python examples/caption_images.py --plot captions.png

An image shows one to three of scikit-learn's digits; its caption names them from left
to right: "three seven". The test images contain new digits. The plot shows the
attention of the decoder for each word.

The encoder is that of the Vision Transformer (Dosovitskiy et al., 2021, section 3.1,
https://arxiv.org/abs/2010.11929), the decoder that of Vaswani et al., 2017.
"""

import argparse
import keras_transformer.quiet

import keras
import numpy as np
from encoder_parts import PatchEmbedding
from keras import ops
from sklearn.datasets import load_digits

import keras_transformer as kt

WORDS = "zero one two three four five six seven eight nine".split()
PAD, START, END, FIRST = 0, 1, 2, 4  # Ids; those of the words begin at FIRST.
WIDTH, PATCH_SIZE, MOST = 24, 4, 3  # Pixels, pixels, digits.
CONFIG = kt.EncoderConfig(
    num_layers=2, d_model=64, d_ff=128, num_heads=4, norm_first=True,
    attention_dropout_rate=0.0, activation_dropout_rate=0.0,
)  # fmt: skip


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


def make_model(image_shape, patch_size, vocabulary_size, config=CONFIG):
    """Returns a model from (images, words so far (B, T)) to logits (B, T, V)."""
    rate = config.dropout_rate
    images = keras.Input(image_shape, name="images")
    words = keras.Input((None,), dtype="int32", name="words")
    patches = PatchEmbedding(image_shape, patch_size, config.d_model, name="patches")
    count = patches.num_patches
    positions = kt.PositionalEncoding("learned", count, rate, name="positions")
    seen = kt.EncoderStack(config, name="encoder")(positions(patches(images)))
    embedding = kt.PositionalEmbedding(
        vocabulary_size, config.d_model, dropout_rate=rate, pad_id=PAD
    )
    states = embedding(words)
    for i in range(config.num_layers):
        layer = kt.DecoderLayer(**config.layer_options(), name=f"decoder_{i}")
        states = layer(states, seen)
    if config.norm_first:
        states = kt.layers.LayerNormalization(epsilon=config.layer_norm_epsilon)(states)
    logits = keras.layers.Dense(vocabulary_size, name="logits")(states)
    return kt.ExactModel((images, words), logits)


def captioner(model, most, beam_size=4):
    """Returns a function from images to the `DecodingResult` of their captions.

    A caption has at most `most` ids, the end counted. Each step reads all words again.
    """
    seen, words = model.get_layer("encoder").output, model.inputs[1]
    encode, decode = (
        keras.Model(inputs, outputs)
        for inputs, outputs in ((model.inputs[0], seen), ((seen, words), model.output))
    )

    def step(ids, state):
        seen, words, position = state
        words = ops.where(ops.arange(most) == position, ids[:, None], words)
        logits = ops.take(decode((seen, words)), position, axis=1)
        return logits, (seen, words, position + 1)

    def search(images):
        seen, count = encode(images), ops.shape(images)[0]
        words = ops.full((count, most), PAD, "int32")
        state = seen, words, ops.zeros((), "int32")
        return kt.beam_search(
            *kt.reordering(step, state, beam_size),
            beam_size=beam_size,
            max_lengths=ops.full((count,), most, "int32"),
            limit=most,
            special_ids=kt.SpecialIds(PAD, START, END),
            length_penalty=0.6,
        )

    return search


def attention(model, images, words):
    """Returns how the last decoder layer attends to the patches (B, H, T, S)."""
    *_, last = (x for x in model.layers if isinstance(x, kt.DecoderLayer))
    with kt.layers.recorded_attention() as record:
        model((images, words))
    return ops.convert_to_numpy(record[last.cross_attention][0])


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
    model = make_model((8, WIDTH, 1), PATCH_SIZE, FIRST + len(WORDS))
    steps = options.epochs * len(images) // 32
    rate = keras.optimizers.schedules.CosineDecay(0.002, steps)
    optimizer = keras.optimizers.Adam(rate)
    model.compile(optimizer, kt.MaskedCrossentropy(), jit_compile=False)
    inputs, targets = (images, captions[:, :-1]), captions[:, 1:]
    model.fit(inputs, targets, batch_size=32, epochs=options.epochs, verbose=2)
    found = captioner(model, MOST + 1)(new)
    found = ops.convert_to_numpy(found.ids)[:, 0]
    right = np.array([spell(a) == spell(b) for a, b in zip(found, asked, strict=True)])
    count = (asked >= FIRST).sum(axis=1)
    each = ", ".join(f"of {n}: {right[count == n].mean():.1%}" for n in (1, 2, 3))
    print(f"captions right: {right.mean():.1%}; {each}")
    if options.plot:
        row = np.argmax(10 * right + count)  # As many digits as can be, and right.
        weights = attention(model, new[[row]], asked[[row], :-1])
        draw(new[row], spell(asked[row]).split(), weights[0], options.plot)
    return right.mean()


if __name__ == "__main__":
    main()
