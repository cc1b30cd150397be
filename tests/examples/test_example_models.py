"""The models and attentions of the examples: their laws, and NumPy for what is new."""

import math
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.testing import (
    assert_causal,
    assert_padding_invariant,
)
from tests import tiny_run
from tests.examples.test_examples import load
from tests.models.cases import CONFIG, SOURCE, TARGET_IN, TARGET_OUT
from tests.nn.layers.reference_weights import assert_close, randomise
from tests.reference import numpy_transformer as reference
from tests.reference.numpy_transformer import log_softmax
from tests.search.table_steps import all_outputs

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
numpy = ops.convert_to_numpy

images = load("classify_images")
graphs = load("classify_graphs")
nodes = load("classify_nodes")
captions = load("caption_images")
speech = load("speech")
conformer = load("conformer")
recurrent = load("recurrent_translator")
parts = load("encoder_parts")
tags = load("tag_words")
sentences = load("classify_sentences")
bert = load("bert")

_RNG = np.random.default_rng(5)
# Two rows of five patches of 3 x 3 pixels.
SHAPE, PATCH_SIZE = (6, 15, 2), 3
IMAGES = _RNG.random((2, *SHAPE)).astype("float32")
# The second graph has five nodes and two of padding; edges lead to padding, too.
IS_NODE = np.arange(7) < np.array([[7], [5]])
FEATURES = (_RNG.standard_normal((2, 7, 5)) * IS_NODE[..., None]).astype("float32")
EDGES = _RNG.random((2, 7, 7)) < 0.5
FRAMES = _RNG.standard_normal((2, 7, speech.BANDS)).astype("float32")
FRAMES[1, 4:] = 0.0
IS_FRAME = np.arange(7) < np.array([[7], [4]])
WORDS = np.array([[1, 5, 4, 6], [1, 6, 0, 0]], "int32")
# Ten features of each word; some are missing, and two words are padding.
OF_WORDS = _RNG.integers(0, 29, (2, 7, 10)) * IS_NODE[..., None]
PRE_NORM = CONFIG.replace(norm_first=True)
# Every size another prime, so that no two axes can be taken for each other.
RECURRENT = {
    "source_vocabulary_size": 29, "target_vocabulary_size": 29, "width": 17,
    "units": 11, "attention_units": 13,
}  # fmt: skip
VARIANTS = {
    "bidirectional, three-way": {},
    "two layers, two-way": {
        "encoder_layers": 2, "tied": "two-way", "source_vocabulary_size": 31,
    },
    "forward alone, two and three layers, untied": {
        "encoder_layers": 2, "decoder_layers": 3, "bidirectional": False,
        "tied": "none", "source_vocabulary_size": 31,
    },
    "LSTM, two and three layers": {
        "cell": "lstm", "encoder_layers": 2, "decoder_layers": 3,
    },
}  # fmt: skip


class Case(NamedTuple):
    make: Any  # () -> model
    inputs: Any
    is_real: Any = None  # which positions of the output are no padding


