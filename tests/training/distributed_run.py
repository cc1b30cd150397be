"""A program that trains a tiny model on several devices and writes its losses.

Run by tests as `python -m tests.training.distributed_run OUT JSON-OPTIONS`, because the
devices of a process are fixed when its backend starts.
"""

import json
import os
import sys
from pathlib import Path

DEFAULTS = {
    "distribute": "none",
    "devices": 1,
    "dropout": 0.0,
    "tied_embeddings": "three-way",
    "clipnorm": None,
    "sgd": None,
    "steps": 1,
    "poison": None,
    "nonfinite": "skip",
}


def start(options):
    """Gives the backend its virtual devices, before it starts."""
    count = options["devices"]
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count}"
    if os.environ.get("KERAS_BACKEND") != "jax":
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        device = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(cpu, [device] * count)


def batches(poison):
    """Five batches of uneven rows, widths, padding; `poison` has an endless weight.

    Each is `((source, target_in), target_out, sample_weight)`.
    """
    import numpy as np

    rng = np.random.default_rng(4)
    for number, (rows, source_width, width) in enumerate(
        ((3, 5, 7), (2, 4, 3), (5, 6, 5), (1, 3, 11), (6, 7, 5))
    ):
        source = rng.integers(4, 44, (rows, source_width)).astype("int32")
        target = rng.integers(4, 44, (rows, width)).astype("int32")
        for row, length in enumerate(rng.integers(1, width + 1, rows)):
            target[row, length:] = 0
        target_in = np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=1)
        weight = rng.uniform(0.5, 2.0, rows).astype("float32")
        if number == poison:
            weight[0] = np.inf
        yield (source, target_in), target, weight


def dataset(poison=None):
    """The batches as a `tf.data.Dataset`."""
    import tensorflow as tf

    ids = tf.TensorSpec([None, None], tf.int32)
    weight = tf.TensorSpec([None], tf.float32)
    data = tf.data.Dataset.from_generator(
        lambda: batches(poison), output_signature=((ids, ids), ids, weight)
    )
    return data.apply(tf.data.experimental.assert_cardinality(5))


def compiled(options):
    """The model, compiled."""
    import keras

    from keras_transformer import MaskedAccuracy, MaskedCrossentropy, Perplexity
    from keras_transformer.config import TransformerConfig
    from keras_transformer.models.transformer import Transformer

    keras.utils.set_random_seed(12)
    rates = ("dropout_rate", "attention_dropout_rate", "activation_dropout_rate")
    config = TransformerConfig(
        source_vocabulary_size=44,
        target_vocabulary_size=44,
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_model=16,
        d_ff=32,
        num_heads=4,
        use_bias=True,
        tied_embeddings=options["tied_embeddings"],
        **dict.fromkeys(rates, options["dropout"]),
    )
    model = Transformer(config)
    optimizer = keras.optimizers.Adam(3e-3)
    if options["sgd"] is not None:
        optimizer = keras.optimizers.SGD(1.0, **options["sgd"])
    optimizer.global_clipnorm = options["clipnorm"]
    model.compile(
        optimizer,
        MaskedCrossentropy(0.1),
        metrics=[MaskedAccuracy(), Perplexity()],
        gradient_accumulation_steps=options["steps"],
        nonfinite=options["nonfinite"],
    )
    return model


def draws(distribution, model):
    """How often each replica of this process drew random numbers, by its counter."""
    states = [v.value for v in model.variables if v.name == "seed_generator_state"]
    if not states or getattr(distribution, "strategy", None) is None:
        return []
    copies = distribution.strategy.experimental_local_results(states[0])
    return [int(copy[1]) for copy in copies]


def train(options):
    """Trains; returns losses, weights and counters as lists and numbers."""
    import keras
    import numpy as np

    from keras_transformer.training.devices import distribution_scope

    batch_losses = []
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: batch_losses.append(float(logs["loss"]))
    )
    with distribution_scope(options["distribute"]) as distribution:
        with distribution.scope():
            model = compiled(options)
        history = model.fit(
            distribution.dataset(dataset(options["poison"])),
            validation_data=distribution.dataset(dataset()),
            epochs=2,
            shuffle=False,
            verbose=0,
            callbacks=[record],
        ).history
        # Without the model's name, which Keras numbers in a process that made others.
        weights = {w.path.partition("/")[2]: np.asarray(w) for w in model.weights}
        return {
            "history": history,
            "batch_losses": batch_losses,
            "replicas": distribution.num_replicas,
            "chief": distribution.is_chief,
            "draws": draws(distribution, model),
            "updates": int(keras.ops.convert_to_numpy(model.optimizer.iterations)),
            "nonfinite_batches": model.nonfinite_batches,
            "weights": {p: w.ravel()[:50].tolist() for p, w in weights.items()},
        }


if __name__ == "__main__":
    given = DEFAULTS | json.loads(sys.argv[2])
    start(given)
    Path(sys.argv[1]).write_text(json.dumps(train(given)), encoding="utf-8")
