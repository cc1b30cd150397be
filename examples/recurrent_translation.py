"""A recurrent translator with attention beside the Transformer, on the same pairs.

    python examples/recurrent_translation.py --train train.en-fr.tsv.gz --pairs 20000 \
        --valid valid.en-fr.tsv.gz --test test.en-fr.tsv.gz --epochs 30 --size small

Prints the BLEU of each, its training time and its time per sentence by length, and
plots the attention in one sentence (recurrent.png, transformer.png); `--export FOLDER`
writes both as SavedModels. Without files it trains on generated sentences.
"""

import argparse
import random
import tempfile
import time
from pathlib import Path
import keras_transformer.quiet

import keras
import recurrent_translator as recurrent

import keras_transformer as kt
from keras_transformer import plots
from keras_transformer.apps.quickstart.grammar import generate_pairs

WIDTHS = {"tiny": 128, "small": 256}  # Of the embeddings and of the GRUs.
CONFIG = kt.RunConfig(
    tokenizer=kt.TokenizerConfig(vocabulary_size=4000),
    data=kt.DataConfig(batch_tokens=1000),
    training=kt.TrainingConfig(warmup_steps=200, learning_rate=0.003, robust=False),
)


def sampled(path, count, folder):
    """Writes and opens random pairs of a file."""
    lines = [f"{pair.source}\t{pair.target}\n" for pair in kt.open_pairs(path).pairs()]
    chosen = Path(folder) / "sampled.tsv"
    lines = random.Random(1).sample(lines, min(count, len(lines)))
    chosen.write_text("".join(lines), encoding="utf-8")
    return kt.open_pairs(chosen)


def train_recurrent(text, valid, config, size, folder):
    sizes = {"width": WIDTHS[size], "units": WIDTHS[size], "rate": 0.3}
    keras.utils.set_random_seed(config.training.seed)
    return recurrent.train(text, valid, config, sizes)


def train_transformer(text, valid, config, size, folder):
    rates = {"attention_dropout_rate": 0.1, "activation_dropout_rate": 0.1}
    sizes = kt.TransformerConfig.preset(
        size, norm_first=True, dropout_rate=0.3, **rates
    )
    return kt.train(text, Path(folder) / "run", config.replace(model=sizes), valid)


MODELS = {"recurrent": train_recurrent, "transformer": train_transformer}


def print_times(translator):
    """Prints times per sentence by length (tokens)."""
    parts = translator.model, translator.tokenizers
    if isinstance(translator, kt.Translator):
        config = translator.config.replace(max_extra_length=0, min_output_length=80)
        translator = kt.Translator(*parts, config)
    else:
        translator = recurrent.Translator(*parts, extra=0, shortest=80)
    translator(["a"])  # Builds the graph.
    for length in (10, 20, 40, 80):
        begin = time.perf_counter()
        for _ in range(3):
            translator(["a " * (length - 1)])  # The end is a token, too.
        milliseconds = 1000 * (time.perf_counter() - begin) / 3
        print(f"{length} tokens to {length} tokens: {milliseconds:.0f} ms")


def main(arguments=None, config=CONFIG):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for split in ("train", "valid", "test"):
        parser.add_argument(f"--{split}", help=f"{split} pairs, source<TAB>target")
    parser.add_argument("--pairs", type=int, default=3000, help="to train on")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--size", choices=tuple(WIDTHS), default="tiny")
    parser.add_argument("--pictures", type=Path, default=Path("."), help="folder")
    parser.add_argument("--export", type=Path, help="folder of the SavedModels")
    options = parser.parse_args(arguments)
    files, found = [options.train, options.valid, options.test], {}
    if any(files) and not all(files):
        parser.error("give --train, --valid and --test, or none of them")
    options.pictures.mkdir(parents=True, exist_ok=True)
    kept = 1 + options.epochs // 10
    training = config.training.replace(epochs=options.epochs, average_checkpoints=kept)
    config = config.replace(training=training)
    with tempfile.TemporaryDirectory() as folder:
        if not any(files):
            sizes = {"train": options.pairs, "valid": 100, "test": 100}
            files = [list(generate_pairs(*split)) for split in sizes.items()]
        path, valid, test = files
        text = sampled(path, options.pairs, folder)
        pairs = [(pair.source, pair.target) for pair in kt.open_pairs(test).pairs()]
        for name, train in MODELS.items():
            begin = time.perf_counter()
            given = text, kt.open_pairs(valid), config, options.size, folder
            translator = train(*given)
            minutes = (time.perf_counter() - begin) / 60
            found[name] = kt.evaluate_translator(translator, pairs)
            print(f"{name}: {minutes:.1f} minutes of training\n{found[name]}")
            print_times(translator)
            seen = translator.align([pairs[len(pairs) // 2][0]])[0]
            drawn = seen.attention, seen.target_tokens, seen.source_tokens
            plots.attention(*drawn).savefig(options.pictures / f"{name}.png")
            if options.export:
                translator.export(options.export / name / "1")
    return found


if __name__ == "__main__":
    main()
