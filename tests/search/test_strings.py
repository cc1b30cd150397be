"""Scores and alignments against the NumPy reference, and every signature's corners."""

import functools
import re
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import LiteTranslator, Translator
from keras_transformer.search import strings
from keras_transformer.search.strings import SIGNATURES
from keras_transformer.text.spans import PIECES
from tests import tiny_run
from tests.nn.kernels.ways import eagerly
from tests.nn.layers.reference_weights import model_weights_of
from tests.reference import numpy_transformer as reference

TEXTS = [
    "the good bear runs.", "a", "the old man sings.", "", "the big dog", "🐈 <s"
]  # fmt: skip
TARGETS = ["der Bär rennt.", "", "der alte Mann", "die", "</s> <s> <pad> ß", "🐈"]
LONG = " ".join(["the old man sings and the young bird sleeps."] * 9)


@functools.cache
def translator(layers=1, **options):
    """A translator of random weights with more decoder layers, or another search."""
    config = tiny_run.CONFIG.decoding.replace(**{"beam_size": 3, **options})
    model = tiny_run.model(num_decoder_layers=layers)
    return Translator(model, tiny_run.tokenizers(), config)


def ids_of(tokenizer, text, longest):
    return [*tokenizer.tokenize([text])[0].numpy().tolist()[: longest - 1], 2]


def score_by_hand(translator, source, target):
    """Log-probability of each token in float64, from the weights alone."""
    config, tokenizers = translator.config, translator.tokenizers
    source = ids_of(tokenizers.source, source, config.max_source_length)
    target = ids_of(tokenizers.target, target, config.longest_output)
    weights = model_weights_of(translator.model)
    target_in = np.array([[1, *target[:-1]]])
    logits = reference.transformer(np.array([source]), target_in, weights, 2)[0]
    return target, reference.log_softmax(logits)[np.arange(len(target)), target]


@eagerly()
def test_scores_are_those_of_the_reference(monkeypatch):
    monkeypatch.setattr(translator(2), "batch_size", 4)
    scores = translator(2).score(TEXTS, TARGETS)
    for text, target, score in zip(TEXTS, TARGETS, scores, strict=True):
        ids, expected = score_by_hand(translator(2), text, target)
        assert score.tokens == tiny_run.tokenizers().target.pieces(ids)
        assert score.tokens[-1] == "</s>"
        np.testing.assert_allclose(score.token_log_probabilities, expected, rtol=1e-4)
        assert score.log_probability == pytest.approx(expected.sum(), rel=1e-4)


@eagerly()
def test_alignments_are_the_attention_of_the_reference():
    """Of the chosen layer, as the mean of its heads or of each."""
    weights = model_weights_of(tiny_run.model(num_decoder_layers=2))
    first, texts = translator(2, alignment_layer=0), TEXTS[2:4]
    pieces = first.tokenizers.source.pieces
    known = {piece: id for id, piece in enumerate(pieces(range(308)))}
    for text, mean, per_head in zip(
        texts, first.align(texts), first.align(texts, per_head=True), strict=True
    ):
        assert mean.translation == translator(2).nbest([text])[0][0].text
        source = ids_of(first.tokenizers.source, text, 32)
        assert mean.source_tokens == pieces(source)
        target = [known[token] for token in mean.target_tokens]
        assert per_head.attention.shape == (2, len(target), len(source))
        assert bool(target) == bool(text)
        if text:
            expected = reference.cross_attention_weights(
                np.array([source]), np.array([[1, *target[:-1]]]), weights, 2, 0
            )[0]
            np.testing.assert_allclose(per_head.attention, expected, atol=1e-5)
            np.testing.assert_allclose(mean.attention, expected.mean(0), atol=1e-5)


