"""Spans that pass: by hand, and alike in Python, TensorFlow and JavaScript."""

import functools
import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import tensorflow as tf

from keras_transformer.formats import web
from keras_transformer.text import in_graph
from keras_transformer.text.spans import (
    CLOSE,
    GLUE,
    OPEN,
    PIECES,
    TO,
    SpanFinder,
    hidden_pair,
    span_rules,
)

RULES = span_rules()
FINDER = SpanFinder(RULES)

SPANS = {
    "A plain sentence, with 2 men (and 3rd dogs) in the 1990s, 5 € off 7.": ["5 €"],
    "350 men: 20% at €1,250.50, $ 30 or -5 °C, 12 March; 8 %d and 90 %(n)d.": [
        "350",
        "20%",
        "€1,250.50",
        "$ 30",
        "-5 °C",
        "12",
        "%d",
        "90",
        "%(n)d",
    ],  # fmt: skip
    "Not within words: abc1234, xA4 and usb3.5.": [],
    "See https://a.b/c?d=1, or (http://x.org/a_(b)). www.foo.com!": [
        "https://a.b/c?d=1",
        "http://x.org/a_(b)",
        "www.foo.com",
    ],
    "At github.com/a/b. Or example.com; not example.community, Done.It or a/b.": [
        "github.com/a/b",
        "example.com",
    ],
    "看https://a.b/c。谢谢": ["https://a.b/c"],
    "Mail x.y+z@sub.z-a.org. Not @me or a@b.": ["x.y+z@sub.z-a.org"],
    "{name} {0} {{ x }} ${y} {% if z %} {an aside}": [
        "{name}",
        "{0}",
        "{{ x }}",
        "${y}",
        "{% if z %}",
    ],
    "%s %d %1$s %(n)d %.2f %ds %PATH%; 5 % d, 100 %sure": [
        "%s",
        "%d",
        "%1$s",
        "%(n)d",
        "%.2f",
        "%d",
        "%PATH%",
    ],
    "<b>teacher</b><br/> <a href=\"u v\" id='w' x=3 >z</a > <!-- no --> &amp; &#39;": [
        "<b>",
        "</b>",
        "<br/>",
        "<a href=\"u v\" id='w' x=3 >",
        "</a >",
        "<!-- no -->",
        "&amp;",
        "&#39;",
    ],
    "a < b and c > d, <3, x<y and z>w, AT&T; R&D": [],
    "1,234.56 dollars on 12/31/2025, -5.3 of 2.5GHz; 1 234 567 in 2025.": [
        "1,234.56",
        "12/31/2025",
        "-5.3",
        "2.5GHz",
        "1 234 567",
        "2025",
    ],
    "+49 30 123456, 2025-12-31T10:00Z, A4, COVID-19, v1.2.3, DE89 3704 0044 00": [
        "+49 30 123456",
        "2025-12-31T10:00Z",
        "A4",
        "COVID-19",
        "v1.2.3",
        "DE89 3704 0044 00",
    ],
}


def shown(text):
    """The pieces of a text as readable characters."""
    return text.translate({ord(piece): str(i) for i, piece in enumerate(PIECES)})


@pytest.mark.parametrize("text", SPANS)
def test_spans_are_found_and_hidden(text):
    hidden = FINDER.hidden(text)
    assert FINDER.sources(hidden.spans) == SPANS[text]
    marked = FINDER.marked(hidden)
    assert FINDER.source(marked) == text
    assert FINDER.hidden(marked) == hidden


PAIRS = [
    (("No 1 here.", "Kein 1."), (), ("No 1 here.", "Kein 1.")),
    (
        ("<b>teacher</b> 1998 and 3.5 {a}{b} 1998", "{b}{a} 1998 <b>Lehrer</b> 3,5"),
        (),
        ("0 teacher 1 2 and 3.5 3 4 1998", "4 3 2 0 Lehrer 1 3,5"),
    ),
    (("x{a}y", "z"), (), ("x{a}y", "z")),
    (
        ("The dog and the dog.", "Der dog und Dogge Dog dogs."),
        ["dog"],
        ("The 0 and the dog.", "Der 0 und Dogge Dog dogs."),
    ),
    ((f"a{PIECES[3]}b", "c"), (), ("ab", "c")),
]


@pytest.mark.parametrize("pair, more, expected", PAIRS)
def test_spans_of_both_sides_are_hidden(pair, more, expected):
    found = hidden_pair(*pair, more)
    assert tuple(map(shown, found)) == expected


# A text, what the model makes of its pieces, and what becomes of it.
RESTORED = {
    "copied": ("See {a} or {b}.", "Sieh 0 oder 1.", "Sieh {a} oder {b}.", []),
    "reordered": ("{a} {b}", "1 0", "{b} {a}", []),
    "twice": ("{a} and b", "0 und 0 0 b", "{a} und b", []),
    "lost, and others": ("{a} {b} {a}", "3 x 1, 7.", "x {b},.", ["{a}", "{a}"]),
    "touching words": ("<b>Two</b>x {n}s", "0 Zwei 1 x 2 s", "<b>Zwei</b>x {n}s", []),
    "touching others": ("{a}{b}x", "1 x 0", "{b}x {a}", []),
    "more than eight": ("%s" * 9, "0 1 2 3 4 5 6 7 %s", "%s" * 8 + " %s", ["%s"]),
    "a term": (f"a {OPEN}b{TO}c d{CLOSE}x", "0 x", "c dx", []),
}


