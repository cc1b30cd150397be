"""What a model is compiled with: loss, metrics, optimizer and the learning rate."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import MaskedAccuracy, MaskedCrossentropy, Perplexity
from keras_transformer.nn.arguments import without_known_values
from keras_transformer.nn.kernels.crossentropy import first_largest
from keras_transformer.nn.optimizers import Adam, TransformerSchedule
from keras_transformer.search.tokens import token_log_probabilities
from tests.reference import numpy_transformer as reference

VOCABULARY_SIZE = 7
TARGETS = np.array([[3, 6, 1, 2, 5], [4, 2, 0, 0, 0], [1, 1, 2, 0, 0]], "int32")
PADDING = TARGETS == 0
BACKEND = keras.backend.backend()
MODES = {"eager": None, "graph": {}, "xla": {"jit_compile": True}}
if BACKEND != "tensorflow":
    MODES = {"step": None}
TOLERANCES = {"float32": 1e-5, "bfloat16": 1e-2}
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow")


def in_mode(function, mode):
    """A function of tensors, eager, in a graph, by XLA, or as a step of training."""
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    if BACKEND == "torch":
        return without_known_values()(function)
    if MODES[mode] is None:
        return function
    import tensorflow as tf

    return tf.function(function, **MODES[mode])


def random_logits(dtype="float32", scale=2.0):
    """Logits that `dtype` holds exactly, as a tensor and as float64."""
    rng = np.random.default_rng(5)
    rounded = ops.cast(rng.normal(0, scale, (*TARGETS.shape, VOCABULARY_SIZE)), dtype)
    return rounded, ops.convert_to_numpy(ops.cast(rounded, "float32")).astype("float64")


def value(loss):
    return float(ops.convert_to_numpy(loss))


def loss_and_gradient(loss, logits, targets=TARGETS):
    """On the backend at hand: the loss and its gradient by the logits, in float32."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(logits)
            value = loss(targets, logits)
        return value, tf.cast(tape.gradient(value, logits), "float32")
    if BACKEND == "jax":
        import jax

        function = jax.jit(jax.value_and_grad(lambda logits: loss(targets, logits)))
        value, gradient = function(logits)
        return value, gradient.astype("float32")
    logits = logits.detach().requires_grad_()
    value = loss(ops.convert_to_tensor(targets), logits)
    value.backward()
    return value.detach(), logits.grad.float()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "dtype, label_smoothing, scale",
    (("float32", 0.0, 2.0), ("float32", 0.1, 2.0), ("float32", 0.3, 1e4),
     ("bfloat16", 0.0, 2.0), ("bfloat16", 0.1, 2.0)),
)  # fmt: skip
def test_every_mode_agrees_with_the_closed_form(mode, dtype, label_smoothing, scale):
    logits, exact = random_logits(dtype, scale)
    loss = MaskedCrossentropy(label_smoothing)
    found, gradient = in_mode(lambda x: loss_and_gradient(loss, x), mode)(logits)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    expected = reference.label_smoothed_cross_entropy(exact, TARGETS, label_smoothing)
    np.testing.assert_allclose(value(found), expected, rtol=2e-6)
    expected = reference.label_smoothed_cross_entropy_gradient(
        exact, TARGETS, label_smoothing
    )
    gradient = ops.convert_to_numpy(gradient)
    np.testing.assert_allclose(gradient, expected, rtol=TOLERANCES[dtype], atol=1e-7)
    assert not gradient[PADDING].any()


def function_of_pad(pad_id, mode):
    """Every loss, metric and score of targets and logits, in a step."""
    plain, loss = MaskedCrossentropy(pad_id=pad_id), MaskedCrossentropy(0.1, pad_id)
    metrics = MaskedAccuracy(pad_id), Perplexity(pad_id)

    def results(targets, logits):
        is_class = ops.logical_and(targets >= 0, targets < VOCABULARY_SIZE)
        found = [
            plain(targets, logits),
            loss(targets, logits),
            # A target without weight counts all the same.
            loss(targets, logits, ops.cast(is_class, "float32")),
            loss.from_states(targets, logits, np.eye(VOCABULARY_SIZE, dtype="float32"))[
                0
            ],
            ops.sum(token_log_probabilities(logits, targets, pad_id)),
        ]
        for metric in metrics:
            state = metric.stateless_update_state(metric.variables, targets, logits)
            found.append(metric.stateless_result(state))
        return ops.stack(found)

    return in_mode(results, mode)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "eager"])