CASES = {
    "image": Case(
        lambda: images.make_model(SHAPE, PATCH_SIZE, 11, config=CONFIG), IMAGES
    ),
    "mean of an image": Case(
        lambda: images.make_model(SHAPE, PATCH_SIZE, 11, "mean", PRE_NORM), IMAGES
    ),
    "graph": Case(lambda: graphs.make_model(5, config=PRE_NORM), (FEATURES, EDGES)),
    "class token of a graph": Case(
        lambda: graphs.make_model(5, "class_token", CONFIG), (FEATURES, EDGES)
    ),
    "nodes": Case(
        lambda: nodes.make_model(5, 3, CONFIG, rate=0.1), (FEATURES, EDGES), IS_NODE
    ),
    "frames": Case(lambda: speech.make_model(CONFIG, 4), FRAMES, IS_FRAME),
    "all frames": Case(lambda: speech.make_model(PRE_NORM, 4, per_frame=False), FRAMES),
    "captions": Case(
        lambda: captions.make_model(SHAPE, PATCH_SIZE, 7, CONFIG), (IMAGES, WORDS)
    ),
    "tags": Case(lambda: tags.make_model(29, 4, CONFIG), OF_WORDS, IS_NODE),
    "sentences": Case(lambda: sentences.make_model(29, CONFIG), OF_WORDS[..., :3]),
    "hidden words": Case(
        lambda: bert.make_models(29, PRE_NORM)[0], SOURCE, SOURCE != 0
    ),
}
CASES |= {
    f"recurrent: {name}": Case(
        lambda options=options: recurrent.make_model(**(RECURRENT | options)),
        (SOURCE, TARGET_IN),
    )
    for name, options in VARIANTS.items()
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def random_model(case, rng):
    return randomise(case.make(), rng)


@pytest.mark.slow
def test_its_files_give_the_same(case, rng, tmp_path, request):
    model = random_model(case, rng)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    expected = numpy(model(case.inputs))
    assert_close(loaded(case.inputs), expected)
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf
    from ai_edge_litert.interpreter import Interpreter

    model.export(tmp_path / "1", verbose=False)
    exported = tf.saved_model.load(tmp_path / "1")
    assert_close(exported.serve(case.inputs), expected)
    if "recurrent" in request.node.name:
        return  # LiteRT lacks the lists of tensors of Keras' recurrent layers.
    path = tmp_path / "model.tflite"
    model.export(path, format="litert", verbose=False)
    pairs = zip(model.inputs, keras.tree.flatten(case.inputs), strict=True)
    given = {x.name: np.asarray(array, x.dtype) for x, array in pairs}
    lite = Interpreter(str(path)).get_signature_runner()
    (found,) = lite(**given).values()
    assert_close(found, expected)


# Graphs and nodes.


@pytest.mark.parametrize("name", ["graph", "class token of a graph"])
def test_renumbering_the_nodes_and_edges_to_padding_change_nothing(name, rng):
    model, order = random_model(CASES[name], rng), rng.permutation(7)
    expected = numpy(model((FEATURES, EDGES)))
    renumbered = FEATURES[:, order], EDGES[:, order][:, :, order]
    assert_close(model(renumbered), expected)
    other = EDGES.copy()
    other[1, :, 5:] = ~other[1, :, 5:]
    assert_close(model((FEATURES, other)), expected)
    other[0, 2, 3] = ~other[0, 2, 3]
    assert np.abs(numpy(model((FEATURES, other))) - expected)[0].max() > 1e-3


# Each node t points at t + 1. Node 6 has no edge, and neither has node 4 of the second.
CHAIN = np.zeros((2, 7, 7), bool)
CHAIN[:, range(6), range(1, 7)] = True
CHAIN[1, 4] = False


def test_each_layer_sees_one_edge_far(rng):
    """Two layers: node t depends on t, t + 1 and t + 2, and on nothing before it."""
    model = random_model(CASES["nodes"], rng)
    before = numpy(model((FEATURES, CHAIN)))
    for node in range(7):
        changed = FEATURES.copy()
        changed[:, node] += 1.0
        after = numpy(model((changed, CHAIN)))
        moved = (np.abs(after - before) > 1e-5).any(axis=-1)
        expected = [node - 2 <= t <= node for t in range(7)]
        np.testing.assert_array_equal(moved[0], expected)
        # Node 4 of the second graph leads nowhere, so nothing passes through it.
        blocked = [e and (t > 4 or node <= 4) for t, e in enumerate(expected)]
        np.testing.assert_array_equal(moved[1], blocked)


# Frames, and words: labels, classes, and those that are hidden.


@pytest.mark.parametrize(
    "name", ["frames", "all frames", "tags", "sentences", "hidden words"]
)
def test_more_padding_of_frames_and_words_changes_nothing(name, rng):
    model, case = random_model(CASES[name], rng), CASES[name]
    width = ((0, 0), (0, 3)) + ((0, 0),) * (case.inputs.ndim - 2)
    found = numpy(model(np.pad(case.inputs, width)))
    expected = numpy(model(case.inputs))
    if case.is_real is not None:
        found, expected = found[:, :7][case.is_real], expected[case.is_real]
    assert_close(found, expected)


def test_padding_changes_nothing_in_a_conformer():
    assert_padding_invariant(conformer.ConformerBlock(2, 8), mask_names=("mask",))
    assert_padding_invariant(conformer.ConvolutionModule(), mask_names=("mask",))


def test_padding_is_no_part_of_the_batch_statistics():
    """The moving mean after one step is that of the frames that are not padding."""
    module, found = conformer.ConvolutionModule(), []
    inputs = FRAMES[..., :4].copy()
    for fill in (0.0, 100.0):
        inputs[~IS_FRAME] = fill
        if not module.built:
            module.build(inputs.shape)
        module.batch_norm.moving_mean.assign(np.zeros(4))
        module(inputs, mask=IS_FRAME, training=True)
        found.append(numpy(module.batch_norm.moving_mean))
    assert np.abs(found[0]).max() > 0
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_block_is_half_attention_convolution_half_and_a_norm():
    """Equation 1 of Gulati et al., 2020, part by part."""
    block, inputs = conformer.ConformerBlock(2, 8), FRAMES[..., :4]
    found = block(inputs)
    before, attention, convolution, after = block.parts
    norms, mask = block.norms, np.ones((2, 7), bool)
    states = inputs + 0.5 * before(norms[0](inputs))
    states = states + attention(norms[1](states))
    states = states + convolution(norms[2](states), mask=mask)
    expected = norms[4](states + 0.5 * after(norms[3](states)))
    np.testing.assert_allclose(*map(np.asarray, (found, expected)), atol=1e-6)


def test_features_agree_with_the_reference(rng):
    layer = parts.FeatureEmbedding(29, 6)
    layer.build((None, None, 10))
    table = numpy(randomise(layer, rng).embeddings).astype("float64")
    assert_close(layer(OF_WORDS), reference.feature_embedding(OF_WORDS, table))
    np.testing.assert_array_equal(numpy(layer.compute_mask(OF_WORDS, None)), IS_NODE)


def test_patches_agree_with_the_reference(rng):
    layer = parts.PatchEmbedding(SHAPE, PATCH_SIZE, 11)
    layer.build()
    randomise(layer, rng)
    kernel, bias = (numpy(w).astype("float64") for w in layer.patch_map.weights)
    weights = {"kernel": kernel.reshape(-1, kernel.shape[-1]), "bias": bias}
    patches = reference.image_patches(IMAGES, PATCH_SIZE)
    assert_close(layer(IMAGES), reference.linear(patches, weights))
    with pytest.raises(ValueError, match="`patch_size` must divide the height"):
        parts.PatchEmbedding(SHAPE, 4, 11)


def test_the_classifier_has_the_encoder_of_the_hidden_words():
    hidden, model = bert.make_models(29, CONFIG)
    shared = {id(weight) for weight in hidden.weights}
    assert shared == {id(weight) for weight in model.weights[:-2]}


def test_what_is_hidden_and_how():
    """15 %, of which 80 % are masks, 10 % random and 10 % as they were."""
    first_id, size = bert.FIRST, 29
    ids = np.random.default_rng(1).integers(0, size, (500, 401), "int32")
    shown, targets = bert.hide(ids, np.random.default_rng(2), size)
    assert shown.dtype == targets.dtype == ids.dtype
    ordinary, chosen = ids >= first_id, targets != 0
    assert not chosen[~ordinary].any()
    np.testing.assert_array_equal(targets[chosen], ids[chosen])
    np.testing.assert_array_equal(shown[~chosen], ids[~chosen])
    assert chosen[ordinary].mean() == pytest.approx(0.15, abs=0.004)
    of_chosen, before = shown[chosen], ids[chosen]
    is_masked = of_chosen == bert.MASK
    assert is_masked.mean() == pytest.approx(0.8, abs=0.01)
    assert set(of_chosen[~is_masked]) == set(range(first_id, size))
    # One random token in 24 is the one that was there.
    same = (of_chosen == before).mean()
    assert same == pytest.approx(0.1 + 0.1 / 24, abs=0.01)
    changed = of_chosen[~is_masked & (of_chosen != before)]
    counts = np.bincount(changed)[first_id:]
    assert counts.max() < 2 * counts.min()
    for rate in (0.3, 1.0):
        _, targets = bert.hide(ids, np.random.default_rng(1), size, rate)
        assert (targets != 0)[ordinary].mean() == pytest.approx(rate, abs=0.02)


def test_an_epoch_has_every_row_once_in_a_new_order():
    ids = np.arange(bert.FIRST, bert.FIRST + 21).reshape(7, 3)
    batches, epochs = bert.HiddenWords(ids, 29, batch_size=3), []
    for _ in range(2):
        found = [batches[i] for i in range(len(batches))]
        assert [len(shown) for shown, _ in found] == [3, 3, 1]
        np.testing.assert_array_equal(batches[0], found[0])
        epochs.append(batches.order.tolist())
        batches.on_epoch_end()
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(7))
    assert epochs[0] != epochs[1]


