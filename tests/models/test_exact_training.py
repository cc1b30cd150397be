"""The gradient of one large batch, whatever the batches; nothing not finite applied."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.models import ExactModel
from keras_transformer.models import exact_training as exact
from keras_transformer.models.batch_step import loss_and_scores
from keras_transformer.models.token_model import TokenModel
from keras_transformer.nn.kernels.crossentropy import TokenScores
from tests.models.backends import run_tests
from tests.tiny_run import assert_equal

SIZE = 41
NO_DROPOUT = {
    "dropout_rate": 0.0, "attention_dropout_rate": 0.0, "activation_dropout_rate": 0.0,
}  # fmt: skip
CONFIG = kt.TransformerConfig(
    source_vocabulary_size=SIZE, target_vocabulary_size=SIZE, num_encoder_layers=1,
    num_decoder_layers=1, d_model=12, d_ff=20, num_heads=3, **NO_DROPOUT,
)  # fmt: skip


@keras.saving.register_keras_serializable(package="tests")
class Small(TokenModel):
    """The smallest model that trains without logits, and is traced in a moment.

    Each target word sees the sum of the source.
    """

    config_class = kt.TransformerConfig
    trains_without_logits = True

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.embedding = self.make_embedding("embedding", SIZE)
        self.norm = self._make_norm("norm")
        self.build()

    def build(self, input_shape=None):
        self.embedding.build((None, None))
        self.norm.build((None, None, self.config.d_model))
        self.make_output(self.embedding, SIZE, use_bias=False)
        self.built = True

    def call(self, inputs, training=None, return_states=False):
        source, target_in = inputs
        is_word = ops.not_equal(source, 0)[..., None]
        words = ops.where(is_word, self.embedding(source), 0.0)
        total = ops.sum(words, axis=1, keepdims=True)
        states = self.norm(self.embedding(target_in) + total)
        return states if return_states else self.logits(states)


WIDTHS = (5, 7)  # The widest source and target.
RATE = 32.0  # So large that the rounding of the weights does not hide the gradient.


def make_batch(rng, rows, source_width, target_width, lengths):
    """`((source, target_in), target_out, weights)`, of targets of given lengths."""
    source = rng.integers(4, SIZE, (rows, source_width))
    target = rng.integers(4, SIZE, (rows, target_width))
    for row, length in enumerate(lengths):
        target[row, length:] = 0
    target_in = np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=1)
    target_in[target == 0] = 0
    weights = rng.uniform(0.5, 2.0, rows).astype("float32")
    source, target_in, target = (a.astype("int32") for a in (source, target_in, target))
    return (source, target_in), target, weights


def make_batches():
    rng = np.random.default_rng(5)
    return [
        make_batch(rng, 3, 5, 7, [7, 2, 1]),
        make_batch(rng, 2, 4, 3, [3, 1]),
        make_batch(rng, 4, 3, 5, [5, 0, 4, 2]),
    ]


def joined(batches):
    """The rows of all batches in one."""

    def join(arrays, width=None):
        if width is not None:
            arrays = [np.pad(a, ((0, 0), (0, width - a.shape[1]))) for a in arrays]
        return np.concatenate(arrays)

    sources, targets_in = (
        join([b[0][side] for b in batches], WIDTHS[side]) for side in (0, 1)
    )
    targets = join([b[1] for b in batches], WIDTHS[1])
    return (sources, targets_in), targets, join([b[2] for b in batches])


def poisoned(batch):
    """The batch with a weight that makes its loss infinite."""
    inputs, targets, weights = batch
    return inputs, targets, np.full_like(weights, np.inf)


def make_model(
    optimizer=None,
    loss=None,
    kind=Small,
    dtype=None,
    clipnorm=None,
    tied="three-way",
    **options,
):
    """A model whose weights are the same every time, compiled."""
    keras.utils.set_random_seed(8)
    model = kind(CONFIG.replace(tied_embeddings=tied), dtype=dtype)
    options.setdefault("metrics", [kt.MaskedAccuracy(), kt.Perplexity()])
    model.compile(
        optimizer or keras.optimizers.SGD(RATE, global_clipnorm=clipnorm),
        kt.MaskedCrossentropy(0.1) if loss is None else loss,
        **options,
    )
    return model


def model_of_rows(outputs):
    """A model of rows (B, T, 3): of one class each, or of one at each position."""
    rows = keras.Input((None, 3))
    model = ExactModel(rows, keras.layers.Dense(4)(outputs(rows)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    return model


@pytest.mark.parametrize("of", ("Transformer", "functional"))
@pytest.mark.parametrize("method", ("fit", "train_on_batch"))
def test_weights_of_classes_are_refused_where_keras_would_weigh_rows(of, method):
    x, y = np.zeros((2, 5, 3)), np.ones((2, 5), "int32")
    model = model_of_rows(lambda rows: rows)
    if of == "Transformer":
        model, x = make_model(), (y, y)
    with pytest.raises(ValueError, match=r"targets \(B, T\).*`sample_weight` \(B, T\)"):
        getattr(model, method)(x, y, class_weight={5: 100.0})


def test_weights_of_classes_scale_rows_of_one_class():
    model, x = model_of_rows(lambda rows: rows[:, 0]), np.ones((2, 5, 3), "float32")
    losses = [float(model.test_on_batch(x[:1], np.array([[i]]))) for i in range(2)]
    found = model.train_on_batch(x, np.array([[0], [1]]), class_weight={1: 3.0})
    np.testing.assert_allclose(found, (losses[0] + 3 * losses[1]) / 2, rtol=1e-5)


class Data(keras.utils.PyDataset):
    """Batches in their order, with their weights or without."""

    def __init__(self, batches, weighted=False):
        super().__init__()
        self.batches = [batch if weighted else batch[:2] for batch in batches]

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def fit(model, batches, weighted=False, **options):
    """Trains and returns the history."""
    data = Data(batches, weighted)
    return model.fit(data, shuffle=False, verbose=0, **options).history


def change_of(model, batches, weighted=False):
    """What training adds to each weight."""
    before = model.get_weights()
    fit(model, batches, weighted)
    return [new - old for new, old in zip(model.get_weights(), before, strict=True)]


def assert_same(changes, expected, tolerance=5e-6):
    """To a few units in the last place of the largest."""
    largest = max(np.abs(change).max() for change in expected)
    assert largest > 1e-4
    for change, wanted in zip(changes, expected, strict=True):
        np.testing.assert_allclose(change, wanted, rtol=0, atol=tolerance * largest)


def value_of(scalar):
    return float(ops.convert_to_numpy(scalar))


def state_of(model):
    """Values of the weights and of the optimizer's variables."""
    variables = [*model.weights, *model.optimizer.variables]
    return [ops.convert_to_numpy(variable) for variable in variables]


