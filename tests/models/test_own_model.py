"""A Keras model of one's own is decoded, scored, exported and trained as ours is."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import keras_transformer as kt
from keras_transformer.models.own_model import OwnModel
from tests import tiny_run
from tests.formats.test_identity import by_c_api, unhex
from tests.models.cases import random_language_model
from tests.nn.layers.reference_weights import randomise
from tests.tiny_run import KillAfter, Killed, assert_equal, last_state

SEARCH = kt.DecodingConfig(beam_size=3, max_output_length=9, max_source_length=20)
SOURCE = np.array([[4, 5, 7, 6, 2], [6, 3, 2, 0, 0]], "int32")
LENGTHS = np.array([5, 3], "int32")


class Pair(keras.Model):
    """Hides all of a `Transformer` but its call."""

    def __init__(self, transformer):
        super().__init__()
        self.transformer = transformer

    def call(self, inputs, training=False):
        return self.transformer(inputs, training=training)


class Named(Pair):
    """Takes a dictionary."""

    def call(self, inputs, training=False):
        return super().call((inputs["source"], inputs["target_in"]), training)


class Halves(Pair):
    """Encodes a source once."""

    def encode(self, source):
        return self.transformer.encode(source)

    def decode(self, target_in, encoded):
        states = self.transformer.decode_states(target_in, *encoded)
        return self.transformer.logits(states)

    def call(self, inputs, training=False):
        # A generator compares it once with `decode`, which it calls alone.
        assert ops.shape(inputs[1])[1] == 4
        return super().call(inputs, training)


@pytest.fixture(scope="module")
def transformer():
    sizes = dict(source_vocabulary_size=11, target_vocabulary_size=11)
    model = kt.Transformer(tiny_run.CONFIG.model.replace(**sizes))
    randomise(model, np.random.default_rng(5))
    return model


def found_by(generator):
    """What a generator finds, as arrays: ids, then scores, drawn ids, scores of ids."""
    found = generator.search(SOURCE, LENGTHS, n_best=2)
    draws = np.random.default_rng(1).random((2, 9), "float32"), np.ones(2, "float32")
    drawn = generator.sample(SOURCE, LENGTHS, *draws)
    target = ops.convert_to_numpy(found.ids)[:, 0]
    scores = generator.score(SOURCE, target), generator.attention(SOURCE, target)
    return [
        ops.convert_to_numpy(x) for x in (found.ids, found.scores, drawn.ids, *scores)
    ]


@pytest.fixture(scope="module")
def expected(transformer):
    return found_by(kt.Generator(transformer, SEARCH))


@pytest.mark.parametrize("kind", [Pair, Named, Halves])
def test_it_finds_what_the_cached_search_finds(kind, transformer, expected):
    found = found_by(kt.Generator(kind(transformer), SEARCH))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [lambda transformer: transformer, Pair])
def test_a_graph_needs_no_lengths(kind, transformer):
    generator = kt.Generator(kind(transformer), kt.DecodingConfig(max_output_length=20))
    found, expected = (
        generator.search(SOURCE),
        generator._search(SOURCE, None, None, 0, 1),
    )
    ids = (ops.convert_to_numpy(result.ids) for result in (found, expected))
    np.testing.assert_array_equal(*ids)


def keras_only(config, causal=True):
    """An encoder-decoder of Keras' own layers."""
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target_in")
    embed, is_token = keras.layers.Embedding(308, 16), ops.not_equal(source, 0)
    attend = [keras.layers.MultiHeadAttention(2, 8) for _ in range(3)]
    encoded, decoded = embed(source), embed(target)
    encoded += attend[0](encoded, encoded, value_mask=is_token)
    decoded += attend[1](decoded, decoded, use_causal_mask=causal)
    decoded += attend[2](decoded, encoded, value_mask=is_token)
    logits = keras.layers.Dense(308)(decoded)
    return keras.Model((source, target), logits, name="keras_only")


def by_loader(path, texts):
    """The translations that the loader of TensorFlow Serving gives, by its C API."""
    calls = [("serving_default", [text.encode("utf-8") for text in texts])]
    ((output, _),) = by_c_api(path, calls)["answers"]
    return [text.decode("utf-8") for text in unhex(output["values"])]