def test_a_target_that_is_no_class_is_never_taken_for_another(mode):
    """Not a number, in place of another class; and padding, if it is that."""
    logits, _ = random_logits()

    def run(function, targets):
        found = function(ops.convert_to_tensor(targets, "int32"), logits)
        return ops.convert_to_numpy(found)

    function = function_of_pad(0, mode)
    expected = run(function, TARGETS)
    assert np.isfinite(expected).all()
    for bad in (-100, -1, VOCABULARY_SIZE, 2 * VOCABULARY_SIZE):
        assert np.isnan(run(function, np.where(TARGETS == 5, bad, TARGETS))).all()
    for pad_id in (-100, VOCABULARY_SIZE):
        padded = np.where(PADDING, pad_id, TARGETS)
        found = run(function_of_pad(pad_id, mode), padded)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_as_many_classes_as_a_byte_has():
    targets, logits = np.array([[255, 3, 0]], "uint8"), np.zeros((1, 3, 256))
    found = MaskedCrossentropy(pad_id=-100)(targets, logits)
    assert value(found) == pytest.approx(np.log(256), rel=1e-6)


# Of three words, the first has the probability 1/2, the others 1/4. With e = 0.3 each
# word gets 0.1 and the true one 0.7 more: true word 1 costs 0.1 log 2 + 0.9 log 4 = 1.9
# log 2, true word 0 0.8 log 2 + 0.2 log 4 = 1.2 log 2.
@pytest.mark.parametrize(
    "label_smoothing, pad_id, target, logs_of_2",
    ((0.0, 0, 1, 2.0), (0.0, 2, 0, 1.0), (0.3, 2, 1, 1.9), (0.3, 2, 0, 1.2)),
)
def test_three_words_by_hand(label_smoothing, pad_id, target, logs_of_2):
    logits = np.log(np.array([[[4.0, 2.0, 2.0]]]))
    found = value(MaskedCrossentropy(label_smoothing, pad_id)([[target]], logits))
    assert found == pytest.approx(logs_of_2 * np.log(2), rel=1e-6)


@pytest.mark.parametrize("garbage", (1e30, np.inf, -np.inf, np.nan))
def test_padding_and_its_logits_change_nothing(garbage):
    """Nor does its being more; a batch of nothing else costs nothing."""
    tensor, _ = random_logits()
    logits, loss = ops.convert_to_numpy(tensor).copy(), MaskedCrossentropy(0.1)
    expected = value(loss(TARGETS, logits))
    metrics = MaskedAccuracy(), Perplexity()
    before = [value(metric(TARGETS, logits)) for metric in metrics]
    logits[PADDING] = garbage
    assert value(loss(TARGETS, logits)) == expected
    for metric, result in zip(metrics, before, strict=True):
        metric.reset_state()
        assert value(metric(TARGETS, logits)) == result
    longer, more = (np.pad(x, [(0, 0), (0, 4)] + [(0, 0)] * (x.ndim - 2))
                    for x in (logits, TARGETS))  # fmt: skip
    assert value(loss(more, longer)) == pytest.approx(expected, rel=1e-6)
    cost, gradient = loss_and_gradient(loss, tensor, np.zeros_like(TARGETS))
    assert value(cost) == 0.0 and not ops.convert_to_numpy(gradient).any()


