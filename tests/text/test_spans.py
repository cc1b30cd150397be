"""Spans that pass through a translation: by hand."""

import pytest

from keras_transformer.text.spans import PIECES, SpanFinder, hidden_pair, span_rules

RULES = span_rules()
FINDER = SpanFinder(RULES)

SPANS = {
    "A plain sentence, with 2 men (and 300 - no, 3rd - dogs) in the 1990s.": [],
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
    "%s %d %1$s %(n)d %.2f %ds %PATH%; 100% sure, 5 % d, 100 %sure": [
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
    assert FINDER.source(hidden) == text
    assert [
        FINDER.source(hidden._replace(text=PIECES[0], spans=[span]))
        for span in hidden.spans
    ] == SPANS[text]


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