# In half precision, to a few units of it.
OF_TYPES = {None: 5e-6, "mixed_bfloat16": 0.05, "mixed_float16": 5e-3}


@pytest.mark.parametrize(
    "kind, dtype, weighted, clipnorm",
    [
        (kt.Transformer, None, True, 0.05),
        (Small, None, False, None),
        (Small, "mixed_float16", True, 0.05),
        *(
            pytest.param(kt.Transformer, dtype, *options, marks=pytest.mark.slow)
            for dtype in OF_TYPES
            for options in ((False, None), (True, 0.05))
            if (dtype, *options) != (None, True, 0.05)
        ),
    ],
)
def test_accumulated_batches_give_the_update_of_the_large_batch(
    kind, dtype, weighted, clipnorm
):
    batches = make_batches()
    options = {"kind": kind, "clipnorm": clipnorm, "dtype": dtype}
    expected = change_of(make_model(**options), [joined(batches)], weighted)
    small = make_model(gradient_accumulation_steps=3, **options)
    assert_same(change_of(small, batches, weighted), expected, OF_TYPES[dtype])
    assert small.updates == 1
    if clipnorm is not None:
        length = np.sqrt(sum(np.square(change).sum() for change in expected))
        np.testing.assert_allclose(length, RATE * clipnorm, rtol=1e-4)


@keras.saving.register_keras_serializable(package="tests")
class CountedLoss(keras.losses.SparseCategoricalCrossentropy):
    """A mean of Keras over all targets, which says how many they are."""

    def count(self, y):
        return ops.cast(ops.size(y), "float32")


