"""The book's recurrent translator: two layers of GRUs, attention, four sentences.

    python examples/recurrent_sentences.py --pairs train.en-fr.tsv.gz --plot four.png

As in Dive into Deep Learning (https://d2l.ai): whole words, the first pairs of a file
sorted by length, dropout between layers. Prints the translations of the book's four
sentences and their BLEU (k = 2) beside sacreBLEU's, and plots the training loss (with
teacher forcing) and the attention. Without a file it trains on generated sentences.
"""

import argparse
import collections
import math
import re
import keras_transformer.quiet

import keras
import numpy as np
import recurrent_translator
import sacrebleu
from matplotlib.figure import Figure

import keras_transformer as kt
from keras_transformer.apps.quickstart.grammar import generate_pairs

FOUR = {"Go.": "Va !", "I lost.": "J'ai perdu.", "He's calm.": "Il est calme."}
FOUR |= {"I'm home.": "Je suis chez moi."}
SPECIAL = ["", "<s>", "</s>", "<?>"]  # padding, start, end, unknown: ids 0 to 3


def words_of(text):
    """Returns words in lower case, with punctuation apart."""
    return re.sub(r"(?<=\w)([,.!?])", r" \1", text.lower().replace("’", "'")).split()


def ids_of(sentences, words):
    """Returns ids (B, S), each row with its end and padding."""
    ids = {word: i for i, word in enumerate(words)}
    rows = [[ids.get(word, 3) for word in sentence] + [2] for sentence in sentences]
    return keras.utils.pad_sequences(rows, padding="post")


def ngram_bleu(prediction, label, max_order=2):
    """Returns the BLEU of one short sentence, a list of words, as in the book: 0 to 1.

        exp(min(0, 1 - |label| / |prediction|)) * prod_n p_n ** (1 / 2 ** n),

    n from 1 to `max_order`, where p_n is the share of the prediction's n-grams that are
    in the label, with counts (section "Sequence-to-Sequence Learning").
    """
    if not prediction:
        return 0.0
    score = math.exp(min(0, 1 - len(label) / len(prediction)))
    for n in range(1, min(max_order, len(prediction)) + 1):
        found, wanted = (
            collections.Counter(zip(*(words[i:] for i in range(n)), strict=False))
            for words in (prediction, label)
        )
        score *= ((found & wanted).total() / found.total()) ** (0.5**n)
    return score


def train(source, target_out, sizes, options):
    """Returns a model and the losses of its training; a tenth validates."""
    layers = {"encoder_layers": options.layers, "decoder_layers": options.layers}
    rest = {"width": 128, "units": 128, "cell": options.cell, "rate": 0.2}
    model = recurrent_translator.make_model(*sizes, **layers, **rest, tied="none")
    adam, loss = kt.Adam(3e-3, global_clipnorm=1.0), kt.MaskedCrossentropy()
    model.compile(adam, loss, jit_compile=False)
    target_in = np.pad(target_out[:, :-1], ((0, 0), (1, 0)), constant_values=1)
    rest = {"epochs": options.epochs, "batch_size": 64, "validation_split": 0.1}
    return model, model.fit((source, target_in), target_out, verbose=2, **rest)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", help="file of source<TAB>target, shortest first")
    parser.add_argument("--count", type=int, default=1500, help="pairs to train on")
    parser.add_argument("--cell", choices=("gru", "lstm"), default="gru")
    parser.add_argument("--layers", type=int, default=2, help="of encoder and decoder")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--plot", help="picture to write")
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(1)
    four, pairs = FOUR.items(), generate_pairs("train", options.count)
    if options.pairs:
        pairs = ((p.source, p.target) for p in kt.open_pairs(options.pairs).pairs())
    four, pairs = ([tuple(map(words_of, pair)) for pair in x] for x in (four, pairs))
    pairs = pairs[: options.count]
    if not options.pairs:
        four = sorted(pairs, key=lambda pair: len(pair[0]))[:: len(pairs) // 4][:4]
    order = np.random.default_rng(1).permutation(len(pairs))
    sides = [[pairs[i][side] for i in order] for side in (0, 1)]
    words = [[*SPECIAL, *dict.fromkeys(w for s in side for w in s)] for side in sides]
    rows = map(ids_of, sides, words)
    model, history = train(*rows, [len(side) for side in words], options)

    source = ids_of([source for source, _ in four], words[0])
    translator = recurrent_translator.Translator(model, beam_size=1)
    ids = translator.search(source).ids[:, 0]
    attention = keras.ops.convert_to_numpy(translator.attention(source, ids))
    figure, scores = Figure(figsize=(19, 3.6), layout="constrained"), []
    axes = figure.subplots(1, 5)
    axes[0].plot(history.epoch, history.history["loss"], ".-")
    axes[0].set_title("loss")
    for i, (given, label) in enumerate(four):
        output = [words[1][id] for id in keras.ops.convert_to_numpy(ids)[i] if id]
        looked = attention[i, : len(output), : len(given) + 1]
        ax = axes[i + 1]
        ax.imshow(looked, cmap="Blues", vmin=0.0)
        # A dollar sign is a word, not the start of a formula.
        ax.set_xticks(
            range(len(given) + 1), [*given, SPECIAL[2]], rotation=90, parse_math=False
        )
        ax.set_yticks(range(len(output)), output, parse_math=False)
        output = [word for word in output if word != SPECIAL[2]]
        bleu = sacrebleu.sentence_bleu(" ".join(output), [" ".join(label)]).score
        scores.append(ngram_bleu(output, label))
        print(" ".join(given), "=>", " ".join(output), f"({' '.join(label)})")
        print(f"    BLEU with k = 2: {scores[-1]:.3f}, sacreBLEU: {bleu:.1f}")
    if options.plot:
        figure.savefig(options.plot)
    return scores


if __name__ == "__main__":
    main()
