"""Translations of sentences that are longer than any in training.

    KERAS_BACKEND=jax python examples/why/lengths.py --plot lengths.png

Both sides of a training pair have at most eight tokens. The paper chose sinusoids
"because it may allow the model to extrapolate to sequence lengths longer than the ones
encountered during training" (3.5); learned position vectors stand beside them.
"""

import keras_transformer.quiet

import corpora
import keras
import report
import translation

SHORT, LONG = 9, 20  # Most tokens in training and in the test, the end counted.


def groups_of(pairs):
    """Returns places in pairs by their longer side: {(5, 6): [0, 3, ...], ...}."""
    found = {}
    for place, pair in enumerate(pairs):
        last = (max(map(len, pair)) + 1) // 2 * 2
        found.setdefault((last - 1, last), []).append(place)
    return {bounds: found[bounds] for bounds in sorted(found)}


def measure(kind, corpus, options, seed):
    """Trains a model; returns (right, BLEU, length by the reference's) by length."""
    keras.utils.set_random_seed(seed)
    sizes = {"positions": kind, "max_positions": LONG}
    model = translation.make_model(corpus, dropout=0.0, **sizes)
    translation.fit(model, corpus, options.updates, smoothing=0.0, length=SHORT)
    texts, found = translation.translate(model, corpus.test, corpus, LONG), {}
    for bounds, places in groups_of(corpus.test).items():
        group = [texts[place] for place in places]
        pairs = [corpus.test[place] for place in places]
        bleu = translation.bleu(group, pairs)
        references = [" ".join(target) for _, target in pairs]
        right = sum(map(str.__eq__, group, references)) / len(group)
        found[bounds] = right, bleu.score, bleu.sys_len / bleu.ref_len
    return found


def draw(found, path):
    """Draws the three figures over the length of a sentence."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    names = ("right", "BLEU", "length by the reference's")
    for place, (ax, name) in enumerate(zip(figure.subplots(1, 3), names, strict=True)):
        for kind, runs in found.items():
            lengths = [sum(bounds) / 2 for bounds in runs[0]]
            means = [sum(run[b][place] for run in runs) / len(runs) for b in runs[0]]
            ax.plot(lengths, means, "o-", label=kind)
        ax.axvline(SHORT - 0.5, color="gray", linestyle=":")
        ax.set(xlabel="tokens", title=name, ylim=(0, None))
    ax.legend()
    figure.savefig(path, dpi=110)


def main(arguments=None):
    kinds = ("sinusoidal", "learned")
    sizes = {"pairs": 6000, "tests": 1000, "updates": 1200, "seeds": 1}
    parser = report.parser(__doc__, kinds=kinds, **sizes)
    corpora.add_flags(parser)
    parser.add_argument("--plot", help="file of a picture")
    options, found = parser.parse_args(arguments), {}
    corpus = corpora.load(options, SHORT, LONG)
    report.show(["positions", "tokens", "right", "BLEU", "length"], [])
    for kind in options.kinds:
        seeds = range(1, 1 + options.seeds)
        runs = found[kind] = [measure(kind, corpus, options, seed) for seed in seeds]
        for bounds in runs[0]:
            cells = zip(*(run[bounds] for run in runs), strict=True)
            report.show_rows([[kind, "{} to {}".format(*bounds), *map(list, cells)]])
    if options.plot:
        draw(found, options.plot)
    return found


if __name__ == "__main__":
    main()