# Images and captions.


@pytest.mark.parametrize("name", ["image", "mean of an image", "captions"])
def test_every_patch_counts_and_only_for_its_own_image(name, rng):
    model, inputs = random_model(CASES[name], rng), CASES[name].inputs
    words = inputs[1:] if name == "captions" else ()
    before = numpy(model((IMAGES, *words) if words else IMAGES))
    for row, column in np.ndindex(2, 5):
        changed = IMAGES.copy()
        changed[0, 3 * row : 3 * row + 3, 3 * column : 3 * column + 3] += 1.0
        after = numpy(model((changed, *words) if words else changed))
        moved = np.abs(after - before)
        assert moved[0].max() > 1e-4
        assert moved[1].max() < 1e-5


@pytest.mark.one_case("captions")
@pytest.mark.parametrize("name", [n for n in CASES if "captions" in n or ":" in n])
def test_padding_and_later_tokens_change_nothing(name, rng):
    model, (source, target) = random_model(CASES[name], rng), CASES[name].inputs
    is_of_text = source is SOURCE

    def scores(target, source):
        return model((source, target))

    ids_below = 29 if is_of_text else 7
    assert_causal(scores, (target, source), ids_below=ids_below, tolerance=0)
    if is_of_text:
        assert_padding_invariant(scores, (target, source))


