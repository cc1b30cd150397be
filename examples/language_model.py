"""A character language model: bits per character, a sample, a learning curve.

Without arguments it learns generated English sentences, in a minute. It is evaluated on
the last tenth of a text, such as Tiny Shakespeare
(https://github.com/karpathy/char-rnn):

    python examples/language_model.py --text plays --context 128 --layers 4 --width 192
"""

import argparse
import gzip
import math
from pathlib import Path
import keras_transformer.quiet

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer import plots
from keras_transformer.apps.quickstart.grammar import generate_pairs

START, UNKNOWN, FIRST = 1, 3, 4


def read(path):
    """Returns a file's text, or 4,000 sentences of the package's grammar."""
    if path is None:
        return "".join(f"{text}\n" for text, _ in generate_pairs("train", 4000))
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
        return file.read()


def rows_of(ids, context, step):
    """Returns inputs and targets in rows that begin every `step` ids."""
    starts = np.arange(0, len(ids) - context + 1, step)
    ids_out = np.asarray(ids)[starts[:, None] + np.arange(context)]
    return np.pad(ids_out[:, :-1], [(0, 0), (1, 0)], constant_values=START), ids_out


def make_model(vocabulary_size, width, layers, updates):
    """Returns a model, compiled with a warm-up and a decay of the learning rate."""
    keras.utils.set_random_seed(1)
    config = kt.LanguageModelConfig(
        vocabulary_size=vocabulary_size,
        num_layers=layers,
        d_model=width,
        d_ff=4 * width,
        num_heads=4,
        norm_first=True,
        attention_dropout_rate=0.0,
    )
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, updates, alpha=0.1, warmup_target=0.3 / width, warmup_steps=100
    )
    model, adam = kt.LanguageModel(config), kt.Adam(rate, beta_2=0.99)
    model.compile(adam, kt.MaskedCrossentropy(), jit_compile=False)
    return model


def write(model, ids, length, context):
    """Continues a text in pieces, each from the last half of the context."""
    sampler = kt.LanguageSampler(model, top_k=20, min_output_length=context)
    while len(ids) < length:
        past = ids[-(context // 2) :]
        result = sampler([past], context, temperature=0.8, seed=len(ids))
        ids = ids + keras.ops.convert_to_numpy(result.ids)[0, 0, len(past) :].tolist()
    return ids


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="text file, gzipped or not")
    parser.add_argument("--tail", type=Path, help="text to score; default: a tenth")
    for name, size in {"epochs": 10, "context": 64, "layers": 2, "width": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--prompt", default="The ")
    parser.add_argument("--curve", type=Path, default=Path("language_model.png"))
    options = parser.parse_args(arguments)
    text, context = read(options.text), options.context
    cut = len(text) if options.tail else len(text) * 9 // 10
    text, tail = text[:cut], read(options.tail) if options.tail else text[cut:]
    if min(len(text), len(tail)) < context:
        parser.error(f"the text and its tail must have {context} characters or more")
    characters = sorted(set(text))
    number = {character: i for i, character in enumerate(characters, FIRST)}
    texts = [text, tail, options.prompt]
    ids, tail, prompt = ([number.get(c, UNKNOWN) for c in part] for part in texts)
    rows, scored = rows_of(ids, context, context // 2), rows_of(tail, context, context)
    updates = max(1, options.epochs * len(rows[0]) // 32)
    model = make_model(FIRST + len(characters), options.width, options.layers, updates)
    history = model.fit(*rows, 32, options.epochs, verbose=2, validation_data=scored)
    sample = write(model, prompt, 400, context)
    print("".join(characters[i - FIRST] if i >= FIRST else "?" for i in sample))
    nats = history.history["val_loss"][-1]
    print(f"{nats / math.log(2):.3f} bits ({nats:.3f} nats) per character of the tail")
    plots.training_curves(history, ["loss"]).savefig(options.curve)
    return nats


if __name__ == "__main__":
    main()