def test_strings_of_an_export_are_those_of_the_live_model(tmp_path):
    model = keras_only(None)
    translator = kt.Translator(model, tiny_run.tokenizers(), SEARCH)
    assert translator.model is model
    assert repr(translator).startswith("<Translator: Functional of ")
    exported = kt.ExportedTranslator(translator.export(tmp_path / "own"))
    texts = [source for source, _ in tiny_run.VALID]
    assert exported(texts) == translator(texts)
    assert translator(texts[0]) == exported(texts[0]) == translator(texts)[0]
    assert by_loader(exported.path, texts) == translator(texts)
    signatures = tf.saved_model.load(str(exported.path)).signatures
    names = "complete nbest sample score serving_default"
    assert sorted(signatures) == names.split()
    assert "align" not in (exported.path / "README.md").read_text("utf-8")
    with pytest.raises(ValueError, match="needs a model with a `DecoderLayer`"):
        translator.align(texts)
    for kind in ("litert", "onnx", "web", "ctranslate2", "safetensors"):
        with pytest.raises(ValueError, match="`Transformer`"):
            translator.export(tmp_path / kind, kind)


def dense(config=None):
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(2)(inputs), name="dense")


def learned(config=None):
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    table = kt.PositionalEmbedding(308, 16, positions="learned", max_length=10)
    states = table(target) + 0 * ops.sum(table(source), axis=1, keepdims=True)
    return keras.Model((source, target), keras.layers.Dense(308)(states))


def test_a_text_beyond_the_learned_positions_is_an_error():
    translator = kt.Translator(learned(), tiny_run.tokenizers(), SEARCH)
    with pytest.raises(tf.errors.InvalidArgumentError):
        translator(" ".join(tiny_run.VALID[0] * 3))


def test_a_model_that_sees_padding_is_told():
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    mean = ops.mean(keras.layers.Embedding(308, 16)(source), axis=1, keepdims=True)
    states = keras.layers.Embedding(308, 16)(target) + mean
    model = keras.Model((source, target), keras.layers.Dense(308)(states), name="mean")
    with pytest.warns(UserWarning, match="'mean' change with padding of the source"):
        kt.Generator(model, SEARCH)


@pytest.mark.parametrize(
    "model, error, words",
    [
        (3, TypeError, "maps .source, target_in.*Received: a int"),
        (dense(), TypeError, "maps .source, target_in.*, 'dense', which raised"),
        (keras_only(None, False), ValueError, "use_causal_mask=True.*'keras_only'"),
    ],
)
def test_what_cannot_be_used_is_refused(model, error, words):
    with pytest.raises(error, match=words):
        kt.Translator(model, tiny_run.tokenizers(), SEARCH)


def of_features():
    source, target = keras.Input((None, 6)), keras.Input((None,), dtype="int32")
    is_frame = ops.any(ops.not_equal(source, 0), axis=-1)
    attend = [keras.layers.MultiHeadAttention(2, 8) for _ in range(2)]
    states = keras.layers.Embedding(11, 16)(target)
    states += attend[0](states, states, use_causal_mask=True)
    encoded = keras.layers.Dense(16)(source)
    states += attend[1](states, encoded, value_mask=is_frame)
    return keras.Model((source, target), keras.layers.Dense(11)(states))


class HalvesOfFeatures(keras.Model):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def encode(self, source):
        return source + 0

    def decode(self, target_in, encoded):
        return self.model((encoded, target_in))

    def call(self, inputs, training=False):
        return self.model(inputs)


def test_a_source_may_be_floats():
    model, rng = of_features(), np.random.default_rng(4)
    randomise(model, rng)
    source, lengths = rng.normal(size=(2, 4, 6)).astype("float32"), np.array([4, 2])
    source[1, 2:] = 0
    config = kt.DecodingConfig(beam_size=1, max_extra_length=3, min_output_length=9)
    found = kt.Generator(model, config).search(source, lengths)
    assert ops.convert_to_numpy(found.lengths)[:, 0].tolist() == [7, 5]
    for i, length in enumerate(lengths):
        expected = [1]
        while len(expected) < length + 3:
            inputs = source[i : i + 1, :length], np.array([expected])
            logits = ops.convert_to_numpy(model(inputs))[0, -1]
            logits[:4] = -np.inf  # No special piece, and no end before the limit.
            expected.append(int(logits.argmax()))
        ids = ops.convert_to_numpy(found.ids)[i, 0, : length + 2]
        assert ids.tolist() == expected[1:]
    halves = OwnModel(HalvesOfFeatures(model), features=6)
    again = kt.Generator(halves, config).search(source, lengths)
    np.testing.assert_array_equal(
        *(ops.convert_to_numpy(x.ids) for x in (found, again))
    )
    with pytest.raises(ValueError, match="must be ids.*sources with 6 features"):
        kt.Translator(model, tiny_run.tokenizers(), SEARCH)


