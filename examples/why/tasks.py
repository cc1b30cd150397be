"""Small generated tasks and the model that learns them.

A row is a sequence, a separator and the answer, of which only the answer is scored.
"""

import keras
import numpy as np

import keras_transformer as kt

SEPARATOR, FIRST, SYMBOLS, WIDTH = 3, 4, 16, 64


def choose(given):
    """Returns for each place the symbol one or two thirds further on.

    Which one is said by the place's own symbol, so each answer hangs on three places.
    """
    third = given.shape[1] // 3
    near, far = (np.roll(given, -n * third, axis=1) for n in (1, 2))
    return np.where(given < SYMBOLS // 2, near, far)


TASKS = {
    "copy": lambda given: given,
    "reverse": lambda given: given[:, ::-1],
    "sort": lambda given: np.sort(given, axis=1),
    "choose": choose,
}


def make_rows(task, count, length, seed):
    """Returns random rows of a task, in which no symbol is padding or special.

    Args:
        task: A key of `TASKS`.
        count: Rows, B.
        length: Symbols of a sequence, L; its answer has as many.
        seed: Seed of the sequences.

    Returns:
        What goes in and what comes next, int32 (B, 2 * L); where the sequence itself
        would come next there is padding, which no loss and no metric counts.
    """
    given = np.random.default_rng(seed).integers(0, SYMBOLS, (count, length))
    answer = TASKS[task](given) + FIRST
    separator = np.full((count, 1), SEPARATOR)
    ids_in = np.concatenate([given + FIRST, separator, answer[:, :-1]], axis=1)
    ids_out = np.concatenate([np.zeros_like(given), answer], axis=1)
    return ids_in.astype("int32"), ids_out.astype("int32")


def make_model(model_class=kt.LanguageModel, **options):
    """Returns a pre-norm language model of two layers of width 64, without dropout.

    Args:
        model_class: `LanguageModel` or a subclass.
        **options: Options of `LanguageModelConfig` that replace these.
    """
    sizes = {"num_layers": 2, "d_model": WIDTH, "d_ff": 128, "num_heads": 4}
    options = sizes | {"dropout_rate": 0.0, "norm_first": True} | options
    size = FIRST + SYMBOLS
    return model_class(kt.LanguageModelConfig(vocabulary_size=size, **options))


def learn(model, task, length, updates, seed, optimizer=None):
    """Trains a model on a task, a new batch of 32 rows in each update.

    Args:
        model: As `make_model` returned it.
        task: A key of `TASKS`.
        length: Symbols of a sequence, L.
        updates: Weight updates.
        seed: Seed of the rows; those of the test have another one.
        optimizer: An optimizer; default Adam with warm-up.

    Returns:
        Share of the symbols of 256 unseen rows that are right, each after the right
        ones before it.
    """
    if optimizer is None:
        optimizer = kt.Adam(kt.WarmupSchedule(2e-3, max(1, updates // 10)))
    # XLA would compile for longer than it trains; JAX has nothing else.
    is_jax = keras.backend.backend() == "jax"
    how = {"metrics": [kt.MaskedAccuracy()], "jit_compile": is_jax}
    model.compile(optimizer, kt.MaskedCrossentropy(), **how)
    model.fit(*make_rows(task, 32 * updates, length, seed), 32, verbose=0)
    test = make_rows(task, 256, length, 1000 + seed)
    return model.evaluate(*test, 64, verbose=0, return_dict=True)["masked_accuracy"]
