"""Texts of every script and of every kind that breaks tokenizers; none is natural."""

from __future__ import annotations

import functools
import random
import unicodedata

_BY_HAND = [
    "", " ", "   ", "\t", "\n", "\r\n", "\u3000", "\u00a0", "\u2003a\u2003b",
    "a\u2028b", "▁", "▁▁a▁", " a  b ", "a\u200bb", "\ufeffa", "a\ufeff", "a\u00adb",
    "\x00", "a\x00b", "\x07\x1b\x7f", "<s>", "</s>", "a</s> b", "<unk>", "<pad>",
    "<0x41>", "<0xE2><0x96><0x81>", " ⁇ ", "\ufffd", "\uffff", "\U0010ffff",
    "x" * 3000, "the " * 900, " " * 900, "中" * 400, "ＡＢＣ１２３", "ﬁﬂ", "①½x²㌔",
    "e\u0301é", "Å\u212b", "a\u0323\u0302", "\u0301a", "ｶﾞｷﾞ", "\u1112\u1161\u11ab한",
    "İıßẞ", "ﷺ", "\u202eabc\u202c", "👨‍👩‍👧‍👦", "👩🏽‍💻", "🇩🇪🇫🇷", "❤️ 1️⃣ ☺",
    "😀😀 a 😀", "𝔘𝔫𝔦", "𠮷野家", "\U000e0067\U000e007f",
]  # fmt: skip


@functools.cache
def odd_texts() -> list[str]:
    """Some 1,300 texts: by hand, from every block of Unicode, and noise."""
    drawn = random.Random(7)
    assigned = [
        chr(c) for c in range(0x110000)
        if not 0xD800 <= c < 0xE000
        and unicodedata.category(chr(c)) not in ("Cn", "Co")
    ]  # fmt: skip
    texts = list(_BY_HAND)
    # A few characters of each run of 600, which is less than most scripts have.
    for start in range(0, len(assigned), 600):
        run = assigned[start : start + 600]
        texts.append("".join(drawn.choices(run, k=8)) + " " + drawn.choice(run))
    # All characters of the scripts with the most rules, in their order.
    known = "".join(
        c for c in assigned if ord(c) < 0x3400 or 0xF900 <= ord(c) < 0x10000
    )
    texts += [known[start : start + 64] for start in range(0, len(known), 64)]
    letters = list("abdeghinorst Bäßü") + [
        "  ",
        "▁",
        "\t",
        "\u3000",
        "\u0301",
        "😀",
        "中",
    ]
    for _ in range(500):
        texts.append("".join(drawn.choices(letters, k=drawn.randrange(1, 40))))
    return texts


def odd_rows(size: int, bytes_from: int = 4) -> list[list[int]]:
    """Some 700 rows of ids below `size`: any, and mostly bytes, often no valid text."""
    drawn = random.Random(8)
    rows = [drawn.choices(range(size), k=drawn.randrange(20)) for _ in range(350)]
    some = [*range(bytes_from, min(size, bytes_from + 256)), 0, 1, 2, 3, size - 1]
    return rows + [drawn.choices(some, k=drawn.randrange(30)) for _ in range(350)]