class Alone(keras.Model):
    """Hides all of a `LanguageModel` but its call."""

    def __init__(self, language):
        super().__init__()
        self.language = language

    def call(self, ids):
        return self.language(ids)


@pytest.mark.parametrize("options", [{}, {"top_k": 5, "no_repeat_ngram_size": 9}])
def test_a_decoder_only_model_draws_what_the_cached_sampler_draws(options):
    language = random_language_model(np.random.default_rng(3), pad_id=0)
    prompts = np.array([[9, 4, 17], [8, 0, 0]], "int32")
    found, expected = (
        kt.LanguageSampler(model, **options)(prompts, length=9, seed=5)
        for model in (Alone(language), language)
    )
    for ours, theirs in zip(found, expected, strict=True):
        ours, theirs = ops.convert_to_numpy(ours), ops.convert_to_numpy(theirs)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def decoder_only(causal):
    ids = keras.Input((None,), dtype="int32")
    states = keras.layers.Embedding(30, 8)(ids)
    attend = keras.layers.MultiHeadAttention(2, 4)
    states += attend(states, states, use_causal_mask=causal)
    return keras.Model(ids, keras.layers.Dense(30)(states), name="decoder_only")


def test_a_functional_model_is_sampled_if_no_position_sees_a_later_one():
    model = decoder_only(causal=True)
    result = kt.LanguageSampler(model)(np.zeros((2, 0), "int32"), 5, temperature=0)
    ids = ops.convert_to_numpy(result.ids)[:, 0]
    logits = ops.convert_to_numpy(model(np.insert(ids, 0, 1, axis=1)))[:, 0, 2:]
    np.testing.assert_array_equal(ids[:, 0], 2 + logits.argmax(-1))
    with pytest.raises(ValueError, match="use_causal_mask=True.*'decoder_only'"):
        kt.LanguageSampler(decoder_only(causal=False))


class Distant(kt.MultiHeadAttention):
    """Scores by positions, which a step has not."""

    def score(self, queries, keys):
        scores = ops.matmul(queries, ops.swapaxes(keys, -1, -2))
        query, key = (ops.arange(size) for size in ops.shape(scores)[-2:])
        return scores - ops.cast(abs(query[:, None] - key), scores.dtype)