def best_of(outputs, logits):
    """The output with the best score, and the score; outputs are padded with 0."""
    scores = np.take_along_axis(
        log_softmax(logits.astype("float64")), outputs[..., None], axis=-1
    )[..., 0]
    lengths = (outputs != 0).sum(axis=1)
    totals = (scores * (outputs != 0)).sum(axis=1) / ((5 + lengths) / 6) ** 0.6
    return outputs[totals.argmax()], totals.max()


def shifted(outputs):
    return np.pad(outputs[:, :-1], ((0, 0), (1, 0)), constant_values=1)


def test_a_wide_beam_finds_the_best_of_all_captions(rng):
    """All captions of up to three tokens, the end counted, scored by the model."""
    model = random_model(CASES["captions"], rng)
    tokens = [3, 4, 5, 6]
    outputs = [[2, 0, 0], *([t, 2, 0] for t in tokens)]
    outputs += [[t, u, v] for t in tokens for u in tokens for v in (2, *tokens)]
    outputs = np.array(outputs, "int32")
    result = captions.captioner(model, most=3, beam_size=20)(IMAGES)
    for row in range(2):
        repeated = np.repeat(IMAGES[row : row + 1], len(outputs), axis=0)
        logits = numpy(model((repeated, shifted(outputs))))
        ids, score = best_of(outputs, logits)
        np.testing.assert_array_equal(result.ids[row, 0], ids)
        np.testing.assert_allclose(result.scores[row, 0], score, rtol=1e-4)


