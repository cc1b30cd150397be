"""The next word at temperatures from 0 to infinity: softmax(logits / temperature).

    python examples/why/temperature.py --plot temperature.png

The table counts what the package's `sample_tokens` draws; the picture has the formula
as lines and the counts as dots.
"""

import keras_transformer.quiet

import numpy as np
import report

import keras_transformer as kt

# How the dog's sentence goes on: logits of four words and of the end.
WORDS = {"barks": 3.0, "sleeps": 2.0, "eats": 1.5, "sings": -1.0, "(end)": 0.0}
TEMPERATURES = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0, 100.0, float("inf"))
END, FIRST = 2, 3


def probabilities(temperature):
    """Returns the softmax of the logits divided by the temperature, in float64."""
    logits = np.array(list(WORDS.values()))
    if temperature == 0:
        return (logits == logits.max()).astype("float64")
    powers = np.exp((logits - logits.max()) / temperature)
    return powers / powers.sum()


def drawn(temperature, count, seed=1):
    """Returns the share of each word among as many draws."""
    *words, end = WORDS.values()
    row = np.array([0.0, 0.0, end, *words], "float32")  # Padding, start, end, words.
    uniforms = np.random.default_rng(seed).random((count, 1))
    result = kt.sample_tokens(
        lambda ids, parents, state: (np.tile(row, (count, 1)), state),
        (),
        uniforms=uniforms,
        temperature=np.full(count, temperature, "float32"),
        max_lengths=np.ones(count, "int32"),
        limit=1,
        special_ids=kt.SpecialIds(end_id=END),
    )
    ids = np.array(result.ids)[:, 0, 0]
    return np.array([(ids == i).mean() for i in (*range(FIRST, FIRST + 4), END)])


def draw(found, path):
    """Draws the formula as lines and the draws as dots."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    ax, between = figure.subplots(), np.geomspace(0.05, 200, 200)
    lines = np.array([probabilities(t) for t in between])
    shown = {t: share for t, share in found.items() if 0.05 <= t <= 200}
    for number, word in enumerate(WORDS):
        ax.plot(between, lines[:, number], label=word, color=f"C{number}")
        dots = [share[number] for share in shown.values()]
        ax.plot(list(shown), dots, "o", color=f"C{number}")
    ax.set(xscale="log", xlabel="temperature", ylabel="probability")
    ax.legend()
    figure.savefig(path, dpi=110)


def main(arguments=None):
    parser = report.parser(__doc__, draws=4000)
    parser.add_argument("--plot", help="file of a picture")
    options = parser.parse_args(arguments)
    found = {t: drawn(t, options.draws) for t in TEMPERATURES}
    rows = []
    for temperature, shares in found.items():
        p = probabilities(temperature)
        bits = -(p * np.log2(np.where(p > 0, p, 1.0))).sum() + 0.0
        rows.append([f"{temperature:g}", *map(float, shares), float(bits)])
    report.show(["temperature", *WORDS, "entropy by formula (bits)"], rows)
    if options.plot:
        draw(found, options.plot)
    return found


if __name__ == "__main__":
    main()
