"""The Transformer and its kin: ties, gradients, sizes, float types, mixed layers."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.nn.layers import Residual
from keras_transformer.testing import assert_cached_equals_uncached
from tests.examples.test_examples import load
from tests.models.cases import (
    IDS_IN,
    IDS_OUT,
    LANGUAGE_SIZES,
    NO_DROPOUT,
    SIZES,
    SOURCE,
    TARGET_IN,
    TARGET_OUT,
    VARIANTS,
    logits_expected,
    random_language_model,
    random_model,
)
from tests.nn.layers.reference_weights import assert_close, randomise
from tests.reference import numpy_transformer as reference

LENGTHS = (SOURCE != 0).sum(axis=1).astype("int32")
MARIAN = VARIANTS["normalised embeddings, SSRU, output bias"]
REAL = TARGET_IN != 0
INPUTS = SOURCE, TARGET_IN
numpy = ops.convert_to_numpy


def test_other_padding_id(rng):
    """Padding is what the config says, not zero."""
    model = random_model(rng, pad_id=3, unknown_id=0)
    source, target = (np.where(x == 0, 3, x) for x in INPUTS)
    expected = logits_expected(model, (source, target))
    assert_close(model((source, target))[:, :3], expected[:, :3])


@pytest.mark.parametrize("tied", ("none", "three-way"))
def test_the_output_moves_by_the_gradient_of_the_reference(rng, tied):
    """One SGD step without logits; z are softmax - smoothed target, over the tokens.

    dL/dW = states^T z, of a matrix of its own, and dL/db = the sum of z. An import
    gives ids that are never produced a bias of -1000.
    """
    model = random_model(rng, tied_embeddings=tied, output_bias=True, **NO_DROPOUT)
    bias = numpy(model.output_bias).copy()
    bias[[0, 1, 13]] = -1000.0
    model.output_bias.assign(bias)
    assert model.output_rows() is not None
    states = numpy(model(INPUTS, return_states=True))
    logits = logits_expected(model, INPUTS)
    gradient = reference.label_smoothed_cross_entropy_gradient(logits, TARGET_OUT, 0.1)
    if tied == "none":
        kernel = numpy(model.output_dense.kernel).copy()
    loss = kt.MaskedCrossentropy(0.1)
    model.compile(keras.optimizers.SGD(0.5), loss, run_eagerly=True)
    loss = model.train_on_batch(INPUTS, TARGET_OUT)
    expected = reference.label_smoothed_cross_entropy(logits, TARGET_OUT, 0.1)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert_close(model.output_bias, bias - 0.5 * gradient.sum(axis=(0, 1)))
    if tied == "none":
        kernel = kernel - 0.5 * np.einsum("btd,btv->dv", states, gradient)
        assert_close(model.output_dense.kernel, kernel)


TIES = {
    "three-way": ({"source", "target", "output"}, 1),
    "two-way": ({"target", "output"}, 2),
    "none": ({"target"}, 3),
}


@pytest.mark.parametrize("tied", TIES)
def test_matrices_are_shared_as_tied(rng, tied, tmp_path):
    """Proven by changing one: row 13 is in no target, so only the tied ends move."""
    model = random_model(rng, tied_embeddings=tied)
    models, (changed, count) = [model], TIES[tied]
    if tied == "two-way":
        model.save(tmp_path / "model.keras")
        models.append(keras.saving.load_model(tmp_path / "model.keras"))
    for one in models:
        assert uses_that_change(one) == changed
        size = SIZES["target_vocabulary_size"]
        assert sum(size in weight.shape for weight in one.weights) == count


def uses_that_change(model):
    """Which of the three uses of an embedding row see a change of the target's."""
    source = np.where(SOURCE == 9, 13, SOURCE)
    target = np.where(TARGET_IN == 14, 13, TARGET_IN)

    def observe():
        outputs = {
            "source": model.encode(source)[0],
            "target": model.target_embedding(target),
            # No 13 goes in here; only the output matrix can tell.
            "output": model(INPUTS),
        }
        return {name: numpy(x).copy() for name, x in outputs.items()}

    before = observe()
    embeddings = numpy(model.target_embedding.embeddings).copy()
    embeddings[13] += 1.0
    model.target_embedding.embeddings.assign(embeddings)
    after = observe()
    changed = before["output"] != after["output"]
    assert not np.delete(changed, 13, axis=-1).any()
    return {name for name in before if (before[name] != after[name]).any()}


def test_a_source_of_padding_decodes_alike_with_and_without_cache(rng):
    assert_cached_equals_uncached(random_model(rng), np.zeros_like(SOURCE))


