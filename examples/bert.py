"""BERT: an encoder learns from hidden words, then to classify sentences.

Devlin et al., 2019, https://arxiv.org/abs/1810.04805: hidden words are predicted from
the words on both sides (task 1 of section 3.1). Then the same embedding and encoder
layers get another head. The sentences are those of classify_sentences.py.

    python examples/bert.py --files train.tsv.gz valid.tsv.gz
"""

import keras_transformer.quiet

import keras
import numpy as np
from classify_sentences import (
    CONFIG,
    FIRST,
    accuracy_of,
    classifier,
    features_and_ids,
    read_options,
)
from encoder_parts import last_attention

import keras_transformer as kt
from keras_transformer import plots

MASK = FIRST - 1
MASKED, REPLACED = 0.8, 0.1  # Shares of the chosen words.


def hide(ids, generator, size, rate=0.15):
    """Returns ids with some words hidden, and the hidden ones, 0 elsewhere.

    Of the chosen words 80 % become the mask, 10 % a random word (appendix A.1).
    """
    chosen = (generator.random(ids.shape) < rate) & (ids >= FIRST)
    lot = generator.random(ids.shape)
    random_ids = generator.integers(FIRST, size, ids.shape, ids.dtype)
    shown = np.where(chosen & (lot < MASKED), MASK, ids)
    is_replaced = chosen & (lot >= MASKED) & (lot < MASKED + REPLACED)
    return np.where(is_replaced, random_ids, shown), np.where(chosen, ids, 0)


class HiddenWords(keras.utils.PyDataset):
    """Batches with hidden words, in a new order and with new masks every epoch."""

    def __init__(self, ids, size, batch_size=64, seed=0):
        super().__init__()
        self.ids, self.size, self.batch_size, self.seed = ids, size, batch_size, seed
        self.epoch = -1
        self.on_epoch_end()

    def __len__(self):
        return -(-len(self.ids) // self.batch_size)

    def __getitem__(self, index):
        rows = self.order[index * self.batch_size :][: self.batch_size]
        # Any worker makes the same batch of a number.
        generator = np.random.default_rng((self.seed, self.epoch, index))
        return hide(self.ids[rows], generator, self.size)

    def on_epoch_end(self):
        self.epoch += 1
        generator = np.random.default_rng((self.seed, self.epoch))
        self.order = generator.permutation(len(self.ids))


def make_models(size, config=CONFIG):
    """Returns a model of hidden words and a classifier, with one encoder in common.

    The first maps ids (B, S) to logits (B, S, V): its output matrix is the embedding's.
    """
    ids = keras.Input((None,), dtype="int32", name="ids")
    embedding = kt.PositionalEmbedding(
        size,
        config.d_model,
        dropout_rate=config.dropout_rate,
        pad_id=0,
        name="embedding",
    )
    states = kt.EncoderStack(config, name="stack")(embedding(ids))
    hidden = kt.ExactModel(ids, embedding(states, reverse=True))
    return hidden, classifier(ids, states, config)


def main(arguments=None):
    description = __doc__.splitlines()[0]
    options, train, valid = read_options(description, arguments, pretrain=10)
    features, ids, valid_ids = features_and_ids(train, valid, number=1)
    size = FIRST + len(features)
    hidden, model = make_models(size)
    loss, metrics = kt.MaskedCrossentropy(), [kt.MaskedAccuracy()]
    hidden.compile("adam", loss, metrics=metrics, jit_compile=False)
    hidden.fit(HiddenWords(ids, size), epochs=options.pretrain, verbose=2)
    shown, words = hide(valid_ids, np.random.default_rng(1), size)
    _, found = hidden.evaluate(shown, words, verbose=0)
    data = ids, train[1], valid_ids, valid[1]
    accuracy = accuracy_of(model, *data, options.epochs)
    print(f"right: {found:.1%} of the hidden words, {accuracy:.1%} of the classes")
    words = valid[0][0][:48]
    weights = last_attention(model, valid_ids[:1, : len(words)])[0]
    plots.attention(weights.mean(axis=0), words, words).savefig(options.picture)
    return accuracy, found


if __name__ == "__main__":
    main()
