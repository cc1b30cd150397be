"""Additive, unscaled and scaled scores of attention at growing d_k, trained.

    KERAS_BACKEND=jax python examples/why/scores.py

One head whose queries and keys have components of variance 1 at the start, which is
what the paper reckons with: the first initializer of the projections sees to it.
"""

import sys
from pathlib import Path
import keras_transformer.quiet

import keras
import report
import tasks

import keras_transformer as kt

sys.path.append(str(Path(__file__).parents[1]))
from additive_attention import MultiHeadAdditiveAttention  # noqa: E402


class UnscaledAttention(kt.MultiHeadAttention):
    """Attention that does not divide its scores by sqrt(d_k)."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.query_scale = 1.0


KINDS = {
    "additive": MultiHeadAdditiveAttention,
    "not scaled": UnscaledAttention,
    "scaled": kt.MultiHeadAttention,
}


def make_model(kind, key_dim):
    """Returns a model whose layers have one head of a kind."""

    class Layer(kt.CausalLayer):
        def make_attention(self, name, d_model):
            sizes = {"num_heads": 1, "key_dim": key_dim, "value_dim": d_model}
            # Variance 1 / d_model: the norm before gives components of variance 1.
            return KINDS[kind](
                **sizes, use_bias=False, kernel_initializer="lecun_normal", name=name
            )

    class Model(kt.LanguageModel):
        def make_layer(self, name):
            return Layer(**self.config.layer_options(), name=name)

    return tasks.make_model(Model, num_heads=1)


def main(arguments=None):
    sizes = {"length": 8, "updates": 300, "seeds": 3, "task": "reverse"}
    sizes["kinds"] = tuple(KINDS)
    parser = report.parser(__doc__, widths=(16, 256), **sizes)
    options, found = parser.parse_args(arguments), {}
    report.show(["d_k", *options.kinds], [])
    for width in options.widths:
        for kind in options.kinds:
            found[width, kind] = []
            for seed in range(1, 1 + options.seeds):
                keras.utils.set_random_seed(seed)
                model = make_model(kind, width)
                task = options.task, options.length, options.updates
                found[width, kind].append(tasks.learn(model, *task, seed))
        report.show_rows([[width, *(found[width, kind] for kind in options.kinds)]])
    return found


if __name__ == "__main__":
    main()
