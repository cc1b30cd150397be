"""Texts cut into sentences: by hand, and alike in Python, TensorFlow and JavaScript."""

import functools
import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import tensorflow as tf

from keras_transformer.config import TokenizerConfig
from keras_transformer.formats import web
from keras_transformer.text import TokenizerPair, learn_tokenizers
from keras_transformer.text.in_graph import cut_texts
from keras_transformer.text.sentences import CUT, SentenceSplitter, sentence_rules

LONGEST = 20
RULES = sentence_rules()

CUTS = {
    # "|" stands before and after what follows a sentence.
    "": "|",
    "A sentence.": "A sentence.|",
    "One. Two! Three? Four": "One.| |Two!| |Three?| |Four|",
    '"Really?" he asks. Yes.': '"Really?" he asks.| |Yes.|',
    "It costs 3.5 or 1,234.56. At 5 p.m. it ends.": (
        "It costs 3.5 or 1,234.56.| |At 5 p.m. it ends.|"
    ),
    "Dr. Ho met Mrs. B. Lee and J.R.R. Tolkien.": (
        "Dr. Ho met Mrs. B. Lee and J.R.R. Tolkien.|"
    ),
    "So am I. You too.": "So am I.| |You too.|",
    "See No. 5 on p. 7. No. I do not.": "See No. 5 on p. 7.| |No.| |I do not.|",
    "Am 3. Mai kam er. Im 19. Jahrhundert.": (
        "Am 3. Mai kam er.| |Im 19. Jahrhundert.|"
    ),
    "Er sagte: „Nein.“ „Doch!“ Gut.": "Er sagte: „Nein.“| |„Doch!“| |Gut.|",
    "Oui... « Non ! » Bon.": "Oui...| |« Non ! »| |Bon.|",
    "¿Qué? ¡hola! ¿y tú?": "¿Qué?| |¡hola!| |¿y tú?|",
    "Да. Нет! Όχι. שלום. مرحبا؟ نعم.": "Да.| |Нет!| |Όχι.| |שלום.| |مرحبا؟| |نعم.|",
    "你好。我很好！你呢?我不知道": "你好。||我很好！||你呢?||我不知道|",
    "他说：“你好。”就走了。「はい。」「いいえ。」": (
        "他说：“你好。”就走了。||「はい。」||「いいえ。」|"
    ),
    "  Two.  Spaces. ": "|  |Two.|  |Spaces.| ",
    " \n ": "| \n ||",
    "one\ttwo \t- three\n-\tfour": "one|\t|two| \t- |three|\n-\t|four|",
    "Hello,\r\n\r\n> quoted. Yes.\n- item\n2. Two\n-- \nMe": (
        "Hello,|\r\n\r\n> |quoted.| |Yes.|\n- |item|\n2. |Two|\n|--| \n|Me|"
    ),
}
HALVES = {
    "ab": "a||b",
    "no space": "no| |space",
    "She came, but he, who had been ill, had left.": (
        "She came, but he,| |who had been ill, had left."
    ),
    "1,000,000 or 2,000,000": "1,000,000 or| |2,000,000",
    "一二三四，五六七八九十。": "一二三四，||五六七八九十。",
    "x" * 7: "xxx||xxxx",
}


@pytest.mark.parametrize("text", CUTS)
def test_a_text_is_cut_into_its_sentences(text):
    assert SentenceSplitter(RULES).split(text) == CUTS[text].split("|")


@pytest.mark.parametrize("sentence", HALVES)
def test_a_long_sentence_is_cut_near_its_middle(sentence):
    assert SentenceSplitter(RULES).halves(sentence) == HALVES[sentence].split("|")


def test_more_abbreviations_end_no_sentence():
    rules = sentence_rules(["Hbf", "a+b"])
    parts = SentenceSplitter(rules).split("Am Hbf. Zoo (a+b. C) war er. Aus.")
    assert parts[::2] == ["Am Hbf. Zoo (a+b. C) war er.", "Aus."]


@functools.cache
def texts_and_parts():
    """2,000 texts of what rules look at, and what Python makes of them."""
    pieces = [
        *"aZßÉжЖ中あ한あ1,;:.!?…。！？«»“”„'\"()[]-–*>•¿¡；\u2028\u00a0\u3000",
        *" " * 12, "\n", "\r\n", ". ", "! ", "? ", "Dr.", "No. 5", " 3. Mai", "I. ",
        "word", "Wort ", "слово ", "😀", "e\u0301", "e.g. ", "， ",
    ]  # fmt: skip
    drawn = random.Random(54)
    texts = ["".join(drawn.choices(pieces, k=drawn.randrange(60))) for _ in range(2000)]
    splitter = SentenceSplitter(RULES)
    parts = [splitter.split(text, lambda x: len(x) > LONGEST) for text in texts]
    return texts, parts


def test_abbreviations_are_learned_and_kept_with_the_vocabulary(tmp_path):
    """What mostly has a point within a sentence is one; a last word is none."""
    lines = [f"The Kft. Number {i} is theirs, said Tom. He left." for i in range(5)]
    lines += [f"It is known to Tom that {i} is odd." for i in range(6)]
    pairs = [(line, "Ja.") for line in lines]
    learned = learn_tokenizers(pairs, TokenizerConfig(vocabulary_size=300))
    assert learned.abbreviations == ("Kft",)
    assert learn_tokenizers(pairs[1:], learned.config).abbreviations == ()
    learned.save(tmp_path)
    assert (tmp_path / "abbreviations.txt").read_text("utf-8") == "Kft\n"
    assert TokenizerPair.load(tmp_path).abbreviations == ("Kft",)
    TokenizerPair(learned.source, learned.target).save(tmp_path)
    assert TokenizerPair.load(tmp_path).abbreviations == ()


def test_the_parts_are_the_text():
    texts, parts = texts_and_parts()
    assert ["".join(row) for row in parts] == texts
    sentences = [sentence for row in parts for sentence in row[::2]]
    assert len(sentences) > 9000
    assert max(map(len, sentences)) == LONGEST


@pytest.mark.parametrize("is_graph", [False, True])
def test_tensorflow_cuts_as_python_does(is_graph):
    texts, parts = texts_and_parts()

    def cut(texts):
        def is_too_long(sentences):
            return tf.strings.length(sentences, "UTF8_CHAR") > LONGEST

        return tf.strings.split(cut_texts(texts, RULES, is_too_long), CUT)

    found = (tf.function(cut, autograph=False) if is_graph else cut)(tf.constant(texts))
    assert [[part.decode() for part in row] for row in found.to_list()] == parts


def cut_in_node(texts, longest):
    """What the page makes of texts."""
    facts = {
        "module": str(web.PAGE / "sentences.js"),
        "rules": RULES,
        "texts": texts,
        "longest": longest,
    }
    script = Path(__file__).with_name("sentences.mjs")
    found = subprocess.run(
        ["node", str(script)],
        input=json.dumps(facts),
        capture_output=True,
        check=True,
        text=True,
    )
    return json.loads(found.stdout)


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js")
def test_javascript_cuts_as_python_does():
    texts, parts = texts_and_parts()
    assert cut_in_node(texts, LONGEST) == parts
    # A character of two units is one.
    assert cut_in_node(["a😀"], 0) == [["a", "", "😀", ""]]
