"""The translator: text to text as the generator goes from ids to ids; its scores."""

import functools
import importlib.util

import numpy as np
import pytest
import sacrebleu
import tensorflow as tf

from keras_transformer import (
    DecodingConfig,
    ExportedTranslator,
    Translator,
    evaluate_translator,
)
from keras_transformer.search.generator import Generator
from keras_transformer.search.translation import Translation
from keras_transformer.text import Corpus
from keras_transformer.training.evaluation import tokenizer_for
from tests import tiny_run

TEXTS = [
    "the good bear runs.", "a", "the old man sings and the young bird sleeps.", "dog",
    "the big dog",
]  # fmt: skip


@pytest.fixture(scope="module")
def translator():
    return tiny_run.translator()


def source_ids(translator, text):
    """Pieces, cut so that the end token has a place, and the end token."""
    pieces = translator.tokenizers.source.tokenize([text])[0].numpy()
    return [*pieces[: translator.config.max_source_length - 1], 2]


@functools.cache
def generator_of(translator):
    return Generator(translator.model, translator.config)


def found_by_the_generator(translator, text, begun=()):
    """The hypotheses (score, ids) of ids that `tests/search` checks, best first."""
    source = np.array([source_ids(translator, text)], "int32")
    prefix = (
        (np.array([begun], "int32"), np.array([len(begun)], "int32")) if begun else ()
    )
    result = generator_of(translator).search(
        source,
        np.array([source.shape[1]], "int32"),
        *prefix,
        n_best=1 if begun else translator.config.beam_size,
    )
    rows = zip(result.scores[0], result.ids[0], result.lengths[0], strict=True)
    return [
        (float(score), np.asarray(ids[:count]).tolist()) for score, ids, count in rows
    ]


def to_text(translator, ids):
    return translator.tokenizers.target.detokenize([ids])[0].numpy().decode()


def pieces_of(translator, text):
    return translator.tokenizers.target.tokenize([text])[0].numpy().tolist()


def firsts(rows):
    return [row[0] for row in rows]


@pytest.mark.parametrize("text", [TEXTS[0], TEXTS[3]])  # One ends, one is cut.
def test_n_best_are_those_of_the_generator(translator, text):
    expected = found_by_the_generator(translator, text)[:3]
    found = translator.nbest([text], n_best=3)[0]
    assert [t.text for t in found] == [to_text(translator, i) for _, i in expected]
    scores = [score for score, _ in expected]
    np.testing.assert_allclose([t.score for t in found], scores, rtol=1e-4)


def test_nothing_in_nothing_out(translator):
    blanks = ["", "   ", "\t", "\n", "\u3000"]
    assert translator.nbest(blanks) == [[Translation("", 0.0, False, doubt=0.0)]] * 5
    assert translator([TEXTS[0], *blanks]) == [*translator([TEXTS[0]]), *blanks]
    assert [found.score for found in translator.translate(blanks)] == [0.0] * 5
    assert translator([]) == []


def test_an_over_long_text_is_cut_at_max_source_length(translator):
    tokenizer = translator.tokenizers.source
    pieces = tokenizer.tokenize([TEXTS[2]])[0]
    kept = tokenizer.detokenize([pieces[:31]])[0].numpy().decode()
    assert len(pieces) > 32
    assert TEXTS[2].startswith(kept)
    [[cut]], [[whole]] = translator.nbest([TEXTS[2]]), translator.nbest([kept])
    assert whole == cut._replace(truncated=False)
    assert translator.nbest([kept]) != translator.nbest([kept[:-2]])


def test_every_result_says_whether_a_text_was_cut(translator):
    texts, prefixes = ["dog", TEXTS[2], "dog"], ["", "", "die alte " * 20]
    source_is_cut, any_is_cut = [False, True, False], [False, True, True]
    for expected, results in (
        (source_is_cut, firsts(translator.nbest(texts, n_best=3))),
        (source_is_cut, translator.sample(texts)),
        (source_is_cut, translator.align(texts)),
        (any_is_cut, translator.complete(texts, prefixes)),
        (any_is_cut, translator.score(texts, prefixes)),
    ):
        assert [result.truncated for result in results] == expected


