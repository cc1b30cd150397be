"""The model of a run: optimizer, schedule, device, `fit`, frozen weights."""

import importlib
import io

import keras
import numpy as np
import pytest
from rich.console import Console

from keras_transformer import RunConfig, TrainingConfig, Transformer, TransformerConfig
from keras_transformer.config import DataConfig
from keras_transformer.nn.optimizers import TransformerSchedule
from keras_transformer.training import compiled_model, make_optimizer, report
from keras_transformer.training.run_model import (
    freeze,
    with_device_defaults,
)
from tests import tiny_run
from tests.reference import numpy_transformer as reference

model = importlib.import_module("keras_transformer.training.run_model")


def rates(options, updates):
    schedule = make_optimizer(TrainingConfig(**options), d_model=16)._learning_rate
    return [float(schedule(update - 1)) for update in updates]


RATES = {
    # Half of the peak half-way up; then as each says.
    "constant": ({}, [0.05, 0.1, 0.1, 0.1]),
    "cosine": ({"decay_steps": 20}, [0.05, 0.1, 0.05, 0.0]),
    # 0.1 (10 / step)^0.5.
    "paper": ({}, [0.05, 0.1, 0.1 * (10 / 21) ** 0.5, 0.1 * (10 / 31) ** 0.5]),
}


@pytest.mark.parametrize("schedule", RATES)
def test_each_schedule_rises_to_its_peak_and_goes_on(schedule):
    more, expected = RATES[schedule]
    options = {"schedule": schedule, "learning_rate": 0.1, "warmup_steps": 10, **more}
    assert rates(options, [5, 10, 21, 31]) == pytest.approx(expected, abs=1e-7)


def test_optimizers_are_the_papers_and_keras():
    adam = make_optimizer(TrainingConfig(warmup_steps=10), d_model=16)
    assert (adam.beta_1, adam.beta_2, adam.epsilon) == (0.9, 0.98, 1e-9)
    assert type(adam._learning_rate) is TransformerSchedule
    assert (adam.weight_decay, adam.use_ema) == (None, False)
    adam.build([keras.Variable(np.ones(2, "float32"))])
    # The first update: 16^-0.5 * 1 * 10^-1.5.
    assert float(adam.learning_rate) == pytest.approx(0.25 * 10**-1.5)
    options = TrainingConfig(optimizer="adamw", weight_decay=0.25, ema_decay=0.95)
    adamw = make_optimizer(options, 16)
    assert type(adamw) is keras.optimizers.AdamW and adamw.weight_decay == 0.25
    assert (adamw.use_ema, adamw.ema_momentum) == (True, 0.95)
    assert make_optimizer(TrainingConfig(optimizer="adamw"), 16).weight_decay == 0.004


def test_a_processor_computes_in_float32_without_xla_unless_asked(monkeypatch):
    def chosen(**options):
        config = RunConfig(training=TrainingConfig(**options))
        options = with_device_defaults(config).training
        return options.mixed_precision, options.jit_compile

    monkeypatch.setattr(model, "has_gpu", lambda: False)
    compiles = keras.backend.backend() == "jax"
    assert chosen() == ("none", compiles)
    assert chosen(mixed_precision="float16") == ("float16", compiles)
    monkeypatch.setattr(model, "has_gpu", lambda: True)
    for backend, compiles in (("tensorflow", False), ("jax", True), ("torch", False)):
        monkeypatch.setattr(keras.backend, "backend", lambda name=backend: name)
        assert chosen() == ("bfloat16", compiles)
    assert chosen(jit_compile=False, mixed_precision="none") == ("none", False)
    # XLA cannot compile a step of several replicas.
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    assert chosen(distribute="mirrored") == ("bfloat16", False)


def test_a_new_run_has_batches_for_its_device(monkeypatch):
    monkeypatch.setattr(model, "has_gpu", lambda: False)
    config = RunConfig(training=TrainingConfig(jit_compile=True))
    plain = with_device_defaults(RunConfig(training=TrainingConfig(jit_compile=False)))
    assert (plain.data.batch_tokens, plain.data.batch_shapes) == (4096, None)
    chosen = with_device_defaults(config)
    assert (chosen.data.batch_tokens, chosen.data.batch_shapes) == (4096, 6)
    monkeypatch.setattr(model, "has_gpu", lambda: True)
    assert with_device_defaults(config).data.batch_tokens == 25000
    given = config.replace(data=DataConfig(batch_tokens=7, batch_shapes=2))
    assert with_device_defaults(given).data == given.data


