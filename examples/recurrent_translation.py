"""A recurrent translator with attention beside the Transformer, on the same pairs.

    python examples/recurrent_translation.py --train train.en-fr.tsv.gz --pairs 20000 \
        --valid valid.en-fr.tsv.gz --test test.en-fr.tsv.gz --epochs 30 --size small

Prints the BLEU of each, its training time and its time per sentence by length, and
draws what it attends to in one sentence: recurrent.png, transformer.png. Without files
it trains on generated sentences. Needs the extra `plots`.
"""

import argparse
import functools
import random
import tempfile
import time
from pathlib import Path
import keras_transformer.quiet

import keras_transformer as kt
from keras_transformer import plots
from keras_transformer.quickstart.grammar import write_corpus

MODELS = {
    "recurrent": kt.RecurrentConfig.preset,
    "transformer": functools.partial(kt.TransformerConfig.preset, norm_first=True),
}
CONFIG = kt.RunConfig(
    tokenizer=kt.TokenizerConfig(vocabulary_size=4000),
    data=kt.DataConfig(batch_tokens=1000),
    training=kt.TrainingConfig(warmup_steps=200, learning_rate_scale=0.5),
)


def sampled(path, count, folder):
    """Writes some of a file's pairs, drawn at random, and opens them."""
    lines = [f"{pair.source}\t{pair.target}\n" for pair in kt.open_pairs(path).pairs()]
    chosen = Path(folder) / "sampled.tsv"
    lines = random.Random(1).sample(lines, min(count, len(lines)))
    chosen.write_text("".join(lines), encoding="utf-8")
    return kt.open_pairs(chosen)


def print_times(translator):
    """Prints the times of sentences as long (tokens) as their translations."""
    config = translator.config.replace(max_extra_length=0, min_output_length=80)
    translator = kt.Translator(translator.model, translator.tokenizers, config)
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
    parser.add_argument("--size", choices=("tiny", "small", "base"), default="tiny")
    parser.add_argument("--pictures", type=Path, default=Path("."), help="folder")
    options = parser.parse_args(arguments)
    files, found = [options.train, options.valid, options.test], {}
    if any(files) and not all(files):
        parser.error("give --train, --valid and --test, or none of them")
    options.pictures.mkdir(parents=True, exist_ok=True)
    kept = 1 + options.epochs // 10
    training = config.training.replace(epochs=options.epochs, average_checkpoints=kept)
    with tempfile.TemporaryDirectory() as folder:
        if not any(files):
            sizes = {"train": options.pairs, "valid": 100, "test": 100}
            files = write_corpus(folder, "fr", **sizes).values()
        path, valid, test = files
        text = sampled(path, options.pairs, folder)
        pairs = [(pair.source, pair.target) for pair in kt.open_pairs(test).pairs()]
        for name, preset in MODELS.items():
            model = preset(options.size, dropout_rate=0.3)
            run = config.replace(model=model, training=training)
            begin = time.perf_counter()
            translator = kt.train(text, Path(folder) / name, run, kt.open_pairs(valid))
            minutes = (time.perf_counter() - begin) / 60
            found[name] = kt.evaluate(translator, pairs)
            print(f"{name}: {minutes:.1f} minutes of training\n{found[name]}")
            print_times(translator)
            seen = translator.align([pairs[len(pairs) // 2][0]])[0]
            drawn = seen.attention, seen.target_tokens, seen.source_tokens
            plots.attention(*drawn).savefig(options.pictures / f"{name}.png")
    return found


if __name__ == "__main__":
    main()
