"""The page's tokenizer against Python's, on texts that break tokenizers."""

from __future__ import annotations

import functools
import json
import random
import shutil
import subprocess
import unicodedata
from pathlib import Path

import pytest
import sentencepiece

from keras_transformer import TokenizerConfig
from keras_transformer.formats import web
from keras_transformer.text.tokenizer import Tokenizer
from tests import tiny_run

HERE = Path(__file__).parent

_BY_HAND = [
    "", " ", "   ", "\t", "\n", "\r\n", "\u3000", "\u00a0", "\u2003a\u2003b",
    "a\u2028b", "▁", "▁▁a▁", " a  b ", "a\u200bb", "\ufeffa", "a\ufeff", "a\u00adb",
    "\x00", "a\x00b", "\x07\x1b\x7f", "<s>", "</s>", "a</s> b", "<unk>", "<pad>",
    "<0x41>", "<0xE2><0x96><0x81>", " ⁇ ", "\ufffd", "\uffff", "\U0010ffff",
    "x" * 3000, "the " * 900, " " * 900, "中" * 400, "ＡＢＣ１２３", "ﬁﬂ", "①½x²㌔",
    "e\u0301é", "Å\u212b", "a\u0323\u0302", "\u0301a", "ｶﾞｷﾞ", "\u1112\u1161\u11ab한",
    "İıßẞ", "ﷺ", "\u202eabc\u202c", "👨‍👩‍👧‍👦", "👩🏽‍💻", "🇩🇪🇫🇷", "❤️ 1️⃣ ☺",
    "\ufde0 teacher\ufde1s, \ufde7\ufde7.",
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
    letters = [*"abdeghinorst Bäßü▁\t\u3000\u0301😀中", "  "]
    for _ in range(500):
        texts.append("".join(drawn.choices(letters, k=drawn.randrange(1, 40))))
    return texts


def odd_rows(size: int, bytes_from: int = 12) -> list[list[int]]:
    """Some 700 rows of ids below `size`: any, and mostly bytes, often no valid text."""
    drawn = random.Random(8)
    rows = [drawn.choices(range(size), k=drawn.randrange(20)) for _ in range(350)]
    some = [*range(bytes_from, min(size, bytes_from + 256)), 0, 1, 2, 3, size - 1]
    return rows + [drawn.choices(some, k=drawn.randrange(30)) for _ in range(350)]


def cut(tokenizer, ids):
    """The text of a row of ids, as `Tokenizer.detokenize` gives it."""
    ids = [int(i) for i in ids]
    ids = ids[: ids.index(2)] if 2 in ids else ids
    return tokenizer.decode([i for i in ids if i not in (0, 1)])


TOKENIZERS = {
    "tiny": None,
    "unigram": TokenizerConfig(algorithm="unigram", vocabulary_size=830),
    "bpe": TokenizerConfig(algorithm="bpe", vocabulary_size=1000),
    "no_bytes": TokenizerConfig(
        algorithm="unigram", vocabulary_size=575, byte_fallback=False
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_tokens_are_those_of_python(tmp_path, name):
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node: it runs the page's tokenizer outside a browser")
    for file in web.PAGE.glob("*.js"):
        shutil.copy(file, tmp_path)
    # Node takes a .js file for a module only if it is told so.
    (tmp_path / "package.json").write_text('{"type": "module"}')
    learn_tokenizer(name).save(tmp_path / "joint.model")
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(tmp_path / "joint.model")
    )
    texts = odd_texts()
    rows = [processor.encode(text) for text in texts]
    rows += odd_rows(processor.get_piece_size())
    assert len(texts) > 1000
    special = {"pad_id": 0, "start_id": 1, "end_id": 2}
    given = {
        "site": tmp_path.as_uri(), "model": str(tmp_path / "joint.model"),
        "description": {"max_source_length": 256, "special_ids": special},
        "texts": texts, "rows": rows,
    }  # fmt: skip
    found = json.loads(
        subprocess.run(
            [node, HERE / "tokens.mjs"],
            input=json.dumps(given),
            text=True,
            capture_output=True,
            check=True,
            timeout=120,
            encoding="utf-8",
        ).stdout
    )
    for text, row, source in zip(texts, rows, found["sources"], strict=False):
        assert source == {"ids": [*row[:255], 2], "isCut": len(row) > 255}, repr(text)
    for row, text in zip(rows, found["targets"], strict=True):
        assert text == cut(processor, row), row


def learn_tokenizer(name):
    config = TOKENIZERS[name]
    if config is None:
        return tiny_run.tokenizers().source
    plain = [text for pair in tiny_run.PAIRS for text in pair]
    return Tokenizer.learn(plain + odd_texts()[60:120] * 3, config)
