"""What passes through a translation unchanged: addresses, placeholders, numbers.

A span of a text becomes one of eight pieces of the vocabulary, which the model carries
to its place in the translation, where the span comes back. The rules are regular
expressions that Python, JavaScript and TensorFlow (RE2) read alike. This file needs
Python alone: a LiteRT export has a copy of it.
"""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

if __package__:
    from keras_transformer.text.sentences import GLUE, PLACE
else:  # Beside a copy of that file.
    from sentences import GLUE, PLACE

# Characters that Unicode promises no text has; `text.sentences` has others.
PIECES = tuple("\ufde0\ufde1\ufde2\ufde3\ufde4\ufde5\ufde6\ufde7")
# A span is OPEN, its source and CLOSE, or OPEN, source, TO, what replaces it and CLOSE.
OPEN = "\ufdd3"
TO = "\ufdd4"
CLOSE = "\ufdd5"
# In a translation, the place of a piece that is no span.
GONE = "\ufdd7"

_MARK = "\ufdd0-\ufdef"
_SPACES = " \t\u00a0\u2000-\u200a\u202f\u3000"
_ANY_SPACE = f"[{_SPACES}\n\r]"
# Of the scripts that write no space between words.
_WIDE = "\u3000-\u30ff\u3400-\u9fff\uff00-\uffef"
_SYMBOL = f"\\[-`{{-\u00bf×÷\u2000-\u206f{_WIDE}{_MARK}"
_WORD = f"[^\\x00-/:-@{_SYMBOL}]"
_LETTER = f"[^\\x00-@{_SYMBOL}]"
# Of an address: any character, and one that can be its last.
_URL = f'[^{_SPACES}\n\r<>"“”„«»()|\\\\^`{{}}{_WIDE}{_MARK}]'
_URL_END = f"[^{_SPACES}\n\r<>\"“”„«»()|\\\\^`{{}}{_WIDE}{_MARK}.,;:!?'’…*_\\]\\[]"
_URL_REST = f"(?:{_URL}|\\({_URL}*\\))*(?:{_URL_END}|\\({_URL}*\\))"
_HOST = "[A-Za-z0-9-]+(?:\\.[A-Za-z0-9-]+)*\\."
_ADDRESSES = (
    f"(?:https?://|ftp://|www\\.){_URL_REST}",
    "[A-Za-z0-9_][A-Za-z0-9_.+%-]*@[A-Za-z0-9-]+(?:\\.[A-Za-z0-9-]*[A-Za-z0-9])+",
    f"{_HOST}[a-z]{{2,}}/{_URL_REST}",
    f"{_HOST}(?:com|org|net)/?",
)
_VALUE = f"(?:\"[^\"<>{_MARK}]*\"|'[^'<>{_MARK}]*'|[^{_SPACES}\n\r\"'<>={_MARK}]+)"
_ATTRIBUTE = f"{_ANY_SPACE}+[A-Za-z_:@][A-Za-z0-9_.:@-]*={_VALUE}"
_DIGITS = "[0-9]+(?:[.,:/'’T\u00a0\u202f-][0-9]+)+"
_SPANS = (
    f"\\{{\\{{[^{{}}{_MARK}]*\\}}\\}}|\\{{%[^{{}}{_MARK}]*%\\}}",
    f"\\$?\\{{[^{{}}{_SPACES}\n\r{_MARK}]*\\}}",
    "%(?:[0-9]+\\$|\\([A-Za-z0-9_.]+\\))?[-+#0]*[0-9]*(?:\\.[0-9]+)?l?l?[sdufxc@]",
    "%[A-Z_]{2,}%",
    f"</?[A-Za-z][A-Za-z0-9:-]*(?:{_ATTRIBUTE})*{_ANY_SPACE}*/?>|<!--[^<>{_MARK}]*-->",
    "&(?:[A-Za-z][A-Za-z0-9]+|#[0-9]+|#[xX][0-9A-Fa-f]+);",
    # A telephone, a number with a mark inside, a long one, a code.
    "\\+[0-9]+(?:[ ./()-]{1,2}[0-9]+)+",
    f"[-+−]?{_DIGITS}(?: [0-9]{{3}})*{_LETTER}*",
    "[0-9]{4,}|[0-9]+(?: [0-9]{3})+",
    "(?:[A-Z]+[-_/]?|v)[0-9][A-Za-z0-9]*(?:[-_./][A-Za-z0-9]+)*(?: [0-9]{2,})*",
)
# Not one of them, though its end looks like one: 1990s, 100 %d, example.community.
_NO_SPANS = (f"[0-9]+{_LETTER}{_WORD}*", f"[0-9]+[{_SPACES}]?%")
_NO_ADDRESS = f"{_HOST}(?:com|org|net)[A-Za-z0-9-]"