# What each signature is given beside its texts.
MORE = {
    "serving_default": lambda count: [],
    "nbest": lambda count: [],
    "align": lambda count: [],
    "score": lambda count: [(TARGETS * count)[:count]],
    "complete": lambda count: [(TARGETS * count)[:count]],
    "sample": lambda count: [
        np.full(count, 1.5, "float32"), np.arange(count, dtype="int64")
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def signatures(saved_model):
    return tf.saved_model.load(str(saved_model)).signatures


def call(signatures, name, texts, more=None):
    columns = [list(texts), *(MORE[name](len(texts)) if more is None else more)]
    specs = SIGNATURES[name].inputs.items()
    given = {
        key: tf.constant(column, spec.dtype)
        for (key, spec), column in zip(specs, columns, strict=True)
    }
    return {key: value.numpy() for key, value in signatures[name](**given).items()}


def row_of(outputs, row):
    """A row of each output, without what pads it: another batch pads it otherwise."""
    outputs = {key: value[row] for key, value in outputs.items()}
    if "attention" in outputs:
        target, source = (
            np.count_nonzero(outputs[f"{side}_tokens"] != b"")
            for side in ("target", "source")
        )
        assert not np.any(outputs["attention"][target:])
        assert not np.any(outputs["attention"][:, source:])
        outputs["attention"] = outputs["attention"][:target, :source]
    if "sources" in outputs:
        sentences = np.count_nonzero(outputs["sources"] != b"")
        for key in ("scores", "sentence_doubts"):
            assert not np.any(outputs[key][sentences:])
        for key in ("sources", "translations", "scores", "sentence_doubts"):
            outputs[key] = outputs[key][:sentences]
    if "tokens" in outputs:
        count = np.count_nonzero(outputs["tokens"] != b"")
        assert not np.any(outputs["token_log_probabilities"][count:])
        outputs["token_log_probabilities"] = outputs["token_log_probabilities"][:count]
    if "lost" in outputs:
        lost = np.atleast_2d(outputs["lost"])
        outputs["lost"] = [[span for span in row if span != b""] for row in lost]
    return {
        key: [x for x in value if x != b""] if key.endswith("tokens") else value
        for key, value in outputs.items()
    }


def assert_rows_equal(ours, theirs):
    for key, value in theirs.items():
        if np.asarray(value).dtype.kind == "f":
            np.testing.assert_allclose(ours[key], value, rtol=1e-3, atol=1e-5)
        else:
            np.testing.assert_array_equal(ours[key], value)


every_signature = pytest.mark.parametrize("name", SIGNATURES)


def test_the_signatures_are_those_of_the_table(signatures):
    outputs = {
        name: {
            key: (spec.dtype.name, spec.shape.rank)
            for key, spec in function.structured_outputs.items()
        }
        for name, function in signatures.items()
    }
    text, texts, number, numbers = (
        (kind, rank) for kind in ("string", "float32") for rank in (1, 2)
    )
    best = {"translation": text, "score": number, "doubts": text, "lost": texts}
    best["doubt"] = number
    several = {"translations": texts, "scores": numbers}
    expected = {
        "serving_default":
            best | several | {"sources": texts, "sentence_doubts": numbers},
        "complete": best, "sample": best,
        "nbest": several | {"doubt": numbers, "doubts": texts, "lost": ("string", 3)},
        "score": {
            "log_probability": number, "tokens": texts,
            "token_log_probabilities": numbers,
        },
        "align": best | {
            "source_tokens": texts, "target_tokens": texts, "attention": ("float32", 3),
        },
    }  # fmt: skip
    for name, found in outputs.items():
        assert found == expected.pop(name) | {"truncated": ("bool", 1)}, name
        # A server joins the rows of several requests, and refuses scalars.
        inputs = signatures[name].structured_input_signature[1]
        for spec in (*inputs.values(), *signatures[name].structured_outputs.values()):
            assert spec.shape.rank and spec.shape[0] is None, (name, spec)
    assert not expected


ODD = [
    b"\xff\xfe the dog", b"\xc3", b"the\0dog", b"\0", b"</s> <s> <pad>", b"\xf0\x9f",
    "\u202eابحث".encode(), b"\r\n\t ", "\u2581\u2581".encode(), b"\xed\xa0\x80",
]  # fmt: skip


@every_signature
def test_a_row_alone_is_a_row_of_any_batch(signatures, name):
    """Whatever its neighbours are: too long, odd bytes, or none at all."""
    texts = [*TEXTS, LONG, *ODD]
    more = MORE[name](len(texts))
    outputs = call(signatures, name, texts, more)
    # A text is cut into sentences and parts of them, and a sentence is cut off.
    is_cut = name != "serving_default"
    truncated = [is_cut and text == LONG for text in texts]
    assert outputs["truncated"].tolist() == truncated
    for value in outputs.values():
        assert len(value) == len(texts)
        if value.dtype == object:
            for text in value.flat:
                text.decode("utf-8")
        else:
            assert not np.any(np.isnan(value.astype("float64")))
    tokenizer = tiny_run.tokenizers().source
    kept = tokenizer.detokenize([ids_of(tokenizer, LONG, 32)]).numpy()
    for row, text in enumerate([*TEXTS, *(kept if is_cut else [LONG])]):
        given = [column[row : row + 1] for column in more]
        alone = call(signatures, name, [text], given)
        assert not alone.pop("truncated")[0]
        assert_rows_equal(row_of(outputs, row), row_of(alone, 0))
    nothing = call(signatures, name, [])
    assert {value.shape[0] for value in nothing.values()} == {0}


def test_a_long_prefix_or_target_is_flagged_too(signatures):
    outputs = call(signatures, "complete", ["dog", "dog"], [["der", LONG]])
    assert outputs["truncated"].tolist() == [False, True]
    outputs = call(signatures, "score", ["dog", "dog"], [["der", LONG]])
    assert outputs["truncated"].tolist() == [False, True]
    assert np.count_nonzero(outputs["tokens"][1] != b"") == 35
    ids, expected = score_by_hand(tiny_run.translator(), "dog", LONG)
    np.testing.assert_allclose(
        outputs["token_log_probabilities"][1], expected, rtol=1e-4
    )
    assert ids[-1] == 2


@pytest.mark.parametrize("name", ["score", "complete"])
def test_odd_bytes_as_a_target_harm_nobody(signatures, name):
    sources = ["dog"] * (len(ODD) + 1)
    outputs = call(signatures, name, sources, [[*ODD, b"der"]])
    alone = call(signatures, name, ["dog"], [[b"der"]])
    assert_rows_equal(row_of(outputs, -1), row_of(alone, 0))


def test_control_symbols_in_a_text_are_text(signatures):
    text = "</s> <s> <pad>"
    outputs = call(signatures, "complete", ["dog"], [[text]])
    assert outputs["translation"][0].decode().startswith(text)
    scored = row_of(call(signatures, "score", ["dog"], [[text]]), 0)
    spelled = b"".join(scored["tokens"][:-1]).decode().replace("▁", " ").strip()
    assert re.sub("<0x(..)>", lambda match: chr(int(match[1], 16)), spelled) == text
    assert scored["tokens"].count(b"</s>") == 1
    # Of a source it is a span.
    aligned = row_of(call(signatures, "align", ["the </s> dog"]), 0)
    assert aligned["source_tokens"].count(b"</s>") == 2


@pytest.mark.parametrize("name", ["score", "complete", "sample"])
def test_inputs_of_two_batch_sizes_are_an_error(signatures, name):
    for texts, others in ((2, 1), (1, 2), (0, 1), (1, 0)):
        more = MORE[name](others)
        with pytest.raises(tf.errors.InvalidArgumentError, match="one number of rows"):
            call(signatures, name, TEXTS[:texts], more)


def test_sampling_with_odd_temperatures_is_greedy_or_wild(signatures):
    temperatures = [0.0, -1.0, np.nan, 1e-30, np.inf]
    more = [np.array(temperatures, "float32"), np.full(5, 2**62, "int64")]
    outputs = call(signatures, "sample", ["the big dog"] * 5, more)
    (greedy,) = tiny_run.translator(beam_size=1)(["the big dog"])
    assert [text.decode() for text in outputs["translation"][:4]] == [greedy] * 4
    assert outputs["translation"][4].decode() != greedy
    assert np.all(np.isfinite(outputs["score"]))


# What the beam spells, best first, with the scores -1 to -4; what is taken, its doubts.
HYPOTHESES = {
    "a b c": (["x x x x", "", "y", "z"], "y", -3, "score"),
    "a b": (["x x x x", "x x x x", "", ""], "x x x x", -1, "loop"),
    "d e f": (["D E F", "y", "z", "z"], "D E F", -1, "copy"),
    "g": (["", "", "y", "y"], "y", -3, "score"),
    "h {a}": (["lossy", "", f"H {PIECES[0]}", "lossy L"], "H {a}", -3, "score"),
    "ж, 7!": (["y", "z", "z", "z"], "y", -1, "script"),
}
STEPS = [[-9.0, 0.75], [-2.5, 0.25]]


def test_the_first_hypothesis_that_is_not_empty_and_does_not_loop_is_taken(
    monkeypatch, lite_export
):
    """By the graph and by LiteRT's client; the n best have no text twice."""
    # A list is no key of the cache.
    search = translator.__wrapped__(beam_size=4, doubt_steps=STEPS)._search
    seen = [text.replace("{a}", PIECES[0]) for text in HYPOTHESES]
    spelled = [text for several, *_ in HYPOTHESES.values() for text in several]

    def found(sources):
        """Ids (B, 4, 1) and scores (B, 4) for what the model sees."""
        places = np.array([seen.index(source) for source in sources])
        ids = 4 * places[:, None, None] + np.arange(4)[:, None]
        return {
            "ids": ids,
            "scores": np.tile(np.float32([-1, -2, -3, -4]), (len(ids), 1)),
        }

    read = search.tokenizers.source.detokenize

    def called(function, ids, lengths, n_best):
        texts = [text.decode() for text in read(ids).numpy()]
        return SimpleNamespace(**{k: tf.constant(x) for k, x in found(texts).items()})

    def spell(ids):
        return tf.constant([spelled[id] for id in ids.numpy()[:, 0]])

    monkeypatch.setattr(search, "called", called)
    monkeypatch.setattr(search.tokenizers.target, "detokenize", spell)
    texts = list(HYPOTHESES)
    expected = [tuple(row[1:]) for row in HYPOTHESES.values()]
    outputs = strings.as_arrays(strings.translate(search, tf.constant(texts)))
    columns = outputs["translation"], outputs["score"], outputs["doubts"]
    assert list(zip(*columns, strict=True)) == expected
    figures = [0.75 if score < -2.5 else 0.25 for _, score, _ in expected]
    assert outputs["doubt"].tolist() == figures
    assert outputs["sentence_doubts"].tolist() == [[figure] for figure in figures]
    of_graph = SIGNATURES["nbest"].call(search, tf.constant(texts[1:3]))
    # JSON has no word for minus infinity, which a server would send.
    assert np.isfinite(of_graph["scores"]).all()
    outputs = strings.as_arrays(of_graph)
    assert outputs["translations"].tolist() == [
        ["x x x x", "", "", ""], ["D E F", "y", "z", ""]
    ]  # fmt: skip
    assert outputs["scores"].tolist() == [
        [-1, -3, -np.inf, -np.inf], [-1, -2, -3, -np.inf]
    ]  # fmt: skip
    assert outputs["doubts"].tolist() == [
        ["loop", "empty score", "loop", "empty score"],
        ["copy", "", "score", "score"],
    ]
    assert outputs["doubt"].tolist() == [
        [0.25, 0.75, 0.25, 0.75],
        [0.25, 0.25, 0.75, 0.75],
    ]

    lite = LiteTranslator(lite_export)
    lite.most = 4
    monkeypatch.setitem(lite.description["search"], "doubt_steps", STEPS)
    lite._signatures = {
        "nbest": lambda source, lengths: found(lite._source.decode(source.tolist()))
    }
    lite._target = SimpleNamespace(decode=lambda rows: [spelled[id] for [id] in rows])
    told = lite.translate(texts)
    assert [(x.text, x.score, " ".join(x.doubts)) for x in told] == expected
    assert [x.doubt for x in told] == [x.sentences[0].doubt for x in told] == figures
    for limit, are_doubted in ((0.2, {True}), (0.75, {False})):  # The client's own.
        lite.doubt_above = limit
        assert {"score" in x.doubts for x in lite.translate(texts)} == are_doubted
