"""Regularisation of section 5.4: each kind taken away, and more label smoothing.

    KERAS_BACKEND=jax python examples/why/regularisation.py
    python examples/why/regularisation.py --train train.en-fr.tsv --test valid.en-fr.tsv

The section announces three kinds and has two headings, residual dropout and label
smoothing. Under the first stand two places of dropout: the output of each sub-layer,
and the sums of embeddings and positions. So here they are three.
"""

import keras_transformer.quiet

import corpora
import keras
import report
import translation

import keras_transformer as kt

EVERY = {"sub-layers": 0.1, "embeddings": 0.1, "smoothing": 0.1}
SETTINGS = {
    "all three": EVERY,
    "smoothing 0": EVERY | {"smoothing": 0.0},
    "smoothing 0.2": EVERY | {"smoothing": 0.2},
    "no dropout of sub-layers": EVERY | {"sub-layers": 0.0},
    "no dropout of embeddings": EVERY | {"embeddings": 0.0},
    "none of them": dict.fromkeys(EVERY, 0.0),
}


def make_model(corpus, rates):
    """Returns a model in which embeddings have a rate of dropout of their own."""

    class Model(kt.Transformer):
        def make_embedding(self, name, vocabulary_size):
            rate = rates["embeddings"]
            return kt.PositionalEmbedding(
                vocabulary_size, self.config.d_model, dropout_rate=rate, name=name
            )

    return translation.make_model(corpus, Model, rates["sub-layers"])


def main(arguments=None):
    sizes = {"pairs": 1000, "tests": 512, "updates": 300, "seeds": 3}
    parser = report.parser(__doc__, settings=tuple(SETTINGS), **sizes)
    corpora.add_flags(parser)
    options, found = parser.parse_args(arguments), {}
    corpus = corpora.load(options)
    heading = ["", "training perplexity", "perplexity", "accuracy", "BLEU"]
    report.show(heading, [])
    for name in options.settings:
        rates = SETTINGS[name]
        found[name] = []
        for seed in range(1, 1 + options.seeds):
            keras.utils.set_random_seed(seed)
            model = make_model(corpus, rates)
            translation.fit(model, corpus, options.updates, rates["smoothing"])
            trained, _ = translation.forced(model, corpus.train[:256], corpus)
            test = model, corpus.test, corpus
            bleu = translation.bleu(translation.translate(*test), corpus.test).score
            scores = *translation.forced(*test), bleu
            found[name].append((trained, *scores))
        report.show_rows([[name, *map(list, zip(*found[name], strict=True))]])
    return found


if __name__ == "__main__":
    main()