@pytest.mark.parametrize("name", RESTORED)
def test_spans_come_back(name):
    text, translation, expected, lost = RESTORED[name]
    translation = translation.translate({48 + i: x for i, x in enumerate(PIECES)})
    found = FINDER.restored(translation, FINDER.hidden(text).spans)
    assert found == (expected, lost)


def test_the_model_sees_whole_words_and_at_most_eight_pieces():
    hidden = FINDER.hidden("<b>Two</b>{a}{b} %s-%s %s %s (%s)x%s.")
    seen = FINDER.seen(hidden, FINDER.sources(hidden.spans))
    assert shown(seen) == "0 Two 1 2 3 4-5 6 7 (%s)x%s."


TERMS = {"router": "Router", "SAP": "SAP-System", "big router": "Kern", "Acme": None}


def test_terms_are_whole_words_the_longest_first():
    text = "The ROUTER, a big router; no routers, sap or SAP of Acme at x.org/router."
    marked = FINDER.with_terms(text, TERMS)
    for mark, sign in {OPEN: "<", TO: ">", CLOSE: ">"}.items():
        marked = marked.replace(mark, sign)
    assert marked == (
        "The <ROUTER>Router>, a <big router>Kern>; no routers, sap or "
        "<SAP>SAP-System> of <Acme> at x.org/router."
    )


@functools.cache
def texts_and_results():
    """3,000 texts of what rules look at, and what Python makes of them."""
    pieces = [
        *"aZßжЖ中あ1059,;:.!?。“”'\"()[]{}<>/=-+%$&#@_*\u00a0", *" " * 12, "\n",
        *SPANS, "{a}", "%s", "<b>", "</b>", "&amp;", "1,234.5", "2025", "a@b.org",
        "www.", "http://", "x.org/", "word", "Wort ", "слово ", "😀", "e\u0301",
        OPEN, TO, CLOSE,
        f"{OPEN}a{TO}b{CLOSE}", f"{OPEN}c{CLOSE}", GLUE, PIECES[0], PIECES[5],
    ]  # fmt: skip
    drawn = random.Random(54)
    texts = ["".join(drawn.choices(pieces, k=drawn.randrange(20))) for _ in range(3000)]
    results = []
    translations = []
    for text in texts:
        hidden = FINDER.hidden(text)
        seen = FINDER.seen(hidden, FINDER.sources(hidden.spans))
        words = [word + " " * drawn.randrange(2) for word in (*seen, *PIECES[:3])]
        translations.append("".join(drawn.sample(words, len(words) * 3 // 4)))
        restored = FINDER.restored(translations[-1], hidden.spans)
        results.append([*hidden, FINDER.marked(hidden), seen, *restored])
    return texts, translations, results


def test_texts_hold_many_spans():
    _, _, results = texts_and_results()
    counts = [len(spans) for _, spans, *_ in results]
    assert sum(counts) > 9000 and max(counts) > 8
    assert sum(len(lost) for *_, lost in results) > 2000


@pytest.mark.parametrize("is_graph", [False, True])
def test_tensorflow_finds_what_python_does(is_graph):
    texts, translations, results = texts_and_results()

    def found(texts, translations):
        hidden, spans = in_graph.hidden_spans(texts, RULES)
        return (
            hidden,
            spans,
            in_graph.marked_texts(hidden, spans),
            in_graph.seen_texts(
                hidden, spans, in_graph.sources_of(spans, RULES), RULES
            ),
            *in_graph.restored_texts(translations, spans, RULES),
        )

    if is_graph:
        found = tf.function(found, autograph=False)
    columns = found(tf.constant(texts), tf.constant(translations))
    columns = [
        x.to_list() if isinstance(x, tf.RaggedTensor) else x.numpy() for x in columns
    ]
    for row, expected in zip(zip(*columns, strict=True), results, strict=True):
        decoded = [
            value.decode()
            if isinstance(value, bytes)
            else [x.decode() for x in value if x]
            for value in row
        ]
        assert decoded == expected


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js")
def test_javascript_finds_what_python_does():
    texts, translations, results = texts_and_results()
    facts = {
        "module": str(web.PAGE / "spans.js"),
        "rules": RULES,
        "texts": texts,
        "translations": translations,
    }
    found = subprocess.run(
        ["node", str(Path(__file__).with_name("spans.mjs"))],
        input=json.dumps(facts),
        capture_output=True,
        check=True,
        text=True,
    )
    assert json.loads(found.stdout) == results


def test_tensorflow_gives_targets_the_pieces_of_their_sources():
    texts, _, _ = texts_and_results()
    sides = texts[:-1], texts[1:]
    expected = []
    for source, target in zip(*sides, strict=True):
        source, target = FINDER.hidden(source + " {a} %s"), FINDER.hidden("%s" + target)
        expected.append(FINDER.seen(target, FINDER.sources(source.spans)))
    _, sources = in_graph.hidden_spans(
        tf.strings.join([tf.constant(sides[0]), " {a} %s"]), RULES
    )
    targets = in_graph.hidden_spans(
        tf.strings.join(["%s", tf.constant(sides[1])]), RULES
    )
    carried = in_graph.sources_of(sources, RULES)
    found = in_graph.seen_texts(*targets, carried, RULES)
    assert [x.decode() for x in found.numpy()] == expected
    assert sum(PIECES[0] in x for x in expected) > 300
