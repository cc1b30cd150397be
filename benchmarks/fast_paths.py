"""What each fast path gains alone, on a training step and on a step of decoding.

A row puts the general line in the place of one function, traces the step anew, and
takes turns with the step that has every fast path. A figure is the time without the
path divided by the time with it: median and quartiles of the rounds. What stays under
1.02 in every column is not worth its lines. Memory is not measured.

    python benchmarks/fast_paths.py --rounds 7 > fast_paths.md
    python benchmarks/fast_paths.py --sizes toy --rounds 1 --dtypes float32
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator

import workload
from figures import markdown, paired_ratios, spread
from training_workload import SETTINGS, SIZES, batches
from worker import ROOT

BEAM, LENGTH = 4, workload.TARGET_LENGTH


def fast_paths() -> dict[str, dict[str, tuple]]:
    """Returns the paths of each step: owner, attribute, and its general line."""
    import keras
    import tensorflow as tf
    from keras import ops

    from keras_transformer import Adam, Transformer
    from keras_transformer.nn.kernels import caches, crossentropy
    from keras_transformer.nn.layers import attention, basic, dropout

    def normalise(x, gamma, beta, epsilon):
        return ops.layer_normalization(x, gamma, beta, axis=-1, epsilon=epsilon)

    def drop_softmax(scores, mask, layer):
        return layer(attention.masked_softmax(scores, mask), training=True)

    def drop(x, keep, scale):
        return ops.where(keep, x * scale, ops.zeros_like(x))

    def attend(queries, keys, values, bias):
        scores = ops.add(ops.matmul(queries, ops.swapaxes(keys, -1, -2)), bias)
        weights = ops.cast(attention.masked_softmax(scores), values.dtype)
        return ops.matmul(weights, values), weights

    def draw(rows, columns, threshold, state):  # as Keras' dropout does
        shape, seed = (rows, columns), tf.cast(state, tf.int32)
        numbers = tf.random.stateless_uniform(shape, seed)
        return numbers >= threshold / dropout.STEPS

    def place(cache, hypotheses, position, parents=None):
        return caches.Place(position, None, parents)

    join = basic.joined

    def joined(denses, scale=1.0):
        return () if denses[1:] else join(denses, scale)

    training = {
        "normalisation": (basic, "normalise", normalise),
        "dropped softmax": (attention, "dropped_softmax_in_graph", drop_softmax),
        "dropout as a product": (dropout, "drop", drop),
        "dropout, packed": (dropout, "packed_keep_mask", dropout.keep_mask),
        "dropout by a hash": (dropout, "packed_keep_mask", draw),
        "loss without logits": (Transformer, "output_rows", lambda model: None),
        "loss in chunks": (crossentropy, "CHUNK_TOKENS", 2**30),
        "loss, in place": (crossentropy, "_softmax_in_place", crossentropy._softmax),
        "Adam": (Adam, "update_step", keras.optimizers.Adam.update_step),
    }
    decode = {
        "writing in place": (caches, "cache_place", place),
        "attention by row": (attention, "_attend_by_row", attend),
        "joined projections": (basic, "joined", joined),
    }
    return {"training": training, "decoding": decode}


@contextlib.contextmanager
def without(owner, name: str, general) -> Iterator[None]:
    """Puts the general line in a path's place, wherever the path has been imported."""
    fast, ours = getattr(owner, name), "keras_transformer"
    modules = [module for key, module in sys.modules.items() if key.startswith(ours)]
    owners = [owner, *(m for m in modules if vars(m).get(name) is fast)]
    for owner in owners:
        setattr(owner, name, general)
    try:
        yield
    finally:
        for owner in owners:
            setattr(owner, name, fast)


def trace_training(peer, size: str, options) -> Callable[[], Callable]:
    """Returns what traces a training step; a turn of it is a step on each batch."""
    import tensorflow as tf

    model = peer.make_model(SIZES[size], SETTINGS[size].longest_padded)
    model.compile(peer.make_optimizer(), peer.make_loss(), jit_compile=False)
    items = batches(SETTINGS[size])[: options.batches]
    ids = tf.TensorSpec((None, None), "int32")
    data = tf.data.Dataset.from_generator(
        lambda: itertools.cycle(items), output_signature=((ids, ids), ids)
    )
    data = iter(data)
    model.train_on_batch(*items[0])

    def trace():
        model.make_train_function(force=True)
        step = model.train_function
        return lambda: [float(step(data)["loss"]) for _ in items]

    return trace


def trace_decoding(peer, size: str, options) -> Callable[[], Callable]:
    """Returns what traces decoding; a turn of it is an encoder's and all steps' run."""
    import tensorflow as tf

    model = peer.make_model(SIZES[size], LENGTH)
    ids = workload.source_ids(options.sentences) % SIZES[size].vocabulary_size

    def trace():
        signature = [tf.TensorSpec((None, None), "int32")]

        @tf.function(input_signature=signature, autograph=False)
        def decode(source):
            batch = tf.shape(source)[0]
            state = model.start_decoding(source, LENGTH, BEAM)
            weights = model.decoding_weights()
            parents = tf.tile([[*range(1, BEAM), 0]], (batch, 1))

            def step(i, ids, state):
                logits, state = model.decode_step(ids, parents, state, weights)
                return i + 1, tf.argmax(logits, -1, output_type=tf.int32), state

            start = 0, tf.fill((batch * BEAM,), workload.START_ID), state
            return tf.while_loop(lambda i, *_: i < LENGTH, step, start)[1]

        return lambda: decode(ids).numpy()

    return trace


def ratios(trace, paths, rounds: int) -> dict[str, dict[str, float]]:
    """Returns the quartiles of the time without each path to that with all."""

    def seconds(turn):
        start = time.perf_counter()
        turn()
        return time.perf_counter() - start

    fast, general = trace(), {}
    fast()
    for name, path in paths.items():
        with without(*path):
            general[name] = trace()
            general[name]()
    pairs = {name: ([], []) for name in paths}
    for name, turn in [*general.items()] * rounds:
        pairs[name][0].append(seconds(turn))
        pairs[name][1].append(seconds(fast))
    return {name: paired_ratios(*pair) for name, pair in pairs.items()}


def main() -> int:
    """Reads the command line, measures, and writes the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=["tiny", "small"], choices=SIZES)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=4, help="of a turn of training")
    parser.add_argument("--sentences", type=int, default=32, help="of decoding")
    parser.add_argument("--paths", nargs="+", metavar="NAME", help="default all")
    options = parser.parse_args()
    os.environ["KERAS_BACKEND"] = "tensorflow"
    sys.path.insert(1, str(ROOT))
    from peers.ours_training import Peer

    steps, columns = fast_paths(), {}
    traces = {"training": trace_training, "decoding": trace_decoding}
    for size, dtype, step in itertools.product(options.sizes, options.dtypes, traces):
        print(f"{step}, {size}, {dtype}", file=sys.stderr, flush=True)
        asked = options.paths or steps[step]
        paths = {name: path for name, path in steps[step].items() if name in asked}
        trace = traces[step](
            Peer(SIZES[size], dtype, os.cpu_count(), ""), size, options
        )
        columns[f"{step}, {size}, {dtype}"] = ratios(trace, paths, options.rounds)
    rows = [
        [name, *(spread(each.get(name), ".3f") for each in columns.values())]
        for name in steps["training"] | steps["decoding"]
    ]
    print(markdown(["time without / with", *columns], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