def test_keras_mask_of_the_logits_plays_no_part():
    """Decoder inputs of 0 are masked, their targets are not padding: all count."""
    embedding = keras.layers.Embedding(
        VOCABULARY_SIZE, VOCABULARY_SIZE, "normal", mask_zero=True
    )
    logits, targets = embedding(TARGETS), np.where(PADDING, 3, TARGETS)
    np.testing.assert_array_equal(ops.convert_to_numpy(logits._keras_mask), ~PADDING)
    exact = ops.convert_to_numpy(logits)
    expected = reference.label_smoothed_cross_entropy(exact, targets, 0.1)
    found = value(MaskedCrossentropy(0.1)(targets, logits))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


WEIGHTS = {
    "of rows": np.array([2.0, 0.0, 0.5]),
    "of rows, as a column": np.array([[2.0], [0.0], [0.5]]),
    "of tokens": np.array(
        [[1.0, 0.5, 0.0, 2.0, 1.0], [3.0, 1.0, 9.0, 9.0, 9.0], [0.0, 1, 1, 9, 9]]
    ),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_sample_weights_scale_tokens_but_not_the_divisor_of_the_loss(kind):
    """Metrics are weighted means."""
    (_, logits), weights = random_logits(), WEIGHTS[kind]
    logits[0] += 9.0 * np.eye(VOCABULARY_SIZE)[TARGETS[0]]  # What is predicted right.
    of_token = ~PADDING * (weights[:, None] if weights.ndim == 1 else weights)
    log_p = reference.log_softmax(logits)
    smoothed = reference.smoothed_targets(TARGETS, VOCABULARY_SIZE, 0.1)
    costs = -(smoothed * log_p).sum(axis=-1)
    log_p = np.take_along_axis(log_p, TARGETS[..., None], axis=-1)[..., 0]
    correct = logits.argmax(axis=-1) == TARGETS
    mean_log_p = (log_p * of_token).sum() / of_token.sum()
    for objective, expected in (
        (MaskedCrossentropy(0.1), (costs * of_token).sum() / (~PADDING).sum()),
        (MaskedAccuracy(), (correct * of_token).sum() / of_token.sum()),
        (Perplexity(), np.exp(-mean_log_p)),
    ):
        found = objective(TARGETS, logits, sample_weight=weights)
        np.testing.assert_allclose(value(found), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype, large", (("bfloat16", 1e30), ("float16", 6e4)))
def test_large_logits_in_half_precision_do_not_overflow(dtype, large):
    """Word 0 has the logit `large`, z; the others, the targets among them, have 0.

    The cost of a token is z - 0.1 z / V; summed in 16 bits it would be infinite.
    """
    of_words = ops.cast(large * np.eye(VOCABULARY_SIZE)[0], dtype)
    logits = ops.broadcast_to(of_words, (*TARGETS.shape, VOCABULARY_SIZE))
    rounded = value(ops.cast(of_words[0], "float32"))
    found = value(MaskedCrossentropy(label_smoothing=0.1)(TARGETS, logits))
    expected = rounded * (1 - 0.1 / VOCABULARY_SIZE)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@on_tensorflow
def test_graph_holds_no_one_hot_tensor():
    """With its gradient; a [B, T, V] one-hot is the memory that the loss saves."""
    import tensorflow as tf

    loss = MaskedCrossentropy(label_smoothing=0.1)
    step = tf.function(lambda x, y: loss_and_gradient(loss, y, x))
    graph = step.get_concrete_function(
        tf.TensorSpec((None, None), "int32"),
        tf.TensorSpec((None, None, VOCABULARY_SIZE), "float32"),
    ).graph.as_graph_def()
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    operations = {node.op for body in bodies for node in body}
    assert "Sum" in operations
    assert not {name for name in operations if "OneHot" in name}


@on_tensorflow
@pytest.mark.parametrize("mode", MODES)
def test_first_of_equal_logits_is_the_largest(mode):
    import tensorflow as tf

    logits = tf.constant([[1.0, 3.0, 3.0], [-0.0, 0.0, -1.0], [2.0, 2.0, 2.0]])
    for dtype in ("float32", "bfloat16"):
        places = in_mode(first_largest, mode)(tf.cast(logits, dtype))
        assert ops.convert_to_numpy(places).tolist() == [1, 0, 0]


# Accuracy and perplexity over batches of different sizes.
# 5, 1 and 3 tokens that count, so that a mean of means is another number.
BATCHES = (
    np.array([[3, 6, 1], [4, 2, 0]], "int32"),
    np.array([[5, 0, 0, 0, 0]], "int32"),
    np.array([[1, 2], [6, 0], [0, 0]], "int32"),
)
METRICS = {
    "masked_accuracy": (MaskedAccuracy, reference.masked_accuracy),
    "perplexity": (Perplexity, reference.perplexity),
}


@pytest.fixture
def logits(rng):
    """Logits of each batch; half of the tokens are predicted right."""
    batches = []
    for targets in BATCHES:
        batch = rng.normal(size=(*targets.shape, VOCABULARY_SIZE)).astype("float32")
        right = rng.random(targets.shape) < 0.5
        batch += 9.0 * right[..., None] * np.eye(VOCABULARY_SIZE)[targets]
        batches.append(batch.astype("float32"))
    return batches


def result_of(metric):
    return float(ops.convert_to_numpy(metric.result()))


def flat(arrays, width=()):
    """The tokens of all batches in one row."""
    return np.concatenate([a.reshape(-1, *width) for a in arrays])[None]


def of_all_tokens(function, logits, pad_id=0):
    return function(flat(logits, (VOCABULARY_SIZE,)), flat(BATCHES), pad_id=pad_id)


def test_metrics_of_three_words_by_hand():
    """Probabilities 1/2, 1/4, 1/4; the targets are word 0, word 1 and padding (2)."""
    logits = np.log(np.array([[[4.0, 2.0, 2.0]] * 3]))
    targets = np.array([[0, 1, 2]])
    accuracy, perplexity = MaskedAccuracy(pad_id=2), Perplexity(pad_id=2)
    accuracy.update_state(targets, logits)
    perplexity.update_state(targets, logits)
    assert result_of(accuracy) == 0.5
    # exp((log 2 + log 4) / 2) = sqrt 8
    assert result_of(perplexity) == pytest.approx(np.sqrt(8), rel=1e-6)


@on_tensorflow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("pad_id", (0, 6))
def test_mean_over_the_tokens_of_all_batches(name, mode, pad_id, logits):
    metric_class, function = METRICS[name]
    metric, expected = metric_class(pad_id), of_all_tokens(function, logits, pad_id)
    update = in_mode(metric.update_state, mode)
    for _ in range(2):  # Once more after a reset, which forgets.
        metric.reset_state()
        for targets, batch in zip(BATCHES, logits, strict=True):
            update(ops.convert_to_tensor(targets), ops.convert_to_tensor(batch))
        np.testing.assert_allclose(result_of(metric), expected, rtol=1e-5)
    of_batches = [function(b, t, pad_id) for t, b in zip(BATCHES, logits, strict=True)]
    assert pad_id or abs(np.mean(of_batches) - expected) > 1e-2


def test_nothing_counted_yet(logits):
    """No token: accuracy 0, perplexity exp(0), and no NaN."""
    accuracy, perplexity = MaskedAccuracy(), Perplexity()
    assert (result_of(accuracy), result_of(perplexity)) == (0.0, 1.0)
    for metric in (accuracy, perplexity):
        metric.update_state(np.zeros_like(BATCHES[0]), logits[0])
    assert (result_of(accuracy), result_of(perplexity)) == (0.0, 1.0)


def test_metrics_of_half_precision_logits_are_summed_in_float32():
    logits, exact = random_logits("bfloat16")
    for metric_class, function in METRICS.values():
        result = metric_class()(TARGETS, logits)
        assert keras.backend.standardize_dtype(result.dtype) == "float32"
        np.testing.assert_allclose(float(result), function(exact, TARGETS), rtol=1e-6)


def test_saved_model_keeps_its_loss_and_metrics(tmp_path):
    inputs = keras.Input((None,), dtype="int32")
    outputs = keras.layers.Embedding(VOCABULARY_SIZE, VOCABULARY_SIZE, "normal")(inputs)
    model = keras.Model(inputs, outputs)
    loss = MaskedCrossentropy(label_smoothing=0.2, pad_id=2, name="named")
    metrics = [MaskedAccuracy(pad_id=2), Perplexity(pad_id=2)]
    model.compile(optimizer="sgd", loss=loss, metrics=metrics)
    targets = BATCHES[0]
    found = model.evaluate(targets, targets, verbose=0, return_dict=True)
    logits = model.predict(targets, verbose=0)
    expected = reference.label_smoothed_cross_entropy(logits, targets, 0.2, pad_id=2)
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-5)
    for name, (_, function) in METRICS.items():
        expected = function(logits, targets, pad_id=2)
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, err_msg=name)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.loss, MaskedCrossentropy)
    config = {"label_smoothing": 0.2, "pad_id": 2, "name": "named"}
    assert loaded.loss.get_config() == loss.get_config() == config
    assert loaded.evaluate(targets, targets, verbose=0, return_dict=True) == found
    for metric in metrics:
        assert type(metric).from_config(metric.get_config()).pad_id == 2


