"""Spans and terms through a model that copies them, live and exported, the same."""

import functools
import json
import shutil
import subprocess
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.formats import web
from tests import tiny_run

# The third span of a sentence becomes a second first one: the model loses it.
SWAP = [tiny_run.tokenizers().source.spans[i] for i in (2, 0)]
CONFIG = kt.DecodingConfig(beam_size=2, max_source_length=100, max_extra_length=3)
# A text, what comes back, and what is lost.
TEXTS = {
    "the old man sings.": ("the old man sings.", ()),
    "See <b>https://a.b/c?d=1</b>, {name}!": (
        "See <b>https://a.b/c?d=1, {name}!",
        ("</b>",),
    ),
    "1,234.56 on 12/31/2025. {x} is at x@y.org: a{z}b.\n\n- <p>Yes.</p><p>No.</p>": (
        "1,234.56 on 12/31/2025. {x} is at x@y.org: a b.\n\n- <p>Yes.</p><p>No.</p>",
        ("{z}",),
    ),
    # Two sentences for the model, of at most eight spans each.
    "%s " * 9 + "end": ("%s %s %s %s %s %s %s end", ("%s", "%s")),
    " ": (" ", ()),
}
TERMS = {"router": "Leitgerät", "old man": "Alter"}
WITH_TERMS = {
    "The Router of Acme, acme.": ("The Leitgerät of Acme, acme.", ()),
    "<b>Old man</b>, routers": ("<b>Alter, routers", ("</b>",)),
    "An Acme, an Acme, an old man.": ("An Acme, an Acme, an.", ("old man",)),
}


class Copying(keras.Model):
    """The logits of the source itself, but of the ids in `SWAP`."""

    def call(self, inputs):
        source, target_in = inputs
        source = ops.where(source == SWAP[0], SWAP[1], source)
        length = ops.shape(target_in)[1]
        longer = ops.pad(source, [[0, 0], [0, length]])[:, :length]
        return 20.0 * ops.one_hot(longer, 308)


@functools.cache
def live():
    return kt.Translator(Copying(), tiny_run.tokenizers(), CONFIG)


def assert_found(translator):
    found = translator.translate(list(TEXTS))
    assert [(one.text, one.lost) for one in found] == list(TEXTS.values())
    sources = [[sentence.source for sentence in one.sentences] for one in found]
    assert sources[1:3] == [
        ["See <b>https://a.b/c?d=1</b>, {name}!"],
        [
            "1,234.56 on 12/31/2025.",
            "{x} is at x@y.org: a{z}b.",
            "<p>Yes.</p>",
            "<p>No.</p>",
        ],
    ]
    found = translator.translate(list(WITH_TERMS), TERMS, dont_translate=["Acme"])
    assert [(one.text, one.lost) for one in found] == list(WITH_TERMS.values())


def test_the_live_translator_carries_spans_and_terms():
    assert_found(live())


def test_every_signature_knows_spans():
    text = "See <b>it</b>, {name}!"
    expected = "See <b>it</b>,!", ("{name}",)
    [[first, second]] = live().nbest([text], n_best=2)
    assert (first.text, first.lost) == expected
    assert second.text != first.text
    [found] = live().sample([text], temperature=0.0)
    assert (found.text, found.lost) == expected
    [found] = live().complete([text], ["See <b>"])
    assert (found.text, found.lost) == expected
    # Of the target only what the source has too is a span.
    sources = ["See <b>it</b>."] * 2
    good, bad = live().score(sources, ["See <b>it</b>.", "See <i>it</b>."])
    assert good.log_probability > -1 > bad.log_probability
    assert [good.tokens.count(span) for span in ("<b>", "</b>")] == [1, 1]
    assert [bad.tokens.count(span) for span in ("<i>", "</b>")] == [0, 1]


def test_a_saved_model_does_as_the_live_translator(tmp_path):
    exported = kt.ExportedTranslator(live().export(tmp_path / "copying"))
    assert_found(exported)


def test_litert_does_as_the_live_translator(lite_export, monkeypatch):
    lite = kt.LiteTranslator(lite_export)
    monkeypatch.setitem(lite.description, "max_source_length", 100)

    def copy(source, lengths):
        ids = np.where(source == SWAP[0], SWAP[1], source)
        return {"ids": ids[:, None], "scores": np.zeros([len(ids), 1], np.float32)}

    lite._signatures = {"nbest": copy}
    assert_found(lite)


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js")
def test_the_page_does_as_the_live_translator(lite_export):
    description = json.loads((lite_export / "translator.json").read_text("utf-8"))
    facts = {
        "site": str(web.PAGE),
        "model": str(lite_export / "joint.model"),
        "description": description | {"max_source_length": 100, "lengths": [100]},
        "texts": list(TEXTS),
        "swap": SWAP,
    }
    found = subprocess.run(
        ["node", str(Path(__file__).with_name("carried.mjs"))],
        input=json.dumps(facts),
        capture_output=True,
        check=True,
        text=True,
    )
    found = [(text, tuple(lost)) for text, lost in json.loads(found.stdout)]
    assert found == list(TEXTS.values())