# `compile` and `fit` for every optimizer and precision.

MODEL = tiny_run.CONFIG.model.replace(
    source_vocabulary_size=11, target_vocabulary_size=11, dropout_rate=0.0,
    attention_dropout_rate=0.0, activation_dropout_rate=0.0,
)  # fmt: skip


def copy_task(rows=12, length=5):
    """Sentences of 2 to `length` words from 4 to 10, to be copied."""
    rng = np.random.default_rng(7)
    source = np.zeros((rows, length + 1), "int32")
    target_in, target_out = np.zeros_like(source), np.zeros_like(source)
    for row in range(rows):
        words = rng.integers(4, 11, size=rng.integers(2, length + 1))
        source[row, : len(words) + 1] = [*words, MODEL.end_id]
        target_in[row, : len(words) + 1] = [MODEL.start_id, *words]
        target_out[row, : len(words) + 1] = [*words, MODEL.end_id]
    return (source, target_in), target_out


INPUTS, TARGETS = copy_task()


def losses_of(make_model=None, **training):
    """A compiled model and its losses in twelve updates."""
    keras.utils.set_random_seed(11)
    training = TrainingConfig(**{"warmup_steps": 10} | training)
    config = RunConfig(model=MODEL, training=training)
    made = compiled_model(config, make_model=make_model)
    fit = {"epochs": 12, "shuffle": False, "verbose": 0}
    return made, made.fit(INPUTS, TARGETS, **fit).history["loss"]


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_every_optimizer_lowers_the_loss_by_the_schedule(optimizer):
    made, losses = losses_of(tiny_run.toy, optimizer=optimizer)
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.95 * losses[0]
    expected = reference.learning_rate(13, MODEL.d_model, 10)
    rate = float(made.optimizer.learning_rate)
    np.testing.assert_allclose(rate, expected, rtol=1e-6)


@pytest.mark.one_case("float16")
@pytest.mark.parametrize("given", ["bfloat16", "float16"])
def test_mixed_precision_trains_with_float32_weights_and_loss(given):
    made, losses = losses_of(mixed_precision=given)
    assert made.compute_dtype == given
    is_scaled = isinstance(made.optimizer, keras.optimizers.LossScaleOptimizer)
    assert is_scaled == (given == "float16")
    logits = made(INPUTS)
    assert logits.dtype == given
    assert made.compute_loss(y=TARGETS, y_pred=logits).dtype == "float32"
    assert losses[-1] < 0.95 * losses[0]
    assert {weight.dtype for weight in made.trainable_weights} == {"float32"}
    assert keras.config.dtype_policy().name == "float32"


def test_a_model_of_ones_own_has_the_float_type_of_the_options():
    config = RunConfig(model=MODEL).with_options(mixed_precision="bfloat16")
    with pytest.raises(ValueError, match="must have the dtype policy mixed_bfloat16"):
        compiled_model(config, make_model=tiny_run.toy)


def test_a_run_says_what_it_computes_on(monkeypatch):
    monkeypatch.setattr(report, "gpu_names", lambda: [])
    monkeypatch.setattr(report, "available_cores", lambda: 2)
    stream = io.StringIO()
    report.report_devices(Console(file=stream, width=200), "bfloat16")
    backend = keras.backend.backend()
    first = stream.getvalue().splitlines()[0]
    assert first == f"computing in bfloat16 with {backend} on 2 processor cores"


SIZES = dict(source_vocabulary_size=11, target_vocabulary_size=11, d_model=6)
TRANSFORMER = TransformerConfig(
    **SIZES, num_encoder_layers=2, num_decoder_layers=2, d_ff=7, num_heads=2,
    norm_first=True, positions="learned", max_positions=5, tied_embeddings="two-way",
)  # fmt: skip
UNTIED = TRANSFORMER.replace(tied_embeddings="none", output_bias=True)


