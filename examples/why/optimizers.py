"""Five optimizers with and without the paper's schedule, on one task.

    KERAS_BACKEND=jax python examples/why/optimizers.py

The model is the paper's, normalised after each sub-layer; the task is to sort. Without
the schedule the rate stays at what is the schedule's peak, at the end of the warm-up.
Each optimizer has three rates, since one that suits Adam is too small for SGD.
"""

import functools
import keras_transformer.quiet

import keras
import numpy as np
import report
import tasks

import keras_transformer as kt

sgd = keras.optimizers.SGD
# Each optimizer and the middle one of its rates.
OPTIMIZERS = {
    "SGD": (sgd, 0.3),
    "SGD with momentum": (functools.partial(sgd, momentum=0.9), 0.03),
    "RMSprop": (keras.optimizers.RMSprop, 1e-3),
    "Adam": (functools.partial(kt.Adam, beta_2=0.98, epsilon=1e-9), 2e-3),
    "AdamW": (functools.partial(keras.optimizers.AdamW, beta_2=0.98), 2e-3),
}


def paper_schedule(peak, width, warmup):
    """Returns the paper's schedule, scaled to a peak."""
    return kt.TransformerSchedule(width, warmup, peak * (width * warmup) ** 0.5)


def accuracy(name, has_schedule, factor, options, seed):
    """Trains with an optimizer; returns the accuracy on unseen rows."""
    keras.utils.set_random_seed(seed)
    model = tasks.make_model(norm_first=False, num_layers=options.layers)
    make_optimizer, rate = OPTIMIZERS[name]
    rate *= factor
    if has_schedule:
        warmup = max(1, options.updates // 5)
        rate = paper_schedule(rate, model.config.d_model, warmup)
    sizes = options.task, options.length, options.updates
    return tasks.learn(model, *sizes, seed, make_optimizer(rate))


def main(arguments=None):
    sizes = {"task": "sort", "length": 10, "layers": 2, "updates": 300, "seeds": 1}
    names = {"optimizers": tuple(OPTIMIZERS), "factors": (0.3, 1.0, 3.0)}
    options = report.parser(__doc__, **names, **sizes).parse_args(arguments)
    found, heading = {}, ["optimizer", "rates", "constant", "paper's schedule"]
    report.show(heading, [])
    for name in options.optimizers:
        cells = []
        for has_schedule in (False, True):
            rows = [
                [
                    accuracy(name, has_schedule, factor, options, seed)
                    for seed in range(1, 1 + options.seeds)
                ]
                for factor in options.factors
            ]
            found[name, has_schedule] = rows
            cells.append(", ".join(report.text_of(float(np.mean(r))) for r in rows))
        rates = ", ".join(f"{OPTIMIZERS[name][1] * f:.2g}" for f in options.factors)
        report.show_rows([[name, rates, *cells]])
    return found


if __name__ == "__main__":
    main()