def test_saved_and_loaded_it_gives_the_same(translator, tmp_path):
    translator.save(tmp_path / "saved")
    loaded = Translator.load(tmp_path / "saved")
    assert loaded.config == translator.config
    assert loaded.nbest(TEXTS, 3) == translator.nbest(TEXTS, 3)
    other = DecodingConfig(beam_size=7)
    assert Translator.load(tmp_path / "saved", other).config is other
    names = sorted(path.name for path in (tmp_path / "saved").iterdir())
    assert names == ["decoding.json", "model.keras", "tokenizer"]


@pytest.mark.parametrize("missing", ["model.keras", "tokenizer", "decoding.json"])
def test_loading_names_what_is_missing(tmp_path, missing):
    for name in {"model.keras", "tokenizer", "decoding.json"} - {missing}:
        (tmp_path / name).touch()
    with pytest.raises(FileNotFoundError, match=f"translator: {missing} is missing"):
        Translator.load(tmp_path)


PREFIXES = ["der", "der Bär", "s", "", "Hund die", "ßß"]


def test_a_completion_is_the_generators_with_the_prefix(translator):
    texts = [*TEXTS, TEXTS[0]]
    for text, prefix, found in zip(
        texts, PREFIXES, translator.complete(texts, PREFIXES), strict=True
    ):
        begun = pieces_of(translator, prefix)
        score, ids = found_by_the_generator(translator, text, begun)[0]
        assert list(ids[: len(begun)]) == begun
        assert found.text == to_text(translator, ids)
        assert found.text.startswith(prefix)
        assert found.score == pytest.approx(score, rel=1e-4)


def test_without_a_prefix_it_completes_to_the_translation(translator):
    found = translator.complete(TEXTS, [""] * len(TEXTS))
    for one, other in zip(found, firsts(translator.nbest(TEXTS)), strict=True):
        assert one.text == other.text
        assert one.score == pytest.approx(other.score, rel=1e-5)
    found = translator.complete(["", "dog", " "], ["", "der", "die"])
    assert found[0] == Translation("", 0.0, False, doubt=0.0)
    assert found[2].text.startswith("die")
    assert found[1].text == translator.complete(["dog"], ["der"])[0].text


def test_a_prefix_beyond_the_longest_output_is_cut_and_one_token_follows(translator):
    prefix = "die " + "der alte Bär schläft " * 20
    *pieces, cut_off = pieces_of(translator, prefix)[: translator.config.longest_output]
    found, other = translator.complete(["dog", TEXTS[0]], [prefix, "der"])
    score, ids = found_by_the_generator(translator, "dog", pieces)[0]
    assert len(ids) == translator.config.longest_output
    assert ids[-1] != cut_off
    assert found.text == to_text(translator, ids)
    assert found.score == pytest.approx(score, rel=1e-4)
    assert other.text == translator.complete([TEXTS[0]], ["der"])[0].text


def test_samples_are_those_of_the_generator():
    config = tiny_run.CONFIG.decoding.replace(top_k=7, top_p=0.9)
    translator = Translator(tiny_run.model(), tiny_run.tokenizers(), config)
    samples = translator.sample(TEXTS, temperature=1.5, seed=40)
    generator = Generator(translator.model, translator.config)
    for i, (text, found) in enumerate(zip(TEXTS, samples, strict=True)):
        source = np.array([source_ids(translator, text)], "int32")
        uniforms = tf.random.stateless_uniform(
            [1, translator.config.longest_output],
            tf.constant([40 + i, 0], tf.int64),
            alg="philox",
        )
        lengths = np.array([source.shape[1]], "int32")
        drawn = generator.sample(source, lengths, uniforms, np.array([1.5], "float32"))
        ids = np.asarray(drawn.ids[0, 0, : int(drawn.lengths[0, 0])]).tolist()
        assert found.text == to_text(translator, ids)
        assert found.score == pytest.approx(float(drawn.scores[0, 0]), rel=1e-4)