# Our Adam, with the weights and moments of Keras'.

OPTIONS = {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-3}
SCHEDULE = keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 0.5)


def results(make, mode, sparse=True, **options):
    """All weights and optimizer variables after five updates."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    weights = [keras.Variable(rng.normal(size=s), name="w") for s in ((4, 2), (3,))]
    optimizer = make(SCHEDULE, **OPTIONS | options)
    optimizer.build(weights)
    step = in_mode(lambda gradients: optimizer.apply(gradients, weights), mode)
    for _ in range(5):
        # Of a lookup that reads row 1 of 4 twice.
        first = tf.IndexedSlices(
            tf.constant(rng.normal(size=(3, 2))),
            tf.constant([1, 3, 1]),
            tf.constant([4, 2], "int64"),
        )
        if not sparse:
            first = tf.convert_to_tensor(first)
        step([first, ops.convert_to_tensor(rng.normal(size=3))])
    return [ops.convert_to_numpy(v) for v in (*weights, *optimizer.variables)]


OF_ADAM = {
    "plain": {},
    "AMSGrad": {"amsgrad": True},
    "decay": {"weight_decay": 0.1},
    "EMA": {"use_ema": True},
    "EMA written": {
        "use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2,
    },
    "accumulated": {"gradient_accumulation_steps": 2},
    "all": {"gradient_accumulation_steps": 3, "weight_decay": 0.1, "use_ema": True},
    "clipped norm": {"clipnorm": 0.5},
    "clipped values": {"clipvalue": 0.3},
    "clipped norm of all": {"global_clipnorm": 0.7},
    "scaled loss": {"loss_scale_factor": 8.0},
    "accumulated and clipped": {"gradient_accumulation_steps": 2, "clipnorm": 0.5},
}  # fmt: skip


@on_tensorflow
@pytest.mark.one_case("all-True-False")
@pytest.mark.parametrize("xla", (False, True))
@pytest.mark.parametrize("sparse", (False, True))
@pytest.mark.parametrize("name", OF_ADAM)
def test_five_updates_are_those_of_keras_with_dense_gradients(name, sparse, xla):
    """Of a sparse one Keras clips the parts before they are summed, or fails."""
    options = OF_ADAM[name]
    changed = {"clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor"}
    sparse = sparse and changed.isdisjoint(options)
    mode = "xla" if xla else "graph"
    ours = results(Adam, mode, sparse, **options)
    expected = results(keras.optimizers.Adam, mode, False, **options)
    for left, right in zip(ours, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-6, atol=1e-7)


@on_tensorflow
@pytest.mark.parametrize("dtype", ("bfloat16", "float16", "float64"))
def test_updates_of_weights_of_another_type_are_those_of_keras(dtype):
    import tensorflow as tf

    gradients = [[0.5, -1.0, 0.1 * number] for number in range(5)]

    def updated(make):
        weight = keras.Variable(np.ones(3), dtype=dtype, name="w")
        optimizer = make(SCHEDULE, **OPTIONS)
        optimizer.build([weight])
        step = tf.function(lambda gradient: optimizer.apply([gradient], [weight]))
        for gradient in gradients:
            step(tf.cast(tf.constant(gradient), dtype))
        variables = [weight, *optimizer.variables]
        return [ops.convert_to_numpy(ops.cast(v, "float64")) for v in variables]

    found = [updated(make) for make in (Adam, keras.optimizers.Adam)]
    exact = 1e-12 if dtype == "float64" else 0.0
    assert np.abs(found[0][0] - 1).max() > 0.1
    for left, right in zip(*found, strict=True):
        np.testing.assert_allclose(left, right, rtol=exact, atol=exact)


def operations(**how):
    """Types of the operations of an update of one weight."""
    import tensorflow as tf

    weight = keras.Variable(np.ones(3), name="w")
    optimizer = Adam(0.1)
    optimizer.build([weight])

    @tf.function(input_signature=[tf.TensorSpec((3,))], **how)
    def step(gradient):
        optimizer.apply([gradient], [weight])

    return [op.type for op in step.get_concrete_function().graph.get_operations()]


@on_tensorflow
def test_graph_has_one_update_a_weight_and_xla_none():
    assert operations().count("ResourceApplyAdam") == 1
    assert "ResourceApplyAdam" not in operations(jit_compile=True)


@on_tensorflow
def test_configuration_comes_back():
    optimizer = Adam(1e-2, **OPTIONS)
    config = keras.optimizers.serialize(optimizer)
    again = keras.optimizers.deserialize(config)
    assert type(again) is Adam
    assert again.get_config() == optimizer.get_config()
    assert optimizer.name.startswith("adam")


# The paper's learning rate: by hand, against the reference, inside optimizers.


@on_tensorflow
@pytest.mark.parametrize(
    "update, expected",
    (
        # 16^-0.5 = 1/4 and 100^-1.5 = 1/1000: 1/4 * 1/1000 on the way up,
        (1, 0.25 / 1000),
        # 1/4 * 100^-0.5 at the peak,
        (100, 0.025),
        # 1/4 * 400^-0.5, half of the peak, four times as late.
        (400, 0.0125),
    ),
)
def test_rate_by_hand(update, expected):
    schedule = TransformerSchedule(d_model=16, warmup_steps=100)
    scaled = TransformerSchedule(d_model=16, warmup_steps=100, scale=2.5)
    for dtype in ("int32", "int64"):
        rate = schedule(ops.convert_to_tensor(update - 1, dtype=dtype))
        assert keras.backend.standardize_dtype(rate.dtype) == "float32"
        assert value(rate) == pytest.approx(expected, rel=1e-6)
    assert value(scaled(update - 1)) == pytest.approx(2.5 * expected, rel=1e-6)


@on_tensorflow
def test_rates_agree_with_the_reference():
    schedule = TransformerSchedule(d_model=512, warmup_steps=4000)
    for update in (1, 2, 3, 1999, 4000, 4001, 100_000, 300_000):
        expected = reference.learning_rate(update, 512, 4000)
        np.testing.assert_allclose(value(schedule(update - 1)), expected, rtol=1e-6)


@on_tensorflow
def test_saved_model_continues_the_schedule(tmp_path):
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    schedule = TransformerSchedule(16, warmup_steps=100, scale=2.0)
    model.compile(optimizer=keras.optimizers.Adam(schedule), loss="mse")
    model.fit(np.ones((6, 2)), np.zeros((6, 1)), batch_size=2, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer._learning_rate.get_config() == schedule.get_config()
    # Three updates are made; what is shown is the rate of the next one.
    expected = 2.0 * reference.learning_rate(4, 16, 100)
    assert value(loaded.optimizer.learning_rate) == pytest.approx(expected, rel=1e-6)