# What a text without spans lacks.
_MAYBE = re.compile(f"[0-9@<{{%&/{_MARK}]|www\\.|\\.(?:com|org|net)")


@functools.cache
def span_rules(are_carried: bool = True) -> dict[str, Any]:
    """How spans are found and come back, for JSON.

    Args:
        are_carried: Whether there are any: a vocabulary may have no `PIECES`.

    Returns:
        A dictionary of lists of patterns and what replaces them, in order. "mark" puts
        `OPEN` before a span and `CLOSE` after it, and `GLUE` where it touches a word;
        "hide" puts `PLACE` there. "source" leaves a span its source, and "shown" what
        replaces it. "see" makes a sentence what the model sees, and "restore" tidies
        the translation with its spans.
    """
    whole = f"{OPEN}[^{_MARK}]+(?:{TO}[^{_MARK}]*)?{CLOSE}"
    rules = {
        "mark": [
            # What a client has marked stays, as long as it is whole.
            (f"({whole})|[{_MARK}]", "\\1"),
            (
                f"({whole}|{_NO_ADDRESS})|({'|'.join(_ADDRESSES)})"
                f"|({'|'.join(_NO_SPANS)})|({'|'.join(_SPANS)})|({_WORD}+)",
                f"\\1\\3\\5{OPEN}\\2\\4{CLOSE}",
            ),
            (f"{OPEN}{CLOSE}", ""),
            (f"({_WORD}|{CLOSE}){OPEN}", f"\\1{GLUE}{OPEN}{GLUE}"),
            (f"{CLOSE}({_WORD})", f"{GLUE}{CLOSE}{GLUE}\\1"),
        ],
        "hide": [(f"{OPEN}[^{CLOSE}]*{CLOSE}", PLACE)],
        "source": [(f"{TO}[^{GLUE}]*", "")],
        "shown": [(f"^({GLUE}?)[^{GLUE}{TO}]*{TO}", "\\1")],
        "see": [(GLUE + GLUE, ""), (GLUE, " ")],
        "restore": [(f"^{GONE} ?| ?{GONE}", ""), (f" ?{GLUE} ?", "")],
    }
    return rules if are_carried else rules | {"mark": [(f"[{_MARK}]", "")]}


class Hidden(NamedTuple):
    """A text with `PLACE` for each span and `GLUE`, and its spans in order."""

    text: str
    spans: list[str]