def test_a_text_and_its_seed_alone_decide_a_sample(translator, monkeypatch):
    together = translator.sample(TEXTS, temperature=1.5, seed=7)
    assert translator.sample(TEXTS, temperature=1.5, seed=7) == together
    with monkeypatch.context() as patch:
        patch.setattr(translator, "batch_size", 2)
        in_pairs = translator.sample(TEXTS, temperature=1.5, seed=7)
    assert [t.text for t in in_pairs] == [t.text for t in together]
    for i, text in enumerate(TEXTS):
        (alone,) = translator.sample([text], temperature=1.5, seed=7 + i)
        assert alone.text == together[i].text
        assert alone.score == pytest.approx(together[i].score, rel=1e-4)
    # Behind another text and among others, with the seed that it had.
    (_, moved, *_) = translator.sample(["", TEXTS[2], *TEXTS], 1.5, seed=8)
    assert moved.text == together[2].text


def test_other_seeds_and_higher_temperatures_draw_other_texts(translator):
    texts = [TEXTS[0]] * 20
    drawn = {t.text for t in translator.sample(texts, temperature=1.5, seed=1)}
    assert len(drawn) > 10
    (cold,) = {t.text for t in translator.sample(texts, temperature=1e-9, seed=1)}
    hot = translator.sample(texts, temperature=1e9, seed=1)
    assert translator.sample(texts, temperature=np.inf, seed=1) == hot
    assert len({cold, *(t.text for t in hot)}) == 21


def test_a_translator_says_what_it_holds(saved_model):
    translator = tiny_run.translator()
    size = translator.model.count_params()
    expected = f"<Translator: Transformer of {size:,} parameters, <TokenizerPair: 308 "
    assert repr(translator) == expected + "pieces>>"
    exported = ExportedTranslator(saved_model)
    assert repr(exported) == f"<ExportedTranslator: {saved_model}>"
    with pytest.raises(TypeError, match="`texts` must be a sequence .* Received: 3"):
        translator(3)
    corpus = Corpus(tiny_run.TRAIN, translator.tokenizers)
    batches = corpus.num_batches
    words = f"<Corpus: 40 pairs, {batches} batches an epoch, no bad lines>"
    assert repr(corpus) == words


# Evaluation, against sacreBLEU's own functions.

REFERENCES = [
    "Der alte Mann schläft heute nicht.",
    "Zwei Hunde laufen durch den Schnee.",
    "Ein Vogel singt auf dem Baum vor dem Haus.",
]
TRANSLATIONS = [
    "Der alte Mann schläft nicht.",
    "Zwei Hunde rennen durch den Schnee.",
    "ein Vogel singt auf dem Baum vor dem Haus",
]
PAIRS = [(f"sentence {i}", reference) for i, reference in enumerate(REFERENCES)]


def translate(texts):
    return [TRANSLATIONS[int(text.split()[1])] for text in texts]


def test_scores_are_those_of_sacrebleu_and_say_how_they_were_computed(capsys):
    scores = evaluate_translator(translate, PAIRS)
    bleu = sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES])
    chrf = sacrebleu.corpus_chrf(TRANSLATIONS, [REFERENCES])
    lower = sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES], lowercase=True)
    assert 20 < bleu.score < lower.score < 90
    assert scores.lowercase_bleu == pytest.approx(lower.score, abs=1e-12)
    assert scores.bleu == pytest.approx(bleu.score, abs=1e-12)
    assert scores.chrf == pytest.approx(chrf.score, abs=1e-12)
    assert scores.sentences == 3
    end = f"version:{sacrebleu.__version__}"
    assert (
        scores.bleu_signature == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{end}"
    )
    signature = f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|{end}"
    assert scores.chrf_signature == signature
    lines = str(scores).splitlines()
    assert lines[0] == f"BLEU {scores.bleu:.2f}  {scores.bleu_signature}"
    assert lines[1] == f"chrF {scores.chrf:.2f}  {scores.chrf_signature}"
    assert lines[2].startswith("3 sentences in ")
    # Progress is for terminals, and changes no score.
    assert evaluate_translator(translate, PAIRS, show_progress=True).bleu == scores.bleu
    assert capsys.readouterr() == ("", "")


