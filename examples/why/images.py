"""A convolutional network beside the Vision Transformer, at growing amounts of data.

    python examples/why/images.py --plot images.png
    python examples/why/images.py --images DIRECTORY --amounts 100 1000 8975

Without DIRECTORY (of MNIST's files, see classify_images.py): scikit-learn's digits.
Every training has as many updates, whatever the amount of data.
"""

import sys
from pathlib import Path
import keras_transformer.quiet

import keras
import numpy as np
import report
from keras import ops

sys.path.append(str(Path(__file__).parents[1]))

import classify_images  # noqa: E402


def convolutional(shape, patch):
    """Returns pairs of convolutions of size 3, each pair halving height and width."""
    model = keras.Sequential([keras.Input(shape)])
    for filters in (32, 48, 80):
        for _ in range(2):
            layer = keras.layers.Conv2D(filters, 3, padding="same", activation="gelu")
            model.add(layer)
        model.add(keras.layers.MaxPooling2D(2))
    model.add(keras.layers.GlobalAveragePooling2D())
    model.add(keras.layers.Dropout(0.1))
    model.add(keras.layers.Dense(10))
    return model


KINDS = {"convolutions": convolutional, "Transformer": classify_images.make_model}


def compiled(model, updates):
    """Returns a model, compiled for so many updates."""
    warm_up = {"warmup_target": 0.002, "warmup_steps": 1 + updates // 10}
    rate = keras.optimizers.schedules.CosineDecay(0.0, updates, **warm_up)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # XLA would compile for longer than it trains; JAX has nothing else.
    is_jax = keras.backend.backend() == "jax"
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.01)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=is_jax)
    return model


def accuracy(model, start, train, test):
    """Trains from the weights `start`; returns the share of the test that is right."""
    model.set_weights(start)
    for variable in model.optimizer.variables:
        variable.assign(ops.zeros_like(variable))
    model.fit(*train, 64, shuffle=False, verbose=0)
    return model.evaluate(*test, 256, verbose=0)[1]


def drawn(data, amount, count, rng):
    """Returns `count` of so many of the images, each about equally often."""
    kept = rng.permutation(len(data[0]))[:amount]
    rounds = [rng.permutation(kept) for _ in range(1 + count // len(kept))]
    order = np.concatenate(rounds)[:count]
    return data[0][order], data[1][order]


def draw(found, path):
    """Draws the mean accuracies over the amounts, and their range."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    ax = figure.subplots()
    for kind in KINDS:
        amounts = [amount for name, amount in found if name == kind]
        runs = np.array([found[kind, amount] for amount in amounts])
        ax.plot(amounts, runs.mean(1), marker="o", label=kind)
        ax.fill_between(amounts, runs.min(1), runs.max(1), alpha=0.2)
    ax.set(xlabel="training images", ylabel="accuracy on other images", xscale="log")
    ax.legend(loc="lower right")
    figure.savefig(path, dpi=110)


def main(arguments=None):
    amounts = (50, 100, 200, 400, 800, 1437)
    sizes = {"patch": 2, "updates": 400, "seeds": 3, "amounts": amounts}
    parser = report.parser(__doc__, **sizes)
    parser.add_argument("--images", help="directory of MNIST's files")
    parser.add_argument("--plot", help="file of a picture")
    options = parser.parse_args(arguments)
    path, found = options.images, {}
    read, small = classify_images.read_images, classify_images.load_small_images
    train, test = read(path) if path else small()
    updates, models = options.updates, {}
    for kind, make in KINDS.items():
        models[kind] = compiled(make(train[0].shape[1:], options.patch), updates)
        print(f"{kind}: {models[kind].count_params():,} parameters")
    report.show(["images", *KINDS], [])
    for amount in options.amounts:
        for kind, make in KINDS.items():
            found[kind, amount] = []
            for seed in range(1, 1 + options.seeds):
                keras.utils.set_random_seed(seed)
                start = make(train[0].shape[1:], options.patch).get_weights()
                part = drawn(train, amount, 64 * updates, np.random.default_rng(seed))
                result = accuracy(models[kind], start, part, test)
                found[kind, amount].append(result)
        report.show_rows([[amount, *(found[kind, amount] for kind in KINDS)]])
    if options.plot:
        draw(found, options.plot)
    return found


if __name__ == "__main__":
    main()