@pytest.mark.parametrize(
    "name, d_model, d_ff, total",
    (("base", 512, 2048, 63_045_632), ("big", 1024, 4096, 214_171_648)),
)
def test_parameters_agree_with_a_count_by_hand(name, d_model, d_ff, total):
    """Table 3: 65 and 213 million; one matrix of 37000 pieces, no attention biases."""
    attention = 4 * d_model**2  # W^Q, W^K, W^V and W^O of all heads
    feed_forward = (d_model * d_ff + d_ff) + (d_ff * d_model + d_model)
    encoder_layer = attention + feed_forward + 2 * 2 * d_model
    decoder_layer = 2 * attention + feed_forward + 3 * 2 * d_model
    assert 37000 * d_model + 6 * encoder_layer + 6 * decoder_layer == total
    config = kt.TransformerConfig.preset(name)
    assert (config.num_encoder_layers, config.num_decoder_layers) == (6, 6)
    # One layer each is built: all six of the big one would take a gigabyte.
    model = kt.Transformer(config.replace(num_encoder_layers=1, num_decoder_layers=1))
    assert model.count_params() == 37000 * d_model + encoder_layer + decoder_layer


def test_normalised_embeddings_are_dropped_after_their_norm(rng):
    """Were it before, nothing would be exactly zero."""
    model = random_model(rng, **(MARIAN | {"dropout_rate": 0.4}))
    ids = rng.integers(4, 29, size=(20, 30))
    for side in ("source", "target"):
        silent = numpy(model._embed(side, ids, training=False))
        noisy = numpy(model._embed(side, ids, training=True))
        dropped = noisy == 0
        assert 0.35 < dropped.mean() < 0.45
        assert_close(noisy[~dropped], silent[~dropped] / 0.6, tolerance=1e-3)


# Decoding step by step, with layers whose attentions keep the past in unlike ways.


class MixedModel(kt.LanguageModel):
    """Layer i has the attention `kinds[i]`."""

    kinds = ()
    options = {"one-key": {"num_key_value_heads": 1}, "alibi": {"positions": "alibi"}}

    def make_layer(self, name):
        kind, options = self.kinds[int(name.rpartition("_")[2])], self.options

        class Layer(kt.CausalLayer):
            def make_attention(self, name, d_model):
                named = {"dtype": self.dtype_policy, "name": name}
                if kind == "linear":
                    return load("linear_attention").LinearAttention(2, 5, **named)
                return kt.MultiHeadAttention(2, 6, **options.get(kind, {}), **named)

        return Layer(**self.config.layer_options(), dtype=self.dtype_policy, name=name)


# Relative, of losses and scores: of 8, 11 and 53 bits, the loss itself in float32.
TOLERANCES = {"bfloat16": 5e-2, "float16": 1.5e-2, "float64": 1e-5}
OTHERS = ("float16", "float64")


@pytest.mark.one_case("linear full linear-None")
@pytest.mark.parametrize(
    "kinds, dtype",
    (("linear full linear", None), ("full linear full", None),
     ("full one-key full", None), ("linear linear alibi", None),
     ("alibi alibi", "mixed_bfloat16"), ("alibi alibi", "bfloat16"),
     ("full full", "mixed_float16")),
)  # fmt: skip
def test_steps_of_unlike_layers_equal_a_call(kinds, dtype):
    kinds = kinds.split()
    model_class = type("Model", (MixedModel,), {"kinds": kinds})
    config = kt.LanguageModelConfig(
        vocabulary_size=20, num_layers=len(kinds), d_model=12, d_ff=17, num_heads=2
    )
    model = randomise(model_class(config, dtype=dtype), np.random.default_rng(3))
    assert_cached_equals_uncached(model, length=12, tolerance=5e-2 if dtype else 1e-5)


class Halved(Residual):
    """Adds half of what a sub-layer returns."""

    def after(self, x, outputs, training=None):
        return super().after(x, 0.5 * outputs, training)


class HalvedLayer(kt.DecoderLayer):
    """A layer with its own connections, and the cached step."""

    def make_residual(self, name):
        return Halved(**vars(super().make_residual(name)))