# What sacreBLEU splits references by, and references.
SCRIPTS = [
    ("13a", REFERENCES),
    ("13a", ["2026: 3.14 + 5 = 8.14"]),
    ("13a", ["북한은 어제 미사일을 발사했다고 밝혔다."]),  # Korean has spaces.
    ("13a", ["Er studiert an der Universität Peking (北京大学)."]),
    ("zh", ["他在北京大学学习中文，今天天气很好。"]),
    ("zh", ["请先用 TensorFlow 训练模型，然后导出。"]),
    ("char", ["วันนี้อากาศดีมาก"]),
    ("char", ["ມື້ນີ້ອາກາດດີ", "ថ្ងៃនេះអាកាសធាតុល្អ", "ဒီနေ့ရာသီဥတုကောင်းတယ်"]),
    ("ja-mecab", ["彼は昨日、東京へ行きました。", "モデルを訓練する。"]),
]


@pytest.mark.parametrize(("name", "references"), SCRIPTS)
def test_the_tokens_of_bleu_are_those_of_the_references_script(
    name, references, monkeypatch
):
    find = importlib.util.find_spec
    for has_mecab in (True, False):
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda part, *words, has=has_mecab: (
                has if part in ("MeCab", "ipadic") else find(part, *words)
            ),
        )
        expected = "char" if name == "ja-mecab" and not has_mecab else name
        assert tokenizer_for(iter(references)) == expected
    scores = evaluate_translator(list, [(text, text) for text in references * 2])
    assert f"|tok:{expected}|" in scores.bleu_signature
    assert scores.bleu == pytest.approx(100) == scores.chrf
    # A caller's tokenizer is that of both forms.
    other = evaluate_translator(
        list, [(text, text) for text in references], tokenizer="none"
    )
    assert "|tok:none|" in other.bleu_signature
    assert "|tok:none|" in other.lowercase_bleu_signature


def test_the_speed_is_that_after_the_first_call(monkeypatch):
    """Of 600 sentences: the first call takes 80 seconds, the two others one each."""
    clock, seconds = [0.0], [80.0, 1.0, 1.0]
    name = "keras_transformer.training.evaluation.time.monotonic"
    monkeypatch.setattr(name, lambda: clock[0])

    def slow(texts):
        clock[0] += seconds.pop(0)
        return texts

    scores = evaluate_translator(slow, [("a", "a")] * 600)
    assert (scores.seconds, scores.rate) == (82.0, (600 - 256) / 2)
    assert str(scores).endswith("600 sentences in 82.0 s (172.0 sentences/s)")
    seconds.append(80.0)
    few = evaluate_translator(slow, [("a", "a")])
    assert few.rate is None
    assert str(few).endswith("1 sentence in 80.0 s (start included)")


def test_every_source_is_translated_once_and_in_order():
    pairs = [(f"sentence {i}", f"reference {i}") for i in range(600)]
    asked = []

    def remember(texts):
        asked.extend(texts)
        return [text.replace("sentence", "reference") for text in texts]

    assert evaluate_translator(remember, iter(pairs)).sentences == 600
    assert asked == [source for source, _ in pairs]


@pytest.mark.parametrize("breaks", ["\n", "\r\n", "\r", "\u2028", "\x0b"])
def test_the_output_has_one_line_a_sentence(tmp_path, breaks):
    output = tmp_path / "new" / "translations.txt"
    evaluate_translator(lambda texts: ["a" + breaks + "b", "", "ü"], PAIRS, output)
    assert output.read_bytes() == "a b\n\nü\n".encode()
    assert [path.name for path in output.parent.iterdir()] == ["translations.txt"]


def test_without_a_translator_or_a_pair_nothing_is_written(tmp_path):
    def fail(texts):
        raise RuntimeError("no translator")

    with pytest.raises(RuntimeError, match="no translator"):
        evaluate_translator(fail, PAIRS, tmp_path / "translations.txt")
    with pytest.raises(ValueError, match="no pairs"):
        evaluate_translator(translate, [], tmp_path / "translations.txt")
    assert not list(tmp_path.iterdir())