# The recurrent translator, searched, on text.


@pytest.mark.one_case("recurrent: LSTM, two and three layers")
@pytest.mark.parametrize("name", [f"recurrent: {name}" for name in VARIANTS])
def test_steps_of_hypotheses_equal_the_whole(name, rng):
    """Two hypotheses of each sentence, which change places after the second token."""
    model = random_model(CASES[name], rng)
    target = rng.integers(4, 29, size=(2, 2, 5))
    translator = recurrent.Translator(model)
    states, mask, whole = translator.encode(SOURCE)
    decoder = translator.decoder
    source = decoder.attention.key_dense(states), states, mask
    hidden, found = ops.repeat(decoder.start(whole), 2, axis=1), []
    for position in range(5):
        if position == 2:
            target, hidden = target[:, ::-1], hidden[:, ::-1]
            found = [x[:, ::-1] for x in found]
        tokens = translator.embed(target[..., position])
        output, context, _, hidden = decoder.step(tokens, hidden, source)
        readouts = decoder.read_out(output, tokens, context)
        found.append(numpy(translator.embedding(readouts, reverse=True)))
    for n in range(2):
        expected = numpy(model((SOURCE, target[:, n])))
        assert_close(np.stack([x[:, n] for x in found], axis=1), expected)
    weights = numpy(translator.attention(SOURCE, TARGET_OUT))
    real = weights[TARGET_IN != 0]
    np.testing.assert_allclose(real.sum(axis=-1), 1.0, rtol=1e-5)
    assert not weights[1, :, 4:].any()


def test_a_wide_beam_finds_the_best_of_all_outputs():
    """No hypothesis is ever dropped: at most 64 with 5 continuations each."""
    tiny = {"source_vocabulary_size": 7, "target_vocabulary_size": 7, "tied": "none"}
    sizes = {"width": 11, "units": 13, "attention_units": 5}
    model = recurrent.make_model(**tiny, **sizes)
    randomise(model, np.random.default_rng(61))
    table = model.get_layer("embedding").reverse_embeddings
    table.assign(numpy(table) * 3.0)
    # Outputs of up to 4 tokens, the end counted: one sentence at a time.
    every = [ids for ids in all_outputs(7, 4) if recurrent.UNKNOWN not in ids]
    every = np.array([[*ids, *[0] * (4 - len(ids))] for ids in every])
    best = []
    for source in ([4, 5, 3, 6, 2], [6, 3, 2], [5, 5, 4, 2]):
        source = np.array([source], "int32")
        extra = 4 - source.shape[1]
        translator = recurrent.Translator(model, beam_size=160, extra=extra)
        result = translator.search(source)
        sources = np.repeat(source, len(every), axis=0)
        ids, score = best_of(every, numpy(model((sources, shifted(every)))))
        np.testing.assert_array_equal(numpy(result.ids)[0, 0, :4], ids)
        np.testing.assert_allclose(result.scores[0, 0], score, rtol=1e-4)
        best.append(tuple(ids))
    assert len(set(best)) > 1


