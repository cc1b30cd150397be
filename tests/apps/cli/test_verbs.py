"""The verbs, at the smallest sizes: lines, files, objects, errors."""

import gzip
import io
import json
import os
import shlex
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu
from rich.console import Console

from keras_transformer import ExportedTranslator, RunConfig, terminal
from keras_transformer.apps import cli, serving
from keras_transformer.apps.cli import export_verbs, flags, make_parser, use_verbs
from keras_transformer.search.translation import Translation
from keras_transformer.text.views import FORMS
from tests import tiny_run

SIZES = (
    "--preset tiny --num-encoder-layers 1 --num-decoder-layers 1 --d-model 16 "
    "--d-ff 32 --num-heads 2 --vocabulary-size 300 --batch-tokens 256 --warmup-steps 1 "
    "--average-checkpoints 1 --beam-size 1 --epochs 2 --no-robust"
).split()
TEXTS = ["the good dog runs.", "a bear", "the old man sings."]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Training and validation pairs, one file each."""
    folder = tmp_path_factory.mktemp("files")
    train = tiny_run.write_pairs(folder / "train.tsv")
    return train, tiny_run.write_pairs(folder / "valid.tsv", tiny_run.VALID)


def in_a_process(*words):
    program = (
        "import sys; from keras_transformer.apps.cli import main; sys.exit(main())"
    )
    return tiny_run.in_a_process("-c", program, *words)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, files):
    """The process that trained, and its run."""
    run = tmp_path_factory.mktemp("cli") / "run"
    words = "--train", files[0], "--valid", files[1], "--run", run, *SIZES
    return in_a_process("train", *words, "--json"), run


@pytest.fixture(scope="module")
def loaded(saved_model):
    return ExportedTranslator(saved_model)


def run(*words):
    return cli.main(list(map(str, words)))


def objects(capsys, *words):
    """The object that a verb prints, and what it printed on standard error."""
    assert run(*words, "--json") == 0
    printed = capsys.readouterr()
    (line,) = printed.out.splitlines()
    return json.loads(line), printed.err


def test_a_training_prints_one_object_and_no_line_of_tensorflow(trained):
    done, directory = trained
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert result["run"] == str(directory)
    assert result["model"]["parameters"] == 10240
    assert result["data"]["training"]["pairs"] == 40
    assert (result["updates"], result["epochs"]) == (8, 2)
    assert result["last_epoch"]["val_loss"] > 0
    config = RunConfig.load(directory / "config.json")
    assert (config.model.d_model, config.model.norm_first) == (16, True)
    assert "Traceback" not in done.stderr and "tensorflow/" not in done.stderr
    # The commands to type next are understood.
    lines = [row for row in done.stderr.splitlines() if "keras-transformer " in row]
    assert len(lines) == 3
    for row in lines:
        words = shlex.split(row.partition("keras-transformer ")[2])
        options = make_parser().parse_args(words)
        models = getattr(options, "models", None) or [options.model]
        is_served = options.verb == "serve"
        assert models == [Path("saved_models/run") if is_served else directory]


def test_a_finished_training_says_so_unless_it_is_quiet(trained, files, capsys):
    words = "train", "--train", files[0], "--valid", files[1], "--run", trained[1]
    assert run(*words, "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    assert run(*words) == 0
    assert "is finished: 8 updates" in capsys.readouterr().out


def test_a_dry_run_and_an_average_have_results(trained, files, tmp_path, capsys):
    words = "--train", files[0], "--run", tmp_path / "dry", *SIZES, "--dry-run"
    result, said = objects(capsys, "train", *words)
    assert result["data"]["training"]["pairs"] == 40
    assert "this was a dry run" in said and not (tmp_path / "dry").exists()
    mean = tmp_path / "mean"
    result, _ = objects(capsys, "average", trained[1], "--output", mean)
    assert result["run"] == str(mean)
    assert all(path.endswith(".weights.h5") for path in result["checkpoints"])


def test_evaluate_scores_a_saved_model(saved_model, files, capsys):
    result, said = objects(capsys, "evaluate", saved_model, "--test", files[1])
    sources, references = zip(*tiny_run.VALID, strict=True)
    translations = tiny_run.translator()(list(sources))
    bleu = sacrebleu.corpus_bleu(translations, [list(references)])
    assert result["bleu"] == bleu.score and result["sentences"] == len(sources)
    assert f"BLEU {bleu.score:.2f}  nrefs:1|case:mixed" in said


def test_evaluate_scores_what_people_write_too(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(use_verbs, "load_translator", lambda _: lambda texts: texts)
    sources = [source for source, _ in tiny_run.VALID]
    path = tiny_run.write_pairs(tmp_path / "a", zip(sources, sources, strict=True))
    words = "evaluate", tmp_path, "--test", path, "--robust"
    found = objects(capsys, *words)[0]["robust"]
    assert list(found) == [*FORMS]
    assert [found["in capitals"], found["in title case"]] == [pytest.approx(100)] * 2
    typed = [FORMS["with a typo"](source, "")[0] for source in sources]
    expected = sacrebleu.corpus_bleu(typed, [sources]).score
    assert found["with a typo"] == expected < 90
    assert run(*words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == "BLEU 100.00  in capitals"
    assert lines[6] == f"BLEU {expected:5.2f}  with a typo"


def test_translate_takes_arguments_a_file_or_standard_input(
    saved_model, loaded, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(use_verbs, "load_translator", lambda _: loaded)
    expected = tiny_run.translator()(TEXTS)
    content = "".join(text + "\n" for text in TEXTS).encode()
    source, output = tmp_path / "in.txt.gz", tmp_path / "new" / "out.txt"
    source.write_bytes(gzip.compress(content))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    words = "translate", saved_model
    for rest in (TEXTS, ["--input", source], []):
        assert run(*words, *rest) == 0
        assert capsys.readouterr().out.splitlines() == expected
    assert run(*words, "--output", output, *TEXTS) == 0
    assert output.read_text("utf-8").splitlines() == expected
    assert capsys.readouterr() == ("", "")
    # From file to file it says how fast.
    words += "--input", source, "--output", output
    result, said = objects(capsys, *words)
    assert output.read_text("utf-8").splitlines() == expected
    assert said.startswith("3 sentences in ")
    assert (result["sentences"], result["output"]) == (3, str(output))
    assert objects(capsys, *words, "--quiet")[1] == ""


@pytest.mark.slow
def test_scores_and_alternatives_stand_in_columns(saved_model, capsys):
    live = tiny_run.translator().nbest(TEXTS, n_best=3)
    words = "translate", saved_model, *TEXTS

    def columns(*words_):
        assert run(*words, *words_) == 0
        return [line.split("\t") for line in capsys.readouterr().out.splitlines()]

    rows = columns("--n-best", 3, "--scores")
    for row, found in zip(rows, live, strict=True):
        assert row[1::2] == [one.text for one in found]
        scores = [float(column) for column in row[::2]]
        np.testing.assert_allclose(scores, [one.score for one in found], atol=2e-4)
    assert columns("--scores") == [row[:2] for row in rows]
    assert columns("--n-best", 3) == [row[1::2] for row in rows]
    result, _ = objects(capsys, *words, "--n-best", 3)
    for one, several in zip(result["translations"], live, strict=True):
        assert [each["text"] for each in one["n_best"]] == [t.text for t in several]
        assert one["text"] == several[0].text


def test_an_output_is_continued_with_the_same_model_search_and_columns(
    saved_model, loaded, trained
):
    def options_of(model, *words):
        return make_parser().parse_args(["translate", str(model), *words])

    flags = [], ["--scores"], ["--n-best", "1"], ["--n-best", "2"]
    flags += (["--doubt-above", "0.25"],)
    options = [options_of(saved_model, *words) for words in flags]
    assert len({use_verbs._fingerprint(loaded, each) for each in options}) == 5
    options = [options_of(trained[1], *words) for words in ([], ["--beam-size", "3"])]
    run, other = (use_verbs.load_translator(each) for each in options)
    first = use_verbs._fingerprint(run, options[0])
    assert first == use_verbs._fingerprint(run, options[0])
    assert first != use_verbs._fingerprint(other, options[1])
    # Flags of the search replace those of the run.
    assert (other.config.beam_size, other.config.length_penalty) == (3, 1.0)


def test_an_export_takes_no_other_search_but_another_limit_of_doubt(
    saved_model, monkeypatch
):
    module = use_verbs.load_module("formats.saved_model")
    monkeypatch.setattr(module, "ExportedTranslator", lambda _: SimpleNamespace())
    words = ["translate", str(saved_model), "--doubt-above", "0.25"]
    loaded = use_verbs.load_translator(make_parser().parse_args(words))
    assert loaded.doubt_above == 0.25
    options = make_parser().parse_args([*words, "--beam-size", "3"])
    with pytest.raises(ValueError, match="as it was written.* Received: beam_size$"):
        use_verbs.load_translator(options)


class Input(io.TextIOWrapper):
    """Standard input that is no file."""

    def __init__(self, content, is_terminal):
        super().__init__(io.BytesIO(content))
        self.isatty, self.seekable = (lambda: is_terminal), (lambda: False)


@pytest.fixture
def translating(monkeypatch):
    """Makes `translate` use a function of texts, whatever model it is given.

    It cuts texts of more than 100 characters, and doubts "la la".
    """

    def use_function(call):
        class Translating:
            path = Path("any")

            def __call__(self, texts):
                return call(texts)

            def translate(self, texts):
                rows = zip(texts, call(texts), strict=True)
                doubts = {"la la": ("loop", "score"), "hm": ("score",)}
                return [
                    Translation(x, -0.5, len(text) > 100, (), doubts.get(x, ()))
                    for text, x in rows
                ]

        monkeypatch.setattr(use_verbs, "load_translator", lambda _: Translating())

    return use_function


def test_what_was_cut_is_told_by_its_number(tmp_path, monkeypatch, capsys, translating):
    """On standard error; in JSON too."""
    long, source, output = "x" * 101, tmp_path / "in.txt", tmp_path / "out.txt"
    texts = ["a", long, "b", long]
    content = "".join(f"{text}\n" for text in texts).encode()
    source.write_bytes(content)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    monkeypatch.setattr(use_verbs, "_fingerprint", lambda *_: "")
    translating(lambda texts: texts)

    def warnings_of(*numbers):
        return "".join(
            f"keras-transformer: warning: {number} is too long and was cut: see "
            "--max-source-length\n"
            for number in numbers
        )

    for words, name in (
        (texts, "text "),
        (["--input", source], f"{source}:"),
        ([], "standard input:"),
    ):
        assert run("translate", "any", *words, "--quiet") == 0
        told = warnings_of(f"{name}2", f"{name}4")
        assert capsys.readouterr() == (content.decode(), told)
    result, told = objects(capsys, "translate", "any", *texts)
    found = [(each["score"], each["truncated"]) for each in result["translations"]]
    assert found == [(-0.5, False), (-0.5, True), (-0.5, False), (-0.5, True)]
    assert told == warnings_of("text 2", "text 4")
    words = "translate", "any", "--output", output, "--quiet"
    result, told = objects(capsys, *words, *texts)
    assert (result["truncated"], told) == (2, warnings_of("text 2", "text 4"))
    result, told = objects(capsys, *words, "--input", source)
    assert (result["truncated"], result["first_truncated"]) == (2, 2)
    (line,) = told.splitlines()
    assert f"{source}:2 is too long and was cut, as 1 more: see " in line


def test_terms_come_from_a_file_and_what_was_lost_is_told(
    tmp_path, monkeypatch, capsys
):
    class Translating:
        def translate(self, texts, terms, dont_translate):
            text = f"{terms} {dont_translate}"
            one = Translation(text, -0.5, False, doubts=("lost",), lost=("router",))
            return [one for _ in texts]

    monkeypatch.setattr(use_verbs, "load_translator", lambda _: Translating())
    monkeypatch.setattr(use_verbs, "_fingerprint", lambda *_: "")
    terms, source = tmp_path / "terms.tsv", tmp_path / "in.txt"
    terms.write_text("router\tRouter\nAcme\nbig house\tgroßes Haus\n", "utf-8")
    source.write_text("a\nb\n")
    words = "translate", "any", "--terms", terms
    result, told = objects(capsys, *words, "a")
    assert result["translations"][0]["text"] == (
        "{'router': 'Router', 'big house': 'großes Haus'} ['Acme']"
    )
    assert result["doubts"] == {"lost": 1}
    assert result["translations"][0]["lost"] == ["router"]
    assert told.endswith("translation of text 1 is doubtful: lost, router\n")
    words += "--input", source, "--output", tmp_path / "out.txt"
    result, told = objects(capsys, *words)
    assert result["doubts"] == {"lost": 2}
    assert "; doubtful: lost 2 (the first lines: 1, 2)\n" in told


def test_doubts_are_told_by_their_number_and_counted(
    tmp_path, capsys, translating, monkeypatch
):
    monkeypatch.setattr(use_verbs, "_fingerprint", lambda *_: "")
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\nla la\nhm\n", "utf-8")
    translating(lambda texts: texts)
    result, told = objects(capsys, "translate", "any", "a", "la la", "hm")
    assert [one["doubts"] for one in result["translations"]] == [
        [], ["loop", "score"], ["score"]
    ]  # fmt: skip
    counts = {"loop": 1, "score": 2}
    assert result["doubts"] == counts and result["truncated"] == 0
    said = "keras-transformer: warning: the translation of text "
    assert told == f"{said}2 is doubtful: loop, score\n{said}3 is doubtful: score\n"
    words = "translate", "any", "--input", source, "--output", output
    result, told = objects(capsys, *words)
    assert result["doubts"] == counts and result["doubtful"] == [2, 3]
    assert "; doubtful: loop 1, score 2 (the first lines: 2, 3)\n" in told
    found = Translation("la", -1.0, False, (), ("loop", "lost"), ("a.org/b",))
    loop = SimpleNamespace(nbest=lambda *_: [[found]])
    with monkeypatch.context() as patched:
        patched.setattr(use_verbs, "load_translator", lambda _: loop)
        result, told = objects(capsys, "translate", "any", "a", "--no-split")
    assert result["doubts"] == {"loop": 1, "lost": 1}
    assert told == f"{said}1 is doubtful: loop, lost, a.org/b\n"
    test = tiny_run.write_pairs(tmp_path / "test.tsv", [("la la", "b"), ("hm", "c")])
    assert run("evaluate", "any", "--test", test) == 0
    assert "\ndoubtful: loop 1, score 2\n" in capsys.readouterr().out


def test_evaluate_leaves_out_the_lines_that_validation_does(
    tmp_path, capsys, translating
):
    path = tmp_path / "test.tsv"
    path.write_text("bad\na\ta\n\tempty\nb c\tb c\n", "utf-8")
    translating(lambda texts: texts)
    words = "evaluate", "any", "--test", path
    result, said = objects(capsys, *words)
    assert (result["sentences"], result["bad_lines"]) == (2, 2)
    assert f"warning: left out bad lines: 2 ({path}:1: not source, one tab" in said
    assert run(*words, "--bad-line-share", 0) == 1
    assert "raise `bad_line_share` to skip" in capsys.readouterr().err
    assert "--bad-line-share" in make_parser().verbs["distill"].flags()


def test_clean_writes_the_pairs_that_are_left(tmp_path, capsys, monkeypatch):
    pairs = [*tiny_run.TRAIN, tiny_run.TRAIN[3], ("", "x"), ("a &lt; b", "c\u2028d")]
    path = tiny_run.write_pairs(tmp_path / "a.tsv", [*pairs, ("no", "tab\tat all")])
    output = tmp_path / "b.tsv.gz"
    result, said = objects(capsys, "clean", path, "--output", output, "--quiet")
    expected = [*tiny_run.TRAIN, ("a < b", "c d")]
    written = gzip.decompress(output.read_bytes()).decode()
    assert written == "".join(f"{a}\t{b}\n" for a, b in expected)
    rules = {"duplicates": 1, "empty": 1, "entities": 1}
    [bad] = result.pop("first_bad_lines")
    assert bad.startswith(f"{path}:44: not source, one tab, target")
    assert result == {
        "output": str(output), "lines": 44, "rules": rules,
        "pairs": 41, "unlikely": 0, "bad_lines": 1,
    }  # fmt: skip
    assert said == f"keras-transformer: warning: left out 1 bad line: {bad}\n"
    # Of a model's scores, the lowest per token.
    translator = tiny_run.translator()
    kept = [*tiny_run.TRAIN, tiny_run.TRAIN[3], expected[-1]]
    scores = translator.score(*zip(*kept, strict=True))
    each = [score.log_probability / len(score.tokens) for score in scores]
    worst = np.argsort(each, kind="stable")[:10]
    monkeypatch.setattr(use_verbs, "load_translator", lambda options: translator)
    output = tmp_path / "c.tsv"
    words = "--keep", "duplicates", "--by", "run", "--by-share", 0.24
    assert run("clean", path, "--output", output, *words) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == ["left out the 10 least likely pairs", f"{output}: 32 pairs"]
    left = [pair for i, pair in enumerate(kept) if i not in worst]
    assert output.read_text() == "".join(f"{a}\t{b}\n" for a, b in left)


def test_clean_writes_no_empty_file(tmp_path, capsys):
    path, output = tmp_path / "a.tsv", tmp_path / "b.tsv"
    path.write_bytes(b"\xff\ta\n")
    assert run("clean", path, "--output", output) == 1
    words = f"There are no good pairs: left out bad lines: 1 ({path}:1: source is not"
    assert f"error: {words}" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["a.tsv"]


@pytest.mark.parametrize(("is_terminal", "first"), [(True, 1), (False, 32)])
def test_a_terminal_is_answered_line_by_line(
    monkeypatch, capsys, translating, is_terminal, first
):
    content, seen = b"".join(b"%s\n" % (b"a" * (1 + i)) for i in range(70)), []
    monkeypatch.setattr("sys.stdin", Input(content, is_terminal))
    translating(lambda texts: seen.append(texts) or texts)
    assert run("translate", "any") == 0
    assert capsys.readouterr().out.encode() == content
    assert len(seen[0]) == first


def test_a_line_of_input_gives_a_line_of_output(
    tmp_path, monkeypatch, capsys, translating
):
    source, seen = tmp_path / "in.txt", []
    source.write_bytes("a\rb\u2028c\r\nd\n".encode())
    translating(lambda texts: seen.extend(texts) or texts)
    assert run("translate", "any", "--input", source) == 0
    assert seen == ["a\rb\u2028c", "d"]
    capsys.readouterr()
    translating(lambda texts: [f"{text}\n{text}" for text in texts])
    assert run("translate", "any", "a", "b") == 0
    assert capsys.readouterr().out == "a a\nb b\n"
    translating(lambda texts: texts)
    assert run("translate", "any", "a letter\n\nof lines") == 0
    assert capsys.readouterr().out == "a letter\n\nof lines\n"
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout.isatty", lambda: True)
        assert run("translate", "any", "a letter\n\nof\x1b lines") == 0
    assert capsys.readouterr().out == "a letter\n\nof\\x1b lines\n"
    # Bad bytes are named by their line.
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a dog\n\xff\n")))
    assert run("translate", "any") == 1
    error = "keras-transformer: error: standard input:2: not valid UTF-8\n"
    assert capsys.readouterr() == ("", error)


def test_export_gives_each_format_its_flags(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (tmp_path / name).mkdir()
    monkeypatch.setattr(flags, "trained_directory", lambda path: path)
    calls, run_of_a, languages = [], {"run": flags.Path("a")}, ["en", "de"]
    recorder = SimpleNamespace(export=lambda path, **more: calls.append(more) or path)
    monkeypatch.setattr(export_verbs, "load_runs", lambda runs, options: recorder)
    for more, format, options in (
        ("", "saved_model", run_of_a),
        (
            "--dtype bfloat16 --languages en de",
            "saved_model",
            run_of_a | {"dtype": "bfloat16", "languages": languages},
        ),
        ("--no-examples", "saved_model", run_of_a | {"no_examples": True}),
        ("b", "saved_model", {}),  # An ensemble: no card of a run.
        ("--format litert --quantize int8", "litert", {"quantize": "int8"}),
        ("--format litert --fixed-lengths", "litert", {"fixed_lengths": True}),
        ("--format onnx --quantize float16", "onnx", {"quantize": "float16"}),
        ("--format web --languages en de", "web", run_of_a | {"languages": languages}),
        ("--format ctranslate2 --max-source-length 9", "ctranslate2", {}),
        ("--format safetensors --quiet", "safetensors", {}),
    ):
        assert run("export", "a", *more.split(), "--output", "x/1") == 0
        assert calls.pop() == {"format": format} | options
        assert capsys.readouterr().out == "x/1\n"
    for more, line in (
        ("--quantize int8", "`--quantize` goes with `--format litert or onnx or w"),
        ("--format litert --dtype float32", "`--dtype` goes with `--format saved_mo"),
        ("--format onnx --fixed-lengths", "`--fixed-lengths` goes with `--format li"),
        ("--format safetensors --languages a b", "Received: --format safetensors"),
        ("--format ctranslate2 --beam-size 2", "told how to search in each call"),
    ):
        assert run("export", "a", *more.split(), "--output", "x/1") == 1
        assert line in capsys.readouterr().err


def test_the_last_words_of_a_converter_are_shown(monkeypatch, tmp_path, capfd):
    """It ends the process where memory lacks."""
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flags, "trained_directory", lambda path: path)
    words = b"terminate called after throwing an instance of 'std::bad_alloc'\n"
    dies = SimpleNamespace(export=lambda path, **more: os.write(2, words) and path)
    monkeypatch.setattr(export_verbs, "load_runs", lambda runs, options: dies)
    assert run("export", "a", "--format", "litert", "--output", "x") == 0
    assert words.decode() in capfd.readouterr().err


def test_serve_gets_its_address_and_file(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    calls, a = [], flags.Path("a")
    monkeypatch.setattr(serving, "serve", lambda *given: calls.append(given))
    for words, expected in {
        "serve a": (a, "127.0.0.1", 8501, None, None),
        "serve a --host ::1 --port 0 --doubt-above 0.7 --corrections b": (
            a, "::1", 0, 0.7, flags.Path("b"),
        ),
    }.items():  # fmt: skip
        assert run(*words.split()) == 0
        assert calls.pop() == expected


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ValueError("two\nlines"), 1, "error: two lines"),
        (
            KeyError("x"),
            1,
            "error: KeyError: 'x' (where: keras-transformer --traceback",
        ),
        (OSError(28, "No space left on device", "a.txt"), 1, "error: a.txt: No space"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_is_one_line_and_a_status(monkeypatch, capsys, error, status, line):
    def fail(options):
        raise error

    monkeypatch.setattr(use_verbs, "load_translator", fail)
    for json_too in ([], ["--json"]):
        assert run("translate", "any", "a", *json_too) == status
        printed = capsys.readouterr()
        assert printed.err.startswith(f"keras-transformer: {line}")
        assert printed.err.count("\n") == 1 and printed.out == ""
    if status == 1:
        with pytest.raises(type(error)):
            run("--traceback", "translate", "any", "a")


def test_a_warning_is_one_line_and_all_that_a_quiet_console_prints(capsys, translating):
    def warn(texts):
        warnings.showwarning("odd\ncharacters", UserWarning, "file.py", 1)
        return texts

    translating(warn)
    before = warnings.showwarning
    assert run("translate", "any", "a") == 0
    assert warnings.showwarning is before
    line = "keras-transformer: warning: odd characters\n"
    assert capsys.readouterr() == ("a\n", line)
    for quiet, printed in ((False, ("b\nwarning: c\n", "")), (True, ("", "c\n"))):
        console = Console(quiet=quiet)
        terminal.say(console, "b")
        terminal.warn(console, "c")
        out, err = capsys.readouterr()
        assert (out, err.removeprefix("keras-transformer: warning: ")) == printed


def test_no_number_is_one_that_json_lacks(monkeypatch, capsys):
    worst = Translation("", float("-inf"), False)
    translator = SimpleNamespace(translate=lambda texts: [worst])
    monkeypatch.setattr(use_verbs, "load_translator", lambda _: translator)
    result, _ = objects(capsys, "translate", "any", "a")
    expected = {"source": "a", "text": "", "score": None, "truncated": False}
    expected |= {"doubt": None, "doubts": [], "lost": []}
    assert result["translations"] == [expected]
    monkeypatch.setattr("sys.stdout", None)
    assert run("translate", "any", "a", "--json") == 1
    assert "Standard output must be open" in capsys.readouterr().err


def test_what_native_code_prints_while_a_module_loads_is_hidden(monkeypatch, capfd):
    def import_module(name):
        os.write(2, b"noise")
        return name

    monkeypatch.setattr(flags.importlib, "import_module", import_module)
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    assert flags.load_module("text") == "keras_transformer.text"
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"
    assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == "0"
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")
    flags.load_module("text")
    assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == "1"