class SpanFinder:
    """Takes the spans out of texts by `span_rules`, and puts them back.

    Args:
        rules: Those of `span_rules`.

    Example:

    >>> finder = SpanFinder(span_rules())
    >>> text = finder.hidden("Mail a@b.org, or see https://b.org.")
    >>> text.spans
    ['a@b.org', 'https://b.org']
    >>> finder.restored(f"Siehe {PIECES[1]}.", text.spans)
    ('Siehe https://b.org.', ['a@b.org'])
    """

    def __init__(self, rules: Mapping[str, Any]):
        self._rules = {
            name: [(re.compile(pattern), new) for pattern, new in steps]
            for name, steps in rules.items()
        }

    def hidden(self, text: str) -> Hidden:
        """Returns a text without its spans."""
        marked = self._replaced("mark", text)
        spans = [part.split(CLOSE)[0] for part in marked.split(OPEN)[1:]]
        return Hidden(self._replaced("hide", marked), spans)

    def sources(self, spans: Sequence[str]) -> list[str]:
        """Returns spans as they were written."""
        return [self._replaced("source", span).replace(GLUE, "") for span in spans]

    def source(self, hidden: Hidden) -> str:
        """Returns a text as it was written."""
        return _filled(hidden.text, self.sources(hidden.spans)).replace(GLUE, "")

    def marked(self, hidden: Hidden) -> str:
        """Returns a text in which `hidden` finds the same spans."""
        spans = [f"{OPEN}{span}{CLOSE}" for span in hidden.spans]
        return _filled(hidden.text, spans).replace(GLUE, "")

    def pieces(
        self, spans: Sequence[str], others: Sequence[str] | None = None
    ) -> dict[tuple[str, int], str]:
        """Returns the piece of each of the first eight spans, for `seen`.

        With `others` of those alone that are among these.
        """
        names = self._named(spans)
        if others is not None:
            known = set(self._named(others))
            names = [name for name in names if name in known]
        return dict(zip(names, PIECES, strict=False))

    def seen(self, hidden: Hidden, pieces: Mapping[tuple[str, int], str]) -> str:
        """Returns what the model sees: the piece of a span, or else its source."""
        values = [
            pieces.get(name) or self._replaced("source", span)
            for name, span in zip(self._named(hidden.spans), hidden.spans, strict=True)
        ]
        return self._replaced("see", _filled(hidden.text, values))

    def restored(self, text: str, spans: Sequence[str]) -> tuple[str, list[str]]:
        """Returns a translation with its spans, and the sources of those it lost.

        A piece that comes twice, or is none of the spans, vanishes.
        """
        left = dict(zip(PIECES, spans, strict=False))

        def shown(match):
            span = left.pop(match[0], None)
            return GONE if span is None else self._replaced("shown", span)

        text = re.sub(f"[{''.join(PIECES)}]", shown, text)
        lost = [*left.values(), *spans[len(PIECES) :]]
        return self._replaced("restore", text), self.sources(lost)

    def with_terms(self, text: str, terms: Mapping[str, str | None]) -> str:
        """Returns a text with the terms marked as spans, each with its replacement.

        Terms are whole words, the longest first; one in small letters is found in any
        case. `None` stands for the term itself. One inside another span is left out.
        """
        longest_first = sorted(terms, key=len, reverse=True)
        words = [
            f"(?i:{re.escape(word)})" if word == word.lower() else re.escape(word)
            for word in longest_first
        ]
        pattern = f"(?<!{_WORD})(?:{'|'.join(words)})(?!{_WORD})"
        finder = self._rules["mark"][1][0]
        found = [
            match.span() for match in finder.finditer(text) if match[2] or match[4]
        ]

        def marked(match):
            word = match[0]
            start, end = match.span()
            if any(
                a <= start and end <= b and (a, b) != (start, end) for a, b in found
            ):
                return word
            new = terms[word] if word in terms else terms.get(word.lower())
            return (
                f"{OPEN}{word}{CLOSE}"
                if new is None
                else f"{OPEN}{word}{TO}{new}{CLOSE}"
            )

        return re.sub(pattern, marked, text)

    def _named(self, spans):
        """Returns the source of each span, and how many equal ones come before it."""
        counts = collections.Counter()
        named = []
        for source in self.sources(spans):
            named.append((source, counts[source]))
            counts[source] += 1
        return named

    def _replaced(self, name, text):
        for pattern, replacement in self._rules[name]:
            text = pattern.sub(replacement, text)
        return text


def hidden_pair(source: str, target: str, more: Sequence[str] = ()) -> tuple[str, str]:
    """Returns a pair for training, with a piece for each span that both sides have.

    A span of one side stays text. `more` are words to hide as well.
    """
    if not more and not (_MAYBE.search(source) and _MAYBE.search(target)):
        return re.sub(f"[{_MARK}]", "", source), re.sub(f"[{_MARK}]", "", target)
    sides = source, target
    if more:
        sides = (finder().with_terms(side, dict.fromkeys(more)) for side in sides)
    first, second = map(finder().hidden, sides)
    carried = finder().pieces(first.spans, second.spans)
    return finder().seen(first, carried), finder().seen(second, carried)


@functools.cache
def finder() -> SpanFinder:
    """Returns the finder of all spans."""
    return SpanFinder(span_rules())


def as_terms(
    terms: Mapping[str, str] | None, dont_translate: Sequence[str]
) -> dict[str, str | None]:
    """Returns the terms for `SpanFinder.with_terms`, or raises an error."""
    if isinstance(dont_translate, str):
        raise TypeError(
            "`dont_translate` must be a sequence of strings. Received: "
            f"dont_translate={dont_translate!r}"
        )
    both = dict.fromkeys(dont_translate) | dict(terms or {})
    for term, new in both.items():
        texts = [term] if new is None else [term, new]
        is_text = all(isinstance(text, str) for text in texts)
        if not is_text or not term.strip() or re.search(f"[{_MARK}]", "".join(texts)):
            raise ValueError(
                "`terms` and `dont_translate` must be texts with a visible character. "
                f"Received: {term!r}, to be {term if new is None else new!r}"
            )
    return both


def _filled(text, values):
    """Returns a hidden text with a value in each place."""
    first, *rest = text.split(PLACE)
    return first + "".join(map("".join, zip(values, rest, strict=True)))
