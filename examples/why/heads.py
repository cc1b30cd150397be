"""Heads of attention at equal width: 1 of 64 down to 16 of 4 (Table 3, rows A).

    KERAS_BACKEND=jax python examples/why/heads.py

The task hangs each answer on three places of the sequence (`choose` in tasks.py). The
paper's claim: "while single-head attention is 0.9 BLEU worse than the best setting,
quality also drops off with too many heads".
"""

import keras_transformer.quiet

import keras
import report
import tasks


def main(arguments=None):
    sizes = {"task": "choose", "length": 12, "updates": 600, "seeds": 3}
    parser = report.parser(__doc__, heads=(1, 2, 4, 8, 16), **sizes)
    options, found = parser.parse_args(arguments), {}
    report.show(["heads", "width of a head", "accuracy"], [])
    for heads in options.heads:
        found[heads] = []
        for seed in range(1, 1 + options.seeds):
            keras.utils.set_random_seed(seed)
            model, width = tasks.make_model(num_heads=heads), tasks.WIDTH
            sizes = options.task, options.length, options.updates
            found[heads].append(tasks.learn(model, *sizes, seed))
        report.show_rows([[heads, width // heads, found[heads]]])
    return found


if __name__ == "__main__":
    main()