@pytest.mark.slow
def test_export_of_the_recurrent_translator_gives_the_live_translations(tmp_path):
    import tensorflow as tf

    tokenizers = tiny_run.tokenizers()
    sizes = {"width": 16, "units": 12, "cell": "lstm", "decoder_layers": 2}
    model = recurrent.make_model(**tokenizers.vocabulary_sizes, **sizes, tied="none")
    randomise(model, np.random.default_rng(17))
    # Its words make no sense, but they differ.
    scale = np.full(tokenizers.target.vocabulary_size, 3.0, "float32")
    scale[4:268] = 0.0  # Bytes: seldom good UTF-8 together.
    table = model.get_layer("embedding").reverse_embeddings
    table.assign(numpy(table) * scale)
    translator = recurrent.Translator(model, tokenizers, beam_size=3, extra=20)
    texts = [source for source, _ in tiny_run.PAIRS[:9]] + ["", "dog", "日本語 " * 30]
    live = translator(texts)
    assert len({*live}) >= 6
    translator.export(tmp_path / "recurrent" / "1")
    loaded = tf.saved_model.load(tmp_path / "recurrent" / "1")
    found = loaded.signatures["serving_default"](text=tf.constant(texts))
    found = [text.decode("utf-8") for text in found["translation"].numpy()]
    assert found == live


@pytest.mark.slow
def test_both_models_train_score_show_their_attention_and_export(
    tmp_path, capsys, monkeypatch
):
    example = load("recurrent_translation")
    train = tiny_run.write_pairs(tmp_path / "train.tsv")
    test = str(tiny_run.write_pairs(tmp_path / "test.tsv", tiny_run.VALID))
    config = tiny_run.CONFIG.replace(decoding=example.CONFIG.decoding)
    sizes = {"d_model": 16, "d_ff": 16, "num_heads": 2}
    sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
    monkeypatch.setitem(example.WIDTHS, "tiny", 16)
    monkeypatch.setitem(example.kt.TransformerConfig.PRESETS, "tiny", sizes)
    files = ["--train", str(train), "--valid", test, "--test", test]
    options = ["--pairs", "33", "--epochs", "1", "--pictures", str(tmp_path)]
    exports = ["--export", str(tmp_path / "saved_models")]
    scores = example.main([*files, *options, *exports], config)
    assert list(scores) == ["recurrent", "transformer"]
    printed = capsys.readouterr().out
    assert "33 pairs" in printed
    for name, score in scores.items():
        assert score.sentences == len(tiny_run.VALID)
        assert f"{name}: 0." in printed
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / "saved_models" / name / "1" / "saved_model.pb").is_file()
    assert printed.count("80 tokens to 80 tokens: ") == 2


def test_the_sentences_are_cut_into_the_books_words():
    example = load("recurrent_sentences")
    assert example.words_of("J’ai perdu.") == ["j'ai", "perdu", "."]
    assert example.words_of("Va !") == example.words_of("va!") == ["va", "!"]
    ids = example.ids_of([["va", "!"], ["?"]], [*example.SPECIAL, "!", "va"])
    assert ids.tolist() == [[5, 4, 2], [3, 2, 0]]


@pytest.mark.parametrize(
    "prediction, label, order, expected",
    [
        # The book's examples: p1 = 4/5, p2 = 3/4; and 1 of three words in six is short.
        ("A B B C D", "A B C D E F", 2, math.exp(-1 / 5) * 0.8**0.5 * 0.75**0.25),
        ("A B", "A B C D E F", 2, math.exp(1 - 6 / 2)),
        ("A B B C D", "A B C D E F", 4, 0.0),
        # A word counts as often as the label has it, and longer is no better.
        ("va va va !", "va !", 2, (2 / 4) ** 0.5 * (1 / 3) ** 0.25),
        ("va !", "va !", 2, 1.0),
        ("", "va !", 2, 0.0),
    ],
)  # fmt: skip
def test_the_bleu_of_the_book_is_that_worked_by_hand(
    prediction, label, order, expected
):
    ngram_bleu = load("recurrent_sentences").ngram_bleu
    found = ngram_bleu(prediction.split(), label.split(), order)
    assert found == pytest.approx(expected, rel=1e-12)