@pytest.mark.parametrize("wrap", (lambda loss: loss, lambda loss: [loss]))
def test_a_loss_that_counts_its_targets_accumulates(wrap):
    rng = np.random.default_rng(5)
    batches = [make_batch(rng, rows, 4, 7, [7] * rows) for rows in (1, 5)]
    loss = wrap(CountedLoss(from_logits=True))
    expected = change_of(make_model(loss=loss), [joined(batches)])
    small = make_model(loss=loss, gradient_accumulation_steps=2)
    assert_same(change_of(small, batches), expected)


def test_a_loss_that_does_not_say_how_many_targets_it_counts():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    batches = make_batches()
    history = fit(make_model(keras.optimizers.SGD(0.0), loss), batches)
    sizes = [targets.size for _, targets, _ in batches]
    means = [make_model(loss=loss).evaluate(*b[:2], verbose=0)[0] for b in batches]
    expected = np.average(means, weights=sizes)
    np.testing.assert_allclose(history["loss"], expected, rtol=1e-5)
    with pytest.raises(ValueError, match="must have a method `count.*`loss_divisor`"):
        fit(make_model(loss=loss, gradient_accumulation_steps=2), batches[:1])

    class Own(Small):
        def loss_divisor(self, y):
            return ops.convert_to_tensor(1.0)

    fit(make_model(loss=loss, kind=Own, gradient_accumulation_steps=2), batches[:1])


@pytest.mark.parametrize("steps", (1, 2))
def test_a_scaled_loss_has_the_gradient_and_the_value_of_itself(steps):
    clipnorm, batches = 0.05, make_batches()[:steps]
    options = {"gradient_accumulation_steps": steps}
    expected = change_of(make_model(clipnorm=clipnorm, **options), batches)
    rest = {"loss_scale_factor": 8.0, "global_clipnorm": clipnorm}
    scaled = keras.optimizers.SGD(RATE, **rest)
    assert_same(change_of(make_model(scaled, **options), batches), expected)
    still = keras.optimizers.SGD(0.0, loss_scale_factor=8.0)
    plain = keras.optimizers.SGD(0.0)
    history, wanted = (fit(make_model(o, **options), batches) for o in (still, plain))
    np.testing.assert_allclose(history["loss"], wanted["loss"], rtol=1e-6)


def test_schedule_and_iterations_count_updates():
    schedule = kt.TransformerSchedule(d_model=12, warmup_steps=10)
    model = make_model(keras.optimizers.Adam(schedule), gradient_accumulation_steps=2)
    first, second, third = make_batches()
    fit(model, [first, second, third], epochs=2)
    assert int(ops.convert_to_numpy(model.optimizer.iterations)) == 3
    rate = ops.convert_to_numpy(model.optimizer.learning_rate)
    np.testing.assert_allclose(rate, ops.convert_to_numpy(schedule(3)), rtol=1e-6)
    # The third batch of the first epoch and the first of the second made one update.
    whole = make_model(keras.optimizers.Adam(schedule), gradient_accumulation_steps=2)
    fit(whole, [first, second, third, first, second, third])
    assert_equal(state_of(model), state_of(whole))


def test_without_options_it_trains_as_keras_does():
    class Plain(Small):
        train_step = keras.Model.train_step

    def change(kind):
        # A small epsilon would show the rounding of gradients that are almost zero.
        optimizer = keras.optimizers.Adam(0.01, epsilon=1e-3)
        return change_of(make_model(optimizer, kind=kind), make_batches())

    assert_same(change(Small), change(Plain))


def test_a_step_is_traced_once():
    class Counted(Small):
        traces = 0

        def train_step(self, *args):
            self.traces += 1
            return super().train_step(*args)

    model = Counted(CONFIG)
    # JAX traces what it compiles alone; TensorFlow need not compile.
    compiles = keras.backend.backend() == "jax"
    model.compile("adam", kt.MaskedCrossentropy(), jit_compile=compiles)
    model.fit(Data(make_batches()[:1]), epochs=2, verbose=0)
    # PyTorch traces nothing, and calls it for every batch.
    assert model.traces == (2 if keras.backend.backend() == "torch" else 1)


