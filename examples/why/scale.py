"""What a softmax of scores becomes as keys grow wider, scaled by 1 / sqrt(d_k) or not.

    python examples/why/scale.py --plot scale.png

Queries and keys are random, with components of variance 1: the product of two has
variance d_k. Entropy is in bits; the gradient's norm is that of the Jacobian of the
attention weights by the scores.
"""

import keras_transformer.quiet

import keras
import numpy as np
import report

from keras_transformer.nn.layers import masked_softmax


def jacobian_norm(weights):
    """Returns the Frobenius norm of diag(p) - p p^T for each row p of weights."""
    squares, cubes = (weights**2).sum(-1), (weights**3).sum(-1)
    return np.sqrt(np.maximum(squares - 2 * cubes + squares**2, 0.0))


def measure(key_dim, is_scaled, keys, seed=1, queries=1000):
    """Returns standard deviation of the scores, entropy, largest weight, gradient."""
    rng = np.random.default_rng(seed)
    query, key = (rng.standard_normal((n, key_dim)) for n in (queries, keys))
    scores = query @ key.T * (key_dim**-0.5 if is_scaled else 1.0)
    weights = keras.ops.convert_to_numpy(masked_softmax(scores.astype("float32")))
    weights = weights.astype("float64")
    entropy = -(weights * np.log2(np.maximum(weights, 1e-300))).sum(-1)
    norms = jacobian_norm(weights)
    return [float(x.mean()) for x in (scores.std(-1), entropy, weights.max(-1), norms)]


def draw(found, path):
    """Draws the three figures over the width of the keys."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    names = ("entropy (bits)", "largest weight", "norm of the gradient")
    for place, (ax, name) in enumerate(zip(figure.subplots(1, 3), names, strict=True)):
        for is_scaled, label in ((False, "not scaled"), (True, "scaled")):
            lines = [(k, v[place + 1]) for (k, s), v in found.items() if s == is_scaled]
            ax.plot(*zip(*lines, strict=True), "o-", label=label)
        ax.set(xscale="log", xlabel="d_k", title=name, ylim=(0, None))
    ax.legend()
    figure.savefig(path, dpi=110)


def main(arguments=None):
    parser = report.parser(__doc__, widths=(1, 4, 16, 64, 256, 1024, 4096), keys=32)
    parser.add_argument("--plot", help="file of a picture")
    options = parser.parse_args(arguments)
    kinds = [(width, scaled) for width in options.widths for scaled in (False, True)]
    found = {kind: measure(*kind, options.keys) for kind in kinds}
    heading = ["d_k", "scores", "deviation", "entropy", "largest weight", "gradient"]
    names = {False: "not scaled", True: "scaled"}
    report.show(heading, [[k, names[s], *row] for (k, s), row in found.items()])
    if options.plot:
        draw(found, options.plot)
    return found


if __name__ == "__main__":
    main()