class ParallelLayer(kt.DecoderLayer):
    """All sub-layers take the inputs; it has its own call and step."""

    def call(self, inputs, encoder_output, encoder_output_mask=None, training=None):
        past = self.self_attention(inputs, use_causal_mask=True)
        seen = self.cross_attention(inputs, encoder_output, mask=encoder_output_mask)
        return inputs + past + seen + self.feed_forward(inputs)

    def step(self, inputs, cache, place, masks, weights, source=None):
        past, cache = self.self_attention.step(
            inputs, cache, place, masks[0], weights["past"]
        )
        seen = self.cross_attention.look_up(inputs, source, masks[1], weights["source"])
        return inputs + past + seen + self.feed_forward(inputs), cache


@pytest.mark.parametrize("layer_class", (HalvedLayer, ParallelLayer))
def test_a_decoder_layer_of_ones_own_has_the_cached_step(layer_class, rng):
    class Model(kt.Transformer):
        def make_decoder_layer(self, name):
            options = self.config.layer_options()
            return layer_class(**options, dtype=self.dtype_policy, name=name)

    usual = random_model(rng)
    own = Model(usual.config)
    own.set_weights(usual.get_weights())
    assert_cached_equals_uncached(own, length=4)
    assert abs(numpy(own(INPUTS) - usual(INPUTS))).max() > 0.01


class Capped:
    """A mixin of logits that are no product, from states (B, T, D)."""

    def logits(self, states):
        _, _, width = states.shape
        return width * ops.tanh(super().logits(states) / width)


class CappedTransformer(Capped, kt.Transformer):
    pass


class CappedLanguageModel(Capped, kt.LanguageModel):
    pass


def test_steps_score_with_the_logits_of_a_subclass(rng):
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    transformer = CappedTransformer(kt.TransformerConfig(**SIZES | layers))
    config = kt.LanguageModelConfig(**LANGUAGE_SIZES | {"num_layers": 1})
    for model in (transformer, CappedLanguageModel(config)):
        assert_cached_equals_uncached(randomise(model, rng))
    with pytest.raises(ValueError, match="and the `logits` of a `Transformer`"):
        transformer.narrowed(transformer.decoding_weights(), [0, 1, 2, 3])


# Weights of another type than float32.

MODELS = {
    "transformer": (random_model, (INPUTS, TARGET_OUT)),
    "language model": (random_language_model, (IDS_IN, IDS_OUT)),
}
XLA = keras.backend.backend() == "tensorflow"
TYPES = (
    ("transformer", XLA, "float16"), ("transformer", False, "bfloat16"),
    ("transformer", False, "float64"), ("language model", XLA, "bfloat16"),
    ("language model", False, "float16"),
)  # fmt: skip


def losses(model, data, **options):
    """The losses of four updates."""
    optimizer = keras.optimizers.SGD(0.1)
    model.compile(optimizer, kt.MaskedCrossentropy(0.1), **options)
    found = model.fit(*data, batch_size=2, epochs=4, verbose=0).history["loss"]
    assert {w.dtype for w in model.trainable_weights} == {model.compute_dtype}
    return found


@pytest.mark.one_case("transformer-False-bfloat16")
@pytest.mark.parametrize("name, jit_compile, dtype", TYPES)
def test_training_follows_that_in_float32(rng, name, jit_compile, dtype):
    make, data = MODELS[name]
    exact, other = (make(rng, dtype=d, **NO_DROPOUT) for d in ("float32", dtype))
    other.set_weights(exact.get_weights())
    exact = losses(exact, data, run_eagerly=True)
    found = losses(other, data, run_eagerly=not jit_compile, jit_compile=jit_compile)
    np.testing.assert_allclose(found, exact, rtol=TOLERANCES[dtype])
    assert exact[-1] < exact[0] * 0.95


def test_logits_in_float64_are_the_references(rng):
    learned = {"positions": "learned", "tied_embeddings": "none", "use_bias": True}
    model = random_model(rng, dtype="float64", **learned)
    expected = logits_expected(model, INPUTS)
    found = numpy(model(INPUTS))
    np.testing.assert_allclose(found[REAL], expected[REAL], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "dtype", ["bfloat16", *(pytest.param(t, marks=pytest.mark.slow) for t in OTHERS)]
)
def test_a_search_finds_what_its_scores_say(rng, dtype):
    """The cached steps of a search against the uncached model."""
    model = random_model(rng, dtype=dtype, **NO_DROPOUT)
    config = kt.DecodingConfig(beam_size=3, max_output_length=7, length_penalty=0.0)
    generator = kt.Generator(model, config)
    result = generator.search(SOURCE, LENGTHS)
    scores = generator.score(SOURCE, result.ids[:, 0])
    np.testing.assert_allclose(
        numpy(ops.sum(scores, axis=1)),
        numpy(result.scores)[:, 0],
        rtol=TOLERANCES[dtype],
    )