def test_an_optimizer_of_a_strategy_is_built_in_its_scope():
    if keras.backend.backend() != "tensorflow":
        pytest.skip("a strategy is TensorFlow's")
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = make_model(keras.optimizers.SGD(0.1, momentum=0.9))
    fit(model, make_batches()[:1])
    for momentum in model.optimizer.momentums:
        assert isinstance(momentum.value, tf.distribute.DistributedValues)


def test_logged_losses_are_means_over_tokens():
    batches = make_batches()
    model = make_model(keras.optimizers.SGD(0.0))
    history = fit(model, batches, validation_data=Data(batches))
    large = model.evaluate(*joined(batches)[:2], batch_size=64, verbose=0)
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(history[name], large[0], rtol=1e-6)
    mean_of_batches = np.mean(
        [model.evaluate(*b[:2], batch_size=64, verbose=0)[0] for b in batches]
    )
    assert abs(mean_of_batches - large[0]) > 1e-3


@pytest.mark.parametrize("steps", (1, 3))
def test_a_batch_that_is_not_finite_is_skipped_and_counted(steps):
    first, second, third = make_batches()
    options = {"gradient_accumulation_steps": steps, "nonfinite": "skip"}
    model = make_model(keras.optimizers.Adam(0.01), **options)
    history = fit(model, [first, poisoned(second), third], weighted=True)
    assert model.nonfinite_batches == 1
    assert np.isfinite(list(history.values())).all()
    # With accumulation the update still comes after the third batch.
    nothing = second[0], np.zeros_like(second[1]), second[2]
    other = make_model(keras.optimizers.Adam(0.01), **options)
    expected = fit(other, [first, nothing, third], weighted=True)
    assert history == expected
    assert_equal(state_of(model), state_of(other))
    updates = int(ops.convert_to_numpy(model.optimizer.iterations))
    assert updates == (2 if steps == 1 else 1)


