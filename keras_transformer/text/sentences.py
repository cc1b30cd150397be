"""A text cut into its sentences, and what stands between them.

The rules are regular expressions that Python, JavaScript and TensorFlow (RE2) read
alike. This file needs Python alone: a LiteRT export has a copy of it.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

# Characters that Unicode promises no text has.
CUT = "\ufdd0"
KEPT = "\ufdd1"
END = "\ufdd2"
# Where `text.spans` has taken a span out, and a space that only the model sees.
PLACE, GLUE = "\ufde0", "\ufdd6"

SPACES = " \t\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
BREAKS = "\n\r\u000b\u000c\u0085\u2028\u2029"
_SPACE = f"[{SPACES}{GLUE}]"
_ANY_SPACE = f"[{SPACES}{GLUE}{BREAKS}]"
# Of an item of a list, a quoted line or a speaker.
_MARKER = f"(?:(?:[-–—*•·]|>+|[0-9]{{1,3}}[.)]){_SPACE}+)"
# The end of a sentence, with the quotes and brackets that close there.
_STOP = f"[.!?…؟۔।॥]+(?:{_SPACE}?»)?[\"'”’“»«›‹)\\]}}*_{PLACE}]*"
# Its beginning: no small letter, since "Really?" he asks. goes on.
_OPENING = f"(?:[-–—]{_SPACE}+)?(?:«{_SPACE}|[\"'“‘„‚«»‹›(\\[{{*_])*"
_START = f"{_OPENING}(?:[\\p{{Lu}}\\p{{Lt}}\\p{{Lo}}\\p{{N}}{PLACE}]|[¿¡])"
_NO_WORD = "(^|[^\\p{L}\\p{N}])"
# A single capital is an initial, but not "I".
_INITIAL = "[A-HJ-ZÀ-ÖØ-ÞА-Я]"
# Of Chinese and Japanese, which have no space after a sentence.
_WIDE_STOPS = "。！？｡"
_WIDE_CLOSING = "”’」』）》】〉"
_WIDE_OPENING = "[“‘「『（《【〈]"
_WIDE_LETTER = "[\u3040-\u30ff\u3400-\u9fff]"
_WIDE_REST = f"[^{_WIDE_STOPS}?!{_WIDE_CLOSING}{SPACES}{GLUE}{BREAKS}{CUT}{END}]"

# They stand before a name or a number, so no sentence ends with them.
ABBREVIATIONS = tuple(
    "Adm Capt Col Dr Dra Fr Frl Ft Gen Gov Hon Hr Hrn Lt Maj Messrs Mlle Mme Mr Mrs Ms "
    "Mt Mx Pres Prof Rep Rev Sen Sgt Sr Sra Srta St Ud Uds Vd Vds approx bzw ca cf "
    "evtl ggf inkl sog usw vgl vs zzgl".split()
)
_BEFORE_NUMBERS = (
    "Abb|Abs|Apr|April|Art|Aug|Ch|Dec|Dez|Feb|Fig|Jan|Jul|Jun|Kap|Mar|No|Nos|Nov|Nr|"
    "Nº|Núm|Oct|Okt|Sec|Sep|Sept|Vol|art|fig|no|nr|núm|p|pp|pág|vol"
)
_AFTER_ORDINALS = (
    "Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|"
    "Dezember|Jahrhundert"
)


def learned_abbreviations(sentences: Iterable[str]) -> list[str]:
    """Words that have a point within sentences, mostly, and so end none.

    Args:
        sentences: At least 5 of which have such a word; they are held in memory.

    Returns:
        The words without their point, sorted.
    """
    sentences = list(sentences)
    word = r"\b([^\W\d_]{2,6})"
    with_point = Counter()
    for sentence in sentences:
        with_point.update(re.findall(word + r"\.(?=[ \u00a0][\w\"'(])", sentence))
    candidates = {word for word, count in with_point.items() if count >= 5}
    total = Counter()
    for sentence in sentences:
        words = re.findall(word + r"\b", sentence)
        total.update(word for word in words if word in candidates)
    return sorted(word for word in candidates if 2 * with_point[word] >= total[word])


def sentence_rules(abbreviations: Iterable[str] = ()) -> dict[str, Any]:
    """How texts are cut, for JSON.

    Args:
        abbreviations: More words, without their point, that end no sentence.

    Returns:
        A dictionary. "sentences" has patterns and what replaces them, in order, which
        put `CUT` before and after what stands between two sentences; `\\p{...}` is a
        class of Unicode. "halves" is such a rule for a sentence that is too long, with
        `KEPT` where it is cut: "clause" matches a mark and what follows it where that
        is best.
    """
    words = "|".join(map(re.escape, sorted({*ABBREVIATIONS, *abbreviations})))
    kept = f"\\1\\2{KEPT}"
    cut = f"\\1{CUT}\\2{CUT}\\3"
    before = f"{_ANY_SPACE}+{_MARKER}*|{_MARKER}+"
    # A tab stands between the cells of a table.
    line_break = f"{_SPACE}*[\t{BREAKS}]{_ANY_SPACE}*{_MARKER}*"
    initial = f"{_NO_WORD}({_INITIAL}\\.)"
    wide_closed = f"[{_WIDE_STOPS}]+[{_WIDE_CLOSING}]+"
    return {
        "sentences": [
            (f"(^(?:{before})|{line_break})", f"{CUT}\\1{CUT}"),
            (f"({_ANY_SPACE}*){END}", f"{CUT}\\1"),
            (f"{_NO_WORD}((?:{words})\\.)", kept),
            # Twice, since neighbours such as J.R. share a character.
            (initial, kept),
            (initial, kept),
            (
                f"{_NO_WORD}((?:{_BEFORE_NUMBERS})\\.)({_SPACE}?[0-9{PLACE}])",
                f"{kept}\\3",
            ),
            (f"([0-9]\\.)({_SPACE}+(?:{_AFTER_ORDINALS}))", f"\\1{KEPT}\\2"),
            (f"({_STOP})({_SPACE}+)({_START})", cut),
            (f"([{_WIDE_STOPS}]+)({_SPACE}*)({_WIDE_REST})", cut),
            (f"({_WIDE_LETTER}[?!]+)({_SPACE}*)({_WIDE_REST})", cut),
            (f"({wide_closed})({_SPACE}*)({_WIDE_OPENING})", cut),
            (KEPT, ""),
        ],
        "halves": (f"({_SPACE}*){KEPT}({_SPACE}*)", f"{CUT}\\1\\2{CUT}"),
        "clause": "[,;:،؛—–] |[，、；：].",
    }


@functools.cache
def _characters() -> dict[str, str]:
    """The characters of the categories that rules name, as ranges of a class."""
    ranges: dict[str, list[list[int]]] = {}
    for code in range(0x32000):
        category = unicodedata.category(chr(code))
        for name in (category, category[0]):
            known = ranges.setdefault(name, [])
            if known and known[-1][1] == code - 1:
                known[-1][1] = code
            else:
                known.append([code, code])
    return {
        name: "".join(f"{chr(first)}-{chr(last)}" for first, last in known)
        for name, known in ranges.items()
        if name in ("L", "N", "Lu", "Lt", "Lo")
    }


class SentenceSplitter:
    """Cuts texts into sentences by `sentence_rules`.

    Args:
        rules: those of `sentence_rules`.

    Example:

    >>> splitter = SentenceSplitter(sentence_rules())
    >>> splitter.split("Dr. Ho sees it.\\n\\nIs it red?")
    ['Dr. Ho sees it.', '\\n\\n', 'Is it red?', '']
    >>> splitter.halves("She came, but he, who had been ill, had left.")
    ['She came, but he,', ' ', 'who had been ill, had left.']
    """

    def __init__(self, rules: dict[str, Any]):
        self.rules = [_compiled(*rule) for rule in rules["sentences"]]
        self.spaces = _compiled(*rules["halves"])
        self.clause = re.compile(rules["clause"])

    def split(
        self, text: str, is_too_long: Callable[[str], bool] = lambda sentence: False
    ) -> list[str]:
        """The first sentence, what follows it, the second sentence, and so on.

        Together they are the text, which has no character of those that rules put. A
        sentence is empty where a text begins with spaces. What `is_too_long` says of a
        sentence is cut in halves until it no longer is, or is a single character.
        """
        marked = text + END
        for pattern, replacement in self.rules:
            marked = pattern.sub(replacement, marked)
        parts = marked.split(CUT)

        def cut(sentence):
            if len(sentence) < 2 or not is_too_long(sentence):
                return [sentence]
            first, between, second = self.halves(sentence)
            return [*cut(first), between, *cut(second)]

        pairs = zip(parts[::2], parts[1::2], strict=True)
        return [part for sentence, space in pairs for part in (*cut(sentence), space)]

    def halves(self, sentence: str) -> list[str]:
        """The first half of a sentence, what follows it, and the second half.

        It is cut near its middle: after a mark of a clause, or else at a space, or
        else between two characters.
        """
        size = len(sentence)

        def value(place):
            is_middle = size <= 4 * place <= 3 * size
            is_clause = self.clause.fullmatch(sentence, place - 1, place + 1)
            rank = 2 if is_middle and is_clause else int(sentence[place] == " ")
            return 2 * size * rank - abs(2 * place - size)

        place = max(range(1, size), key=value)
        pattern, replacement = self.spaces
        marked = f"{sentence[:place]}{KEPT}{sentence[place:]}"
        return pattern.sub(replacement, marked).split(CUT)


def _compiled(pattern: str, replacement: str) -> tuple[re.Pattern, str]:
    """A rule for Python, which has no classes of Unicode."""
    known = re.sub(r"\\p\{(\w+)\}", lambda match: _characters()[match[1]], pattern)
    return re.compile(known), replacement