class OfDistant(kt.DecoderLayer):
    def make_attention(self, name, d_model):
        if name == "cross_attention":
            return super().make_attention(name, d_model)
        return Distant(2, d_model // 2, name=name)


class Stepless(kt.DecoderLayer):
    """Has an own `call` and the `step` of its base."""

    def call(self, inputs, *args, **kwargs):
        return super().call(inputs, *args, **kwargs) + inputs


class SteplessCausal(kt.CausalLayer):
    def call(self, inputs, *args, **kwargs):
        return super().call(inputs, *args, **kwargs) + inputs


class Called(kt.Transformer):
    def call(self, inputs, *args, **kwargs):
        return super().call(inputs, *args, **kwargs) * 2.0


class Equal(kt.Transformer):
    """Has a class of its own and nothing else."""


class Unequal(Halves):
    """Decodes otherwise than it is called."""

    def call(self, inputs, training=False):
        return super().call(inputs, training) * 2.0


def with_layers(base, layer):
    """A model whose decoder layers are of a class."""

    def make(self, name):
        return layer(num_heads=2, d_ff=32, dtype=self.dtype_policy, name=name)

    makers = {"make_decoder_layer": make, "make_layer": make}
    return type(f"With{layer.__name__}", (base,), makers)


UNEQUAL = {
    "WithOfDistant, OfDistant, Distant": with_layers(kt.Transformer, OfDistant),
    "WithStepless, Stepless": with_layers(kt.Transformer, Stepless),
    "Called": Called,
    "Unequal": lambda config: Unequal(kt.Transformer(config)),
}


@pytest.mark.parametrize("names", UNEQUAL)
def test_a_model_that_decodes_otherwise_than_it_is_called_is_refused(names):
    """With weights that no training has touched, and before any training."""
    size = tiny_run.tokenizers().source.vocabulary_size
    sizes = dict(source_vocabulary_size=size, target_vocabulary_size=size)
    model = UNEQUAL[names](tiny_run.CONFIG.model.replace(**sizes))
    words = f"own `score` must not.* the own classes {names}. .*otherwise step by step"
    with pytest.raises(ValueError, match=words):
        kt.Translator(model, tiny_run.tokenizers(), SEARCH)
    with pytest.raises(ValueError, match=words):
        kt.Generator(model, SEARCH)


def test_a_language_model_that_decodes_otherwise_is_refused():
    make = with_layers(kt.LanguageModel, SteplessCausal)
    config = kt.LanguageModelConfig(
        vocabulary_size=11, num_layers=1, d_model=8, d_ff=8, num_heads=2
    )
    with pytest.raises(ValueError, match="classes WithSteplessCausal, SteplessCausal"):
        kt.LanguageSampler(make(config))


KINDS = ({}, {"norm_first": True}, {"decoder_self_attention": "ssru"})


@pytest.mark.one_case("mixed_bfloat16-options0")
@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize(
    "kind", ["float32", "mixed_bfloat16", "float16", "int8", "int4"]
)
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_an_equal_model_is_never_refused(kind, options):
    """Whatever its float type, trained or not; short outputs and positions count."""
    is_quantised = kind.startswith("int")
    sizes = dict(source_vocabulary_size=11, target_vocabulary_size=11, d_model=32)
    learned = {"positions": "learned", "max_positions": 3, **options}
    for number, more in enumerate((options, learned)):
        config = tiny_run.CONFIG.model.replace(**sizes, **more)
        model = Equal(config, dtype="float32" if is_quantised else kind)
        if number:
            randomise(model, np.random.default_rng(5))
        if is_quantised:
            model.quantize(kind)
        for longest in (1, 2, 3):
            kt.Generator(model, kt.DecodingConfig(max_output_length=longest))
    kt.Generator(kt.Ensemble([model, model]), kt.DecodingConfig(max_output_length=3))


def test_the_packages_own_classes_are_not_run(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError

    monkeypatch.setattr(kt.Transformer, "call", never)
    kt.Generator(tiny_run.model(), SEARCH)


VALIDATED = {"validation": tiny_run.VALID, "monitor": "bleu", "bleu_sentences": 3}


@pytest.mark.slow
@pytest.mark.parametrize("make, options", [(keras_only, {}), (Equal, VALIDATED)])
def test_a_killed_run_of_it_ends_the_same(make, options, tmp_path):
    options = {"ema_decay": 0.9, "gradient_accumulation_steps": 2} | options

    def run(name, *callbacks):
        tiny_run.run(tmp_path / name, *callbacks, given={"model": make}, **options)
        return last_state(tmp_path / name).values

    expected = run("whole")
    with pytest.raises(Killed):
        run("killed", KillAfter(6))
    assert_equal(run("killed"), expected)
    if make is keras_only:
        whole, killed = (kt.Translator.load(tmp_path / n) for n in ("whole", "killed"))
        texts = [source for source, _ in tiny_run.VALID]
        assert whole(texts) == killed(texts)


def test_inputs_have_names(transformer, tmp_path):
    named = {"source": SOURCE, "target_in": SOURCE[:, :3]}
    expected = ops.convert_to_numpy(transformer(tuple(named.values())))
    np.testing.assert_array_equal(ops.convert_to_numpy(transformer(named)), expected)
    transformer.compile("sgd", kt.MaskedCrossentropy(), run_eagerly=True)
    transformer.fit(named, SOURCE[:, :3], verbose=0)
    expected = ops.convert_to_numpy(transformer(named))
    transformer.export(tmp_path / "model", verbose=False)
    served = tf.saved_model.load(tmp_path / "model").signatures["serving_default"]
    (found,) = served(**named).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