@keras.saving.register_keras_serializable(package="tests")
class RootOfZero(kt.MaskedCrossentropy):
    """Adds 0, whose derivative is no number."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        zero = ops.sqrt(0.0 * ops.sum(y_pred))
        return super().__call__(y_true, y_pred, sample_weight) + zero


@pytest.mark.parametrize("loss, targets", ((RootOfZero(), 1), (None, 0)))
def test_no_finite_gradient_and_no_target_change_nothing(loss, targets):
    optimizer = keras.optimizers.Adam(0.01)
    model = make_model(optimizer, loss, nonfinite="skip" if targets else "stop")
    optimizer.build(model.trainable_weights)
    before = state_of(model)
    batches = [(inputs, targets * target) for inputs, target, _ in make_batches()]
    history = fit(model, batches)
    assert model.nonfinite_batches == 3 * targets
    assert np.isfinite(history["loss"]).all()
    assert_equal(state_of(model), before)


@pytest.mark.slow
@pytest.mark.parametrize("steps", (1, 2))
@pytest.mark.parametrize("bad", (0, 3, 4))
def test_training_stops_after_a_batch_that_is_not_finite(monkeypatch, steps, bad):
    monkeypatch.setattr(exact, "_LOOK_EVERY", 3)
    seen = []
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(batch)
    )
    batches = [make_batches()[i % 3] for i in range(7)]
    first, after = batches[:bad], batches[bad + 1 :]
    options = {"gradient_accumulation_steps": steps}
    model = make_model(keras.optimizers.Adam(0.01), **options)
    # The bad batch counts as one without a target, which may be an update's last.
    updates = (bad + steps - 1) // steps
    with pytest.raises(FloatingPointError, match=f"after {updates} updates"):
        bad_batch = poisoned(batches[bad])
        fit(model, [*first, bad_batch, *after], weighted=True, callbacks=record)
    assert seen == list(range({0: 4, 3: 7, 4: 7}[bad]))
    assert (model.nonfinite_batches, model.held_batches) == (1, 0)
    # What came after it changed nothing.
    inputs, targets, weights = batches[bad]
    other = make_model(keras.optimizers.Adam(0.01), **options)
    other.optimizer.build(other.trainable_weights)
    nothing = inputs, np.zeros_like(targets), weights
    fit(other, [*first, nothing], weighted=True)
    assert model.history.history == other.history.history
    assert_equal(state_of(model), state_of(other))
    fit(model, [batches[0]], callbacks=[record])  # An earlier one does not count again.
    assert model.updates == updates + (steps == 1 or bad % 2 == 0)


def test_files_keep_the_options_and_no_training_state(tmp_path):
    options = {"gradient_accumulation_steps": 2, "nonfinite": "skip"}
    model = make_model(keras.optimizers.Adam(0.01), **options)
    weights = len(model.weights)
    many = len(model.variables)
    assert many - weights >= 4 + weights
    fit(model, make_batches())
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")

    bare = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    assert len(bare.variables) == len(Small(CONFIG).variables)
    assert bare.nonfinite_batches == 0
    bare.load_weights(tmp_path / "model.weights.h5")

    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.gradient_accumulation_steps == 2
    assert loaded.nonfinite == "skip"
    assert_equal(state_of(loaded), state_of(model))
    # Compiling again drops the accumulators.
    model.compile(keras.optimizers.Adam(1.0), kt.MaskedCrossentropy())
    assert len(model.variables) <= many - weights


def functional():
    """A model of layers, with a weight that the loss does not depend on."""
    keras.utils.set_random_seed(3)
    ids = keras.Input((None,), dtype="int32")
    unused = keras.layers.Embedding(SIZE, 5)(ids)
    states = keras.layers.Embedding(SIZE, 5)(ids) + 0.0 * ops.stop_gradient(unused)
    return ExactModel(ids, keras.layers.Dense(SIZE)(states))


def test_a_functional_model_trains_exactly_and_is_saved(tmp_path):
    batches = [(target, target, w) for _, target, w in make_batches()]
    large = joined(make_batches())[1]
    changes = []
    for data, steps in (([(large, large)], 1), (batches, 3)):
        model = functional()
        model.compile(
            keras.optimizers.SGD(RATE),
            kt.MaskedCrossentropy(0.1),
            gradient_accumulation_steps=steps,
        )
        changes.append(change_of(model, data))
    assert_same(*changes)
    assert not np.any(changes[0][0])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is ExactModel and loaded.gradient_accumulation_steps == 3
    results = [ops.convert_to_numpy(one(large)) for one in (loaded, model)]
    np.testing.assert_array_equal(*results)


# Training without the logits is training with them, and used where it may be.


class OwnLogits:
    """Mixin of logits that a method of its own makes."""

    def logits(self, states):
        return super().logits(states)


class WithLogits(OwnLogits, kt.Transformer):
    pass


class SmallWithLogits(OwnLogits, Small):
    pass


class Colder:
    """Mixin of logits that are three times as large."""

    def logits(self, states):
        return 3.0 * super().logits(states)


class ColderTransformer(Colder, kt.Transformer):
    pass


class ColderLanguageModel(Colder, kt.LanguageModel):
    pass


class ColderCall(kt.LanguageModel):
    """Cannot return its states."""

    def call(self, ids, training=None):
        return 3.0 * super().call(ids, training=training)


class ColderRows(kt.Transformer):
    """Has the same logits, and other rows."""

    def output_rows(self):
        return 3.0 * super().output_rows()


class SoftCapped(kt.Transformer):
    """Has a table with logits of its own."""

    def make_embedding(self, name, vocabulary_size):
        embedding = super().make_embedding(name, vocabulary_size)
        embedding.token_embedding.logit_soft_cap = 0.1
        return embedding


class DenseWithBias(kt.Transformer):
    """Has an output layer that does more than a product."""

    def make_output(self, embedding, vocabulary_size, use_bias):
        super().make_output(None, vocabulary_size, use_bias)
        self.output_dense = keras.layers.Dense(vocabulary_size, bias_initializer="ones")
        self.output_dense.build((None, None, self.config.d_model))
        self.output_dense.bias.assign(np.arange(vocabulary_size))


class Doubled(kt.Transformer):
    """Has a loss of its own."""

    def compute_loss(self, *args, **kwargs):
        return 2.0 * super().compute_loss(*args, **kwargs)


class SeesLogits(kt.Transformer):
    """Looks at the logits for its logs."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        return logs | {"largest": ops.max(y_pred)}


