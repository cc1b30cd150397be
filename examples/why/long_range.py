"""Each kind of attention on long sequences: how often is the answer right?

    python examples/why/long_range.py --tasks operations retrieval

The tasks are generated, see long_range_tasks.py; every row is seen once. The encoder
has two layers, and the answer is read from the first position.
"""

import sys
from pathlib import Path
import keras_transformer.quiet

import keras
import report
from keras import ops
from long_range_tasks import TASKS, rows_of

import keras_transformer as kt

sys.path.append(str(Path(__file__).parents[1]))
from encoder_parts import FeatureEmbedding  # noqa: E402
from linear_attention import LinearAttention  # noqa: E402
from linformer_attention import LinformerAttention  # noqa: E402
from local_attention import LocalAttention  # noqa: E402
from lsh_attention import LSHAttention  # noqa: E402
from performer_attention import PerformerAttention  # noqa: E402

WIDTH, HEADS = 64, 4


class Mean(keras.layers.Layer):
    """In place of attention: every position gets the mean of all."""

    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def call(self, query, mask, training=None):
        shares = ops.cast(mask, query.dtype)[:, None]  # (B, 1, S)
        shares /= ops.sum(shares, axis=-1, keepdims=True)
        return ops.zeros_like(query) + ops.matmul(shares, query)


def attentions(length):
    """Returns what makes each kind of attention, for sequences up to a length."""
    sizes, few = (HEADS, WIDTH // HEADS), max(1, min(64, length // 8))
    buckets = 2 * max(1, length // few)
    return {
        "mean of all": Mean,
        "full": lambda: kt.MultiHeadAttention(*sizes),
        "local": lambda: LocalAttention(*sizes, window=few),
        "linear": lambda: LinearAttention(*sizes),
        "performer": lambda: PerformerAttention(*sizes, seed=1),
        "linformer": lambda: LinformerAttention(*sizes, length, few),
        "lsh": lambda: LSHAttention(*sizes, buckets, few, seed=1),
    }


def classifier(task, kind, length):
    """Returns a model of ids (B, S, F) to the logits of the answer, to be trained."""
    _, symbols, features, classes = TASKS[task]
    sizes = dict(num_layers=2, d_model=WIDTH, d_ff=2 * WIDTH, num_heads=HEADS)
    # No dropout, because every row is new.
    config = kt.EncoderConfig(**sizes, norm_first=True, dropout_rate=0.0)
    stack = kt.EncoderStack(config)
    for layer in stack.encoder_layers:
        layer.make_attention = lambda name, d_model: attentions(length)[kind]()
    ids = keras.Input((length, features), dtype="int32")
    states = stack(FeatureEmbedding(symbols, WIDTH)(ids))
    model = keras.Model(ids, keras.layers.Dense(classes)(states[:, 0]))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # XLA would compile for long; JAX has nothing else.
    is_jax = keras.backend.backend() == "jax"
    optimizer = kt.Adam(kt.WarmupSchedule(2e-3, 20))
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=is_jax)
    return model


def accuracy(task, kind, options):
    """Trains on new rows; returns the share of other rows that are answered right."""
    rows, seed = options.batch * options.updates, options.seed
    train = rows_of(task, rows, options.length, seed)
    test = rows_of(task, 512, options.length, 10**6)
    keras.utils.set_random_seed(seed)
    model = classifier(task, kind, options.length)
    model.fit(*train, options.batch, verbose=0, shuffle=False)
    return model.evaluate(*test, options.batch, verbose=0)[1]


def main(arguments=None):
    kinds = tuple(attentions(1))
    sizes = dict(length=256, batch=16, updates=200, seed=1)
    parser = report.parser(__doc__, tasks=tuple(TASKS), kinds=kinds, **sizes)
    options = parser.parse_args(arguments)
    found = {}
    report.show(["attention", *options.tasks], [])
    for kind in options.kinds:
        found[kind] = [accuracy(task, kind, options) for task in options.tasks]
        report.show_rows([[kind, *found[kind]]])
    return found


if __name__ == "__main__":
    main()
