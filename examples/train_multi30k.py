"""Recipe for Multi30k English-German, evaluated as in Wu et al. (2021).

    python examples/train_multi30k.py --train train.en-de.tsv.gz \
        --valid valid.en-de.tsv.gz --test test_2016_flickr.en-de.tsv.gz --seed 1

Needs sacremoses. Without files: a minute on generated sentences, too little to score.
The paper's text-only Transformer-Tiny has 41.02 (https://arxiv.org/abs/2105.14462),
with two GPUs, so twice the batch, and lower-case text.
"""

import argparse
from pathlib import Path
import keras_transformer.quiet

import sacrebleu
from sacremoses import MosesPunctNormalizer, MosesTokenizer

import keras_transformer as kt
from keras_transformer.apps.quickstart.grammar import generate_pairs

# The preset has the paper's sizes, dropout and average of the last 10; and pre-norm,
# 6,000 pieces, and 1,000 updates of warm-up to a learning rate of 0.004, which reaches
# the validation loss of the thirteenth epoch in the sixth. Twice as many updates as the
# paper's gain 1.0 BLEU on the validation set.
CONFIG = kt.RunConfig.preset(
    "tiny",
    epochs=1000,
    max_updates=16000,
    max_length=80,
    mixed_precision="bfloat16",
    beam_size=5,
    robust=False,
)


def tokenized_lowercased_bleu(translations, references, language="de"):
    """Returns BLEU as they compute it: Moses normalisation, tokens, lower case."""
    normalize = MosesPunctNormalizer(language).normalize
    tokenize = MosesTokenizer(language).tokenize

    def prepared(text):
        return tokenize(normalize(text), escape=False, return_str=True).lower()

    return sacrebleu.corpus_bleu(
        [prepared(text) for text in translations],
        [[prepared(text) for text in references]],
        tokenize="none",
        force=True,
    ).score


def main(arguments=None, config=CONFIG):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for split in ("train", "valid", "test"):
        parser.add_argument(f"--{split}", help=f"{split} pairs, source<TAB>target")
    parser.add_argument("--run", default="runs/multi30k", help="run directory")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    files = [options.train, options.valid, options.test]
    if any(files) and not all(files):
        parser.error("give --train, --valid and --test, or none of them")
    changes = {"seed": options.seed}
    if not any(files):
        sizes = {"train": 2000, "valid": 200, "test": 200}
        files = [list(generate_pairs(*split)) for split in sizes.items()]
        changes["max_updates"] = min(200, config.training.max_updates)
    config = config.replace(training=config.training.replace(**changes))
    training, validation, test = map(kt.open_pairs, files)
    translator = kt.train(training, options.run, config, validation)
    pairs = [(pair.source, pair.target) for pair in test.pairs()]
    output = Path(options.run) / "test.translations.txt"
    print(kt.evaluate_translator(translator, pairs, output, show_progress=True))
    lines = output.read_text(encoding="utf-8").splitlines()
    bleu = tokenized_lowercased_bleu(lines, [target for _, target in pairs])
    print(f"tokenised, lowercased BLEU {bleu:.2f}")
    return bleu


if __name__ == "__main__":
    main()