class AnyPadding(kt.Transformer):
    """Does not say which id pads its targets."""

    target_pad_id = None


class LowerCase(kt.Perplexity):
    """Computes other values than its parent."""

    def values(self, y_true, y_pred):
        return super().values(y_true, y_pred) * 2


def without_logits(kind=kt.Transformer, **options):
    return make_model(kind=kind, jit_compile=False, **options)


def y_pred_of(model):
    inputs, targets, _ = make_batches()[0]
    inputs = [ops.convert_to_tensor(i) for i in inputs]
    return loss_and_scores(model, inputs, ops.convert_to_tensor(targets), None, False)[
        1
    ]


@pytest.mark.one_case("three-way")
@pytest.mark.parametrize("tied", ["three-way", "none"])
def test_it_trains_and_evaluates_as_with_the_logits(tied, monkeypatch):
    monkeypatch.setattr("keras_transformer.nn.kernels.crossentropy.CHUNK_TOKENS", 8)
    batches, changes, results = make_batches(), [], []
    for kind in (kt.Transformer, WithLogits):
        model = without_logits(
            kind,
            tied=tied,
            weighted_metrics=[kt.Perplexity(name="weighted")],
            gradient_accumulation_steps=3,
        )
        inputs, targets, weights = batches[0]
        results.append(
            model.evaluate(inputs, targets, sample_weight=weights, verbose=0)
        )
        changes.append(change_of(model, batches, weighted=True))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)
    assert_same(*changes)


def test_no_logits_where_the_loss_and_the_metrics_need_none():
    class States(kt.Transformer):
        def encode(self, source, training=None):
            return super().encode(source, training)

    class SaysItAgain(WithLogits):
        trains_without_logits = True

    for options in ({}, {"metrics": None}, {"kind": States}, {"kind": SaysItAgain}):
        assert isinstance(y_pred_of(without_logits(**options)), TokenScores)


class All(Colder, Doubled, SeesLogits):
    pass


def language_model(config, dtype, model_class=ColderCall):
    sizes = {"num_layers": 1, "d_model": 12, "d_ff": 20, "num_heads": 3}
    sizes |= {"vocabulary_size": SIZE} | NO_DROPOUT
    return model_class(kt.LanguageModelConfig(**sizes))


def colder_language_model(config, dtype):
    return language_model(config, dtype, ColderLanguageModel)


@pytest.mark.parametrize(
    "kind, factor, eager",
    [
        (ColderTransformer, 1, True),
        (ColderRows, 1, True),
        (SoftCapped, 1, True),
        (DenseWithBias, 1, True),
        (colder_language_model, 1, True),
        (language_model, 1, True),
        (All, 2, False),
    ],
)
def test_what_a_subclass_overrides_is_trained_and_evaluated(kind, factor, eager):
    inputs, targets, _ = make_batches()[0]
    loss, metrics = kt.MaskedCrossentropy(0.1), [kt.Perplexity()]
    optimizer = keras.optimizers.SGD(0.1)
    model = make_model(optimizer, loss, kind, metrics=metrics, run_eagerly=eager)
    inputs = inputs if isinstance(model, kt.Transformer) else inputs[1]
    logits = model(inputs)
    expected = factor * value_of(loss(targets, logits))
    perplexity = np.exp(value_of(kt.MaskedCrossentropy()(targets, logits)))
    for verb in (model.test_on_batch, model.train_on_batch):
        logs = verb(inputs, targets, return_dict=True)
        np.testing.assert_allclose(logs["loss"], expected, rtol=1e-5)
        np.testing.assert_allclose(logs["perplexity"], perplexity, rtol=1e-4)
        assert ("largest" in logs) == issubclass(type(model), SeesLogits)
    # It is minimised, too.
    assert model.test_on_batch(inputs, targets)[0] < expected