def frozen(config, names):
    """The paths of the weights that are frozen, without the model's name."""
    made = Transformer(config)
    freeze(made, names)
    return {v.path.partition("/")[2] for v in made.weights if not v.trainable}


def paths(config, *beginnings):
    """The paths of the weights that begin so."""
    every = (v.path.partition("/")[2] for v in Transformer(config).weights)
    return {path for path in every if path.startswith(beginnings)}


PARTS = {
    "encoder": (TRANSFORMER, ["encoder_layer_", "encoder_norm/"], 2 * 12 + 2),
    "decoder": (TRANSFORMER, ["decoder_layer_", "decoder_norm/"], 2 * 18 + 2),
    "embeddings": (TRANSFORMER, ["source_embedding/", "target_embedding/"], 4),
    "output": (TRANSFORMER, ["target_embedding/token_embedding/"], 1),
    "encoder_layer_1": (TRANSFORMER, ["encoder_layer_1/"], 12),
    "decoder_layer_0/cross_attention": (
        TRANSFORMER, ["decoder_layer_0/cross_attention/"], 4,
    ),
    " encoder , decoder_norm": (
        TRANSFORMER, ["encoder_layer_", "encoder_norm/", "decoder_norm/"], 28,
    ),
    "source_embedding,output": (UNTIED, ["source_embedding/", "output"], 4),
}  # fmt: skip


@pytest.mark.one_case(" encoder , decoder_norm")
@pytest.mark.parametrize("names", PARTS)
def test_a_name_stands_for_its_weights(names):
    config, beginnings, count = PARTS[names]
    expected = paths(config, *beginnings)
    assert len(expected) == count
    assert frozen(config, names) == expected


def test_a_layer_is_found_by_the_end_of_its_path_and_a_shared_matrix_by_two_names():
    expected = {path for path in paths(TRANSFORMER, "") if "/self_attention/" in path}
    assert len(expected) == 16
    assert frozen(TRANSFORMER, "self_attention") == expected
    made = Transformer(tiny_run.CONFIG.model)
    for names in ("embeddings", "output"):
        freeze(made, names)
        stream = io.StringIO()
        report.report_model(Console(file=stream, width=400), made, names)
        words = f"5,376 of 597,376 parameters, without {names}\n"
        assert stream.getvalue().endswith(words)


@pytest.mark.parametrize("name", ("encodr", "encoder_layer_9", "layer", "kernel", ""))
def test_an_unknown_name_is_answered_with_those_that_exist(name):
    with pytest.raises(ValueError, match="must name parts") as raised:
        freeze(Transformer(TRANSFORMER), f"output,{name}")
    message = str(raised.value)
    assert message.endswith(f"Received: {name!r}")
    assert "(encoder, decoder, embeddings, output)" in message
    for layer in ("encoder_layer_1", "decoder_norm", "target_embedding", "feed_for"):
        assert layer in message


def test_something_must_be_left_to_train():
    with pytest.raises(ValueError, match="must leave weights to train.*two-way"):
        freeze(Transformer(TRANSFORMER), "encoder,decoder,embeddings")
    # Here the output matrix is the model's own.
    freeze(Transformer(UNTIED), "encoder,decoder,embeddings")


def test_frozen_weights_are_the_same_bytes_after_a_run(tmp_path):
    """With moving and other averages, weight decay, accumulation and intervals."""
    first = []

    class Look(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            for weight in self.model.weights:
                if not weight.trainable and len(weight.shape) == 1:
                    weight.assign(np.full(weight.shape, -0.0))
            first.extend(self.model.get_weights())

    trained = tiny_run.run(
        tmp_path,
        Look(),
        epochs=2,
        freeze="encoder",
        save_every=3,
        ema_decay=0.5,
        optimizer="adamw",
        gradient_accumulation_steps=2,
        global_clipnorm=1.0,
        schedule="constant",
        learning_rate=0.01,
        weight_decay=0.1,
    ).model
    saved = keras.models.load_model(tmp_path / "model.keras", compile=False)
    kept = [
        a.tobytes() == b.tobytes()
        for a, b in zip(first, saved.get_weights(), strict=True)
    ]
    assert kept == [not weight.trainable for weight in trained.weights]
    assert (sum(kept), len(kept)) == (12, 31)