@pytest.mark.parametrize(
    "options",
    [
        {"kind": WithLogits},
        {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        {"metrics": ["accuracy"]},
        {"kind": AnyPadding, "metrics": [kt.MaskedAccuracy(pad_id=1)]},
        {"metrics": [LowerCase()]},
        {"weighted_metrics": [LowerCase()]},
    ],
)
def test_all_logits_where_something_asks_for_them(options):
    assert not isinstance(y_pred_of(without_logits(**options)), TokenScores)


class WithPenalty(kt.Transformer):
    """Adds a loss of its own in each call."""

    def encode(self, source, training=None):
        self.add_loss(ops.convert_to_tensor(0.25))
        return super().encode(source, training)


def test_added_losses_count():
    inputs, targets, _ = make_batches()[0]
    losses = [
        make_model(kind=kind, metrics=None, run_eagerly=True).evaluate(
            inputs, targets, verbose=0
        )
        for kind in (WithPenalty, kt.Transformer)
    ]
    np.testing.assert_allclose(losses[0] - losses[1], 0.25, rtol=1e-5)


def test_added_losses_count_once_in_each_of_several_replicas(monkeypatch):
    """Keras divides its losses by the replicas; these it never sees."""
    inputs, targets, _ = make_batches()[0]
    inputs = [ops.convert_to_tensor(i) for i in inputs]
    batch = inputs, ops.convert_to_tensor(targets), None, False
    expected, y_pred = loss_and_scores(without_logits(WithPenalty), *batch)
    assert isinstance(y_pred, TokenScores)
    for module in ("nn.losses", "models.batch_step"):
        monkeypatch.setattr(f"keras_transformer.{module}.num_replicas", lambda: 3)
    loss, _ = loss_and_scores(without_logits(WithPenalty), *batch)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


# Padding, and other ids that are no class.


@pytest.mark.parametrize("kind", (Small, SmallWithLogits))
def test_targets_that_are_no_class_are_never_learned(kind, bad=-100):
    (inputs, targets, weights), *_ = make_batches()
    targets[0, 1] = bad
    # Where nothing is compiled, on JAX, the id is named instead.
    model = make_model(kind=kind, jit_compile=keras.backend.backend() == "jax")
    before = model.get_weights()
    assert np.isnan(model.evaluate(inputs, targets, verbose=0)).all()
    with pytest.raises(FloatingPointError, match="that are no class, such as -100, to"):
        fit(model, [(inputs, targets, weights)])
    assert_equal(model.get_weights(), before)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ("jax", "torch"))
def test_these_tests_pass_on_other_backends(backend):
    run_tests(backend, __file__, "-k", "subclass or no_class")


def test_a_model_and_its_losses_and_metrics_must_mean_the_same_padding():
    """What differs is refused in `tests/test_errors.py`."""
    right = kt.MaskedCrossentropy(pad_id=1)
    config = CONFIG.replace(pad_id=1, start_id=0, unknown_id=3)
    metrics = [kt.MaskedAccuracy(1), kt.Perplexity(1), "accuracy"]
    model = kt.Transformer(config)
    model.compile("sgd", right, metrics=metrics, weighted_metrics=[kt.Perplexity(1)])
    # Losses that leave out no padding are the user's choice,
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["acc"])
    model.compile("sgd", lambda targets, logits: 0.0)
    # and labels that are no ids have padding of their own.
    sizes = kt.EncoderConfig(num_layers=1, d_model=6, d_ff=8, num_heads=2)
    embedding = kt.PositionalEmbedding(11, sizes.d_model, pad_id=1)
    ids = keras.Input((None,), dtype="int32")
    states = kt.EncoderStack(sizes)(embedding(ids))
    tagger = kt.ExactModel(ids, keras.layers.Dense(5)(states))
    tagger.compile("sgd", kt.MaskedCrossentropy(), metrics=[kt.MaskedAccuracy()])
    # More padding changes no figure.
    model.compile("sgd", right, metrics=[kt.MaskedAccuracy(1)], run_eagerly=True)
    rng = np.random.default_rng(3)
    source, target = rng.integers(4, 11, (5, 3)), rng.integers(4, 11, (5, 7))
    before = model.evaluate((source, target), target, verbose=0)
    more = np.pad(target, ((0, 0), (0, 6)), constant_values=1)
    after = model.evaluate((source, more), more, verbose=0)
    np.testing.assert_allclose(after, before, rtol=1e-5)
