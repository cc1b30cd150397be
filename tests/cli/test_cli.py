"""The command line, in process, at the smallest sizes."""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sacrebleu

from keras_transformer import (
    ExportedTranslator,
    RunConfig,
    cli,
    serving,
    training,
)
from keras_transformer.bulk import model_fingerprint, translate_file
from keras_transformer.cli import export, loading, make_parser
from keras_transformer.cli import translate as verbs
from keras_transformer.cli.loading import load_translator
from keras_transformer.export.translator import DTYPES
from tests import tiny_run
from tests.text import foreign_tokenizers as foreign

LEARNED = {
    "source_vocabulary_size", "target_vocabulary_size", "pad_id", "start_id", "end_id",
    "unknown_id",
}  # fmt: skip
SIZES = (
    "--num-encoder-layers 1 --num-decoder-layers 1 --d-model 16 --d-ff 32 "
    "--num-heads 2 --vocabulary-size 300 --batch-tokens 256 --warmup-steps 10 "
    "--average-checkpoints 1 --beam-size 1 --max-extra-length 3"
).split()
VERBS = (
    "quickstart train evaluate translate export card serve playground average plot "
    "completion"
).split()
TEXTS = ["the good dog runs.", "a bear", "the old man sings."]


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    return tiny_run.saved_model(tmp_path_factory)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Training and test pairs, one file each."""
    folder = tmp_path_factory.mktemp("files")
    train = tiny_run.write_pairs(folder / "train.tsv")
    return train, tiny_run.write_pairs(folder / "test.tsv", tiny_run.VALID[:5])


@pytest.fixture(scope="module")
def trained(tmp_path_factory, files):
    """The run directory that `train` made."""
    directory = tmp_path_factory.mktemp("cli") / "run"
    train, test = map(str, files)
    words = ["train", "--train", train, "--valid", test, "--run", str(directory)]
    assert cli.main([*words, *SIZES, "--max-updates", "3", "--epochs", "1"]) == 0
    return directory


@pytest.mark.slow
def test_train_evaluate_export_and_translate_end_to_end(
    trained, files, tmp_path, capsys
):
    config = RunConfig.load(trained / "config.json")
    assert (config.model.d_model, config.training.max_updates) == (16, 3)
    output, version = tmp_path / "out" / "test.txt", tmp_path / "saved" / "tiny" / "1"
    words = ["--test", str(files[1]), "--output", str(output)]
    assert cli.main(["evaluate", "--model", str(trained), *words]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3 and printed[0].startswith("BLEU ")
    assert f"version:{sacrebleu.__version__}" in printed[-3]
    live = output.read_text(encoding="utf-8").splitlines()
    assert len(live) == 5

    assert cli.main(["export", "--run", str(trained), "--output", str(version)]) == 0
    assert capsys.readouterr().out == f"{version}\n"
    sources = [source for source, _ in tiny_run.VALID[:5]]
    assert cli.main(["translate", "--model", str(version.parent), *sources]) == 0
    assert capsys.readouterr().out.splitlines() == live


def test_translate_takes_arguments_a_file_or_standard_input(
    saved_model, tmp_path, monkeypatch, capsys
):
    expected = tiny_run.translator()(TEXTS)
    content = "".join(text + "\n" for text in TEXTS)
    source = tmp_path / "in.txt"
    source.write_text(content, encoding="utf-8")
    stream = io.TextIOWrapper(io.BytesIO(content.encode("utf-8")))
    monkeypatch.setattr("sys.stdin", stream)
    words = ["translate", "--model", str(saved_model)]
    for rest in (TEXTS, ["--input", str(source)], []):
        assert cli.main([*words, *rest]) == 0
        assert capsys.readouterr().out.splitlines() == expected


def test_translate_writes_a_file(saved_model, tmp_path, capsys):
    output = tmp_path / "new" / "out.txt"
    words = ["translate", "--model", str(saved_model), "--output", str(output)]
    assert cli.main([*words, *TEXTS]) == 0
    expected = tiny_run.translator()(TEXTS)
    assert output.read_text(encoding="utf-8").splitlines() == expected
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_scores_and_alternatives_stand_in_columns(saved_model, trained, capsys):
    """One line a sentence, as without them."""
    live = tiny_run.translator()
    for model in (saved_model, trained):
        words = ["translate", "--model", str(model), *TEXTS]
        if model is trained:
            words += ["--beam-size", "3"]
            live = load_translator(make_parser().parse_args(words))
        assert cli.main([*words, "--n-best", "3", "--scores"]) == 0
        lines = capsys.readouterr().out.splitlines()
        expected = live.translate(TEXTS, n_best=3)
        assert len(lines) == len(TEXTS)
        for line, found in zip(lines, expected, strict=True):
            columns = line.split("\t")
            assert columns[1::2] == [one.text for one in found]
            scores = [float(column) for column in columns[::2]]
            np.testing.assert_allclose(scores, [one.score for one in found], atol=2e-4)
            assert scores == sorted(scores, reverse=True)
        assert cli.main([*words, "--scores"]) == 0
        best = [line.split("\t")[:2] for line in lines]
        printed = capsys.readouterr().out.splitlines()
        assert [line.split("\t") for line in printed] == best
        assert cli.main([*words, "--n-best", "3"]) == 0
        printed = capsys.readouterr().out.splitlines()
        assert [line.split("\t") for line in printed] == [
            line.split("\t")[1::2] for line in lines
        ]


@pytest.mark.slow
def test_a_file_has_the_columns_too(saved_model, tmp_path, capsys):
    words = ["translate", "--model", str(saved_model), "--n-best", "2", "--scores"]
    assert cli.main([*words, *TEXTS]) == 0
    lines = capsys.readouterr().out
    source, output = tmp_path / "source.txt", tmp_path / "output.txt"
    source.write_text("".join(text + "\n" for text in TEXTS), "utf-8")
    assert cli.main([*words, "--input", str(source), "--output", str(output)]) == 0
    assert output.read_text("utf-8") == lines
    output.unlink()
    assert cli.main([*words, *TEXTS, "--output", str(output)]) == 0
    assert output.read_text("utf-8") == lines


@pytest.mark.slow
def test_an_output_with_other_columns_is_not_continued(saved_model):
    def fingerprint(*flags):
        words = ["translate", "--model", str(saved_model), *flags]
        options = make_parser().parse_args(words)
        return verbs._fingerprint(ExportedTranslator(saved_model), options)

    assert fingerprint() == model_fingerprint(saved_model)
    flags = (), ("--scores",), ("--n-best", "1"), ("--n-best", "2")
    assert len({fingerprint(*given) for given in flags}) == 4


def test_translate_goes_from_file_to_file_and_says_how_fast(
    saved_model, tmp_path, capsys
):
    source, output = tmp_path / "in.txt.gz", tmp_path / "out.txt"
    with gzip.open(source, "wt", encoding="utf-8") as stream:
        stream.writelines(text + "\n" for text in TEXTS)
    words = ["--input", str(source), "--output", str(output)]
    assert cli.main(["translate", "--model", str(saved_model), *words]) == 0
    lines = output.read_text(encoding="utf-8").splitlines()
    assert lines == tiny_run.translator()(TEXTS)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("3 sentences in ")


def test_translate_goes_on_with_an_output_of_the_same_model_and_options(
    trained, tmp_path, capsys
):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(text + "\n" for text in TEXTS), encoding="utf-8")
    words = ["translate", "--model", str(trained), "--input", str(source),
             "--output", str(output)]  # fmt: skip
    options = make_parser().parse_args(words)
    fingerprint = verbs._fingerprint(load_translator(options), options)

    def stopped(texts):
        if texts == TEXTS[:1]:
            return ["done before"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        translate_file(stopped, source, output, window=1, fingerprint=fingerprint)
    assert cli.main([*words, "--beam-size", "2"]) == 1
    assert "with another model or other options" in capsys.readouterr().err
    assert cli.main(words) == 0
    lines = output.read_text(encoding="utf-8").splitlines()
    assert (len(lines), lines[0]) == (3, "done before")


class Input(io.TextIOWrapper):
    """Standard input of a kind."""

    def __init__(self, content, terminal, file):
        super().__init__(io.BytesIO(content))
        self._kinds = (terminal, file)

    def isatty(self):
        return self._kinds[0]

    def seekable(self):
        return self._kinds[1]


@pytest.mark.parametrize(
    ("terminal", "file", "batches"),
    [(True, False, [1] * 70), (False, False, [32, 32, 6]), (False, True, [70])],
)
def test_a_terminal_is_answered_line_by_line(
    monkeypatch, capsys, terminal, file, batches
):
    # Sorted by length across all lines, or only within each batch of a pipe.
    content = b"".join(b"%s\n" % (b"a" * (1 + i)) for i in range(70))
    monkeypatch.setattr("sys.stdin", Input(content, terminal, file))
    seen = []
    monkeypatch.setattr(
        verbs, "load_translator", lambda _: lambda x: seen.append(x) or x
    )
    assert cli.main(["translate", "--model", "any"]) == 0
    assert capsys.readouterr().out.encode() == content
    assert [len(texts) for texts in seen] == batches
    assert len(seen[0][0]) == (70 if file else batches[0])


def test_every_input_line_gives_one_output_line(monkeypatch, capsys):
    class Breaking:
        def __call__(self, texts):
            return [f"{text}\n{text}" for text in texts]

    monkeypatch.setattr(verbs, "load_translator", lambda options: Breaking())
    assert cli.main(["translate", "--model", "any", "a", "b"]) == 0
    assert capsys.readouterr().out == "a a\nb b\n"


def test_only_a_line_feed_ends_an_input_line(tmp_path, monkeypatch, capsys):
    source = tmp_path / "in.txt"
    source.write_bytes("a\rb\u2028c\r\nd\n".encode())
    seen = []
    monkeypatch.setattr(
        verbs, "load_translator", lambda _: lambda x: seen.extend(x) or x
    )
    assert cli.main(["translate", "--model", "any", "--input", str(source)]) == 0
    assert seen == ["a\rb\u2028c", "d"]
    capsys.readouterr()


def test_export_takes_the_type_and_the_compiler(monkeypatch, tmp_path, capsys):
    calls = []

    class Recorder:
        def export(self, *arguments, **facts):
            assert facts == {"run": Path("any"), "languages": None}
            calls.append(arguments)
            return arguments[0]

    monkeypatch.setattr(export, "load_runs", lambda options: Recorder())
    output = tmp_path / "1"
    words = ["export", "--run", "any", "--output", str(output)]
    assert cli.main(words) == 0
    assert cli.main([*words, "--dtype", "bfloat16", "--jit-compile"]) == 0
    assert calls == [(output, "float32", False), (output, "bfloat16", True)]
    assert capsys.readouterr().out == f"{output}\n" * 2


def test_export_offers_the_types_that_there_are(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["export", "--help"])
    assert f"--dtype {{{','.join(DTYPES)}}}" in capsys.readouterr().out


def test_serve_takes_a_directory_and_the_options_of_the_server(
    saved_model, monkeypatch
):
    calls = []
    monkeypatch.setattr(serving, "serve", lambda *arguments: calls.append(arguments))
    directory = saved_model.parent
    assert cli.main(["serve", str(directory)]) == 0
    flags = ["--port", "0", "--max-request-mib", "0.5"]
    assert cli.main(["serve", str(directory), *flags]) == 0
    config = serving.ServingConfig()
    assert calls == [
        (directory, config),
        (directory, config.replace(port=0, max_request_mib=0.5)),
    ]


def test_only_an_export_has_flags_that_only_its_signatures_use(capsys):
    for verb in ("evaluate", "translate", "export"):
        with pytest.raises(SystemExit, match="0"):
            cli.main([verb, "--help"])
        text = capsys.readouterr().out
        for flag in ("--top-k", "--top-p", "--alignment-layer"):
            assert (flag in text) == (verb == "export")
        assert ("--n-best" in text) == (verb != "evaluate")


def test_evaluate_reads_a_saved_model(saved_model, files, capsys):
    assert cli.main(["evaluate", "--model", str(saved_model), "--test",
                     str(files[1])]) == 0  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    sources, references = zip(*tiny_run.VALID[:5], strict=True)
    translations = tiny_run.translator()(list(sources))
    bleu = sacrebleu.corpus_bleu(translations, [list(references)])
    assert f"BLEU {bleu.score:.2f}  nrefs:1" in lines[-3]
    assert lines[-1].startswith("5 sentences in ")


def test_decoding_flags_replace_those_of_the_run(trained):
    options = make_parser().parse_args(
        ["translate", "--model", str(trained), "--beam-size", "3", "a"]
    )
    translator = load_translator(options)
    assert translator.config.beam_size == 3
    assert translator.config.max_extra_length == 3


@pytest.fixture
def asked(monkeypatch):
    """What `train` was called with; nothing is trained."""
    calls = []

    def train(*arguments, tokenizers=None, init=None, console=None):
        calls.append((*arguments, tokenizers))

    monkeypatch.setattr(training, "train", train)
    return calls


def train_with(files, *flags):
    words = ["train", "--train", str(files[0]), "--run", "unused", *map(str, flags)]
    return cli.main(words)


def test_flags_go_before_the_file_which_goes_before_the_preset(files, asked, tmp_path):
    path = tmp_path / "config.json"
    values = {"model": {"d_model": 96, "d_ff": 77, "num_heads": 3}}
    path.write_text(json.dumps(values), encoding="utf-8")
    flags = ["--preset", "tiny", "--config", path, "--d-model", "48"]
    assert train_with(files, *flags) == 0
    model = asked[0][2].model
    # The flag; the file; the preset, as the file does not say.
    assert (model.d_model, model.d_ff, model.num_heads) == (48, 77, 3)
    assert model.num_encoder_layers == 4


def test_without_flags_the_defaults_hold(files, asked):
    assert train_with(files) == 0
    assert asked[0][2] == RunConfig()
    assert asked[0][1] == Path("unused")
    assert asked[0][3] is None


def test_a_config_of_a_run_can_be_given_again(files, asked, trained):
    assert train_with(files, "--config", trained / "config.json") == 0
    assert asked[0][2] == RunConfig.load(trained / "config.json")


def other_value(field, kinds):
    """A value that is not the field's default, as a word for its flag."""
    if field.metadata["choices"]:
        return [c for c in field.metadata["choices"] if c != field.default][0]
    if str in kinds:
        return "gelu"
    if int in kinds:
        return (field.default or 8) * 2
    return (field.default or 0.5) * 0.95


SECTIONS = {field.name: type(field.default) for field in dataclasses.fields(RunConfig)}


@pytest.mark.parametrize(
    ("section", "name"),
    [
        (section, field.name)
        for section, config in SECTIONS.items()
        for field in dataclasses.fields(config)
        if field.name not in LEARNED
    ],
)
def test_every_option_has_a_flag(files, asked, section, name):
    config = SECTIONS[section]
    field = next(f for f in dataclasses.fields(config) if f.name == name)
    flag = "--" + name.replace("_", "-")
    default = getattr(config(), name)
    if "bool" in str(field.type):
        value, words = not default, [flag if not default else f"--no-{flag[2:]}"]
    else:
        value = other_value(field, [type(default), *_kinds(field)])
        words = [flag, value]
    # Separate vocabularies cannot share all three matrices, for example.
    companions = {
        "attention": ["--attention-window", "3"],
        "attention_window": ["--attention", "local"],
        "num_key_value_heads": ["--num-heads", "16"],
        "joint_vocabulary": ["--tied-embeddings", "none"],
        "n_best": ["--beam-size", "16"],
        "schedule": ["--learning-rate", "0.5"],
        "decay_steps": ["--schedule", "cosine", "--learning-rate", "0.5"],
    }
    assert train_with(files, *words, *companions.get(name, [])) == 0
    given = getattr(asked[0][2], section)
    assert getattr(given, name) == value != default
    others = {
        "attention": {"attention_window": 3},
        "attention_window": {"attention": "local"},
        "num_key_value_heads": {"num_heads": 16},
        "n_best": {"beam_size": 16},
        "schedule": {"learning_rate": 0.5},
        "decay_steps": {"schedule": "cosine", "learning_rate": 0.5},
    }.get(name, {})
    assert given == config().replace(**{name: value}, **others)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--mixed-precision"], True),
        (["--mixed-precision", "--epochs", "3"], True),
        (["--mixed-precision", "float16"], "float16"),
        (["--mixed-precision=bfloat16"], "bfloat16"),
        (["--no-mixed-precision"], False),
        ([], None),
    ],
)
def test_half_precision_is_bfloat16_unless_float16_is_said(files, asked, words, value):
    assert train_with(files, *words) == 0
    given = asked[0][2].training.mixed_precision
    assert (given, type(given)) == (value, type(value))


def test_other_words_are_no_kind_of_half_precision(files, asked, capsys):
    for flag, message in (("", "invalid choice: 'int8'"), ("no-", "takes no value")):
        with pytest.raises(SystemExit, match="2"):
            train_with(
                files, f"--{flag}mixed-precision", "int8" if not flag else "float16"
            )
        assert message in capsys.readouterr().err


def _kinds(field):
    kinds = {"int": int, "str": str}
    return [kind for name, kind in kinds.items() if name in str(field.type)]


def test_the_learned_sizes_have_no_flag(files, asked, capsys):
    for name in LEARNED:
        with pytest.raises(SystemExit, match="2"):
            train_with(files, "--" + name.replace("_", "-"), "7")
        assert "unrecognized arguments" in capsys.readouterr().err


def test_two_files_are_aligned_and_one_is_tab_separated(asked, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text("x\ty\n", encoding="utf-8")
    paths = [str(tmp_path / name) for name in ("a", "b")]
    words = ["train", "--run", "unused", "--train"]
    assert cli.main([*words, *paths, "--valid", *paths[:1]]) == 0
    kinds = [type(asked[0][0]).__name__, type(asked[0][3]).__name__]
    assert kinds == ["AlignedFiles", "TsvFile"]


def test_columns_and_tokenizers_are_files_of_others(asked, tmp_path, capsys):
    path = tmp_path / "x.csv"
    path.write_text("n,de,en\n1,eins,one\n", encoding="utf-8")
    model = tmp_path / "their.model"
    model.write_bytes(foreign.sentencepiece_model())
    words = ["train", "--run", "unused", "--train", str(path)]
    flags = ["--columns", "en", "de", "--tokenizer", str(model)]
    assert cli.main([*words, "--valid", str(path), *flags]) == 0
    for pairs in (asked[0][0], asked[0][3]):
        assert [tuple(pair) for pair in pairs.pairs()] == [(2, "one", "eins")]
    assert asked[0][4] == (str(model),)
    two = [*flags, str(model)]
    assert cli.main([*words, *two]) == 0
    assert asked[1][4] == (str(model), str(model))
    for more, line in (
        ([*two, str(model)], "`--tokenizer` takes one file for both sides, or one for"),
        (["--columns", "en", "fr"], "`target_key` must be one of 'n', 'de', 'en' for"),
        ([str(path), "--columns", "en", "de"], "`--columns` goes with one file that"),
        (
            ["--tokenizer", str(path), "--dry-run"],
            "x.csv is not a SentencePiece model.",
        ),
    ):
        capsys.readouterr()
        assert cli.main([*words, *more]) == 1
        (error,) = capsys.readouterr().err.splitlines()
        assert line in error


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_ends_well(verb, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main([*verb.split(), "--help"])
    assert "usage: keras-transformer" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["paint"], ["train"], ["export", "--run", "x"]])
def test_bad_usage_has_status_2(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    assert "keras-transformer" in capsys.readouterr().err


def leaves(parser, words=()):
    """Each parser without verbs below it, and the words that lead to it."""
    if not parser._verbs:
        yield words, parser
    for word, below in parser._verbs.items():
        yield from leaves(below, (*words, word))


LEAVES = dict(leaves(make_parser()))


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_no_flag_is_taken_by_a_part_of_its_name(words, capsys):
    actions = LEAVES[words]._option_string_actions
    for flag in [f for f in actions if f.startswith("--") and f[:-1] not in actions]:
        with pytest.raises(SystemExit, match="2"):
            cli.main([*words, flag[:-1]])
        error = capsys.readouterr().err.splitlines()[-1]
        assert f"unrecognized arguments: {flag[:-1]}" in error
        suggested = re.findall(r"--[\w-]+", error.partition("did you mean")[2])
        assert (flag in suggested) == (actions[flag].help != argparse.SUPPRESS)


def test_an_unknown_flag_is_named_before_what_is_missing(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["translate", "--modle=x", "--zzz", "--no, he said", "--", "--d"])
    assert capsys.readouterr().err.splitlines()[-1] == (
        "keras-transformer translate: error: unrecognized arguments: --modle (did you "
        "mean --model?), --zzz"
    )


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("two\nlines"), "two lines"),
        (
            KeyError("x"),
            "KeyError: 'x' (keras-transformer --traceback VERB ... shows where)",
        ),
        (OSError(28, "No space left on device", "a.txt"), "a.txt: No space left on"),
    ],
)
def test_an_error_is_one_line_and_status_1(monkeypatch, capsys, error, line):
    def fail(options):
        raise error

    monkeypatch.setattr(verbs, "load_translator", fail)
    assert cli.main(["translate", "--model", "any", "a"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"keras-transformer: error: {line}")
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_an_interruption_is_no_error_and_has_the_status_of_a_shell(monkeypatch, capsys):
    def interrupt(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(verbs, "load_translator", interrupt)
    assert cli.main(["translate", "--model", "any", "a"]) == 130
    assert capsys.readouterr() == ("", "keras-transformer: interrupted\n")


def test_traceback_shows_where(monkeypatch):
    def fail(options):
        raise KeyError("x")

    monkeypatch.setattr(verbs, "load_translator", fail)
    with pytest.raises(KeyError):
        cli.main(["--traceback", "translate", "--model", "any", "a"])


def test_what_native_code_prints_while_a_module_loads_is_hidden(monkeypatch, capfd):
    def import_module(name):
        os.write(2, b"noise")
        return name

    monkeypatch.setattr(loading.importlib, "import_module", import_module)
    assert loading.load_module("text") == "keras_transformer.text"
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"


def test_the_console_script_is_installed():
    script = Path(sys.executable).with_name("keras-transformer")
    done = subprocess.run(
        [script, "--help"], capture_output=True, encoding="utf-8", check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    for verb in VERBS:
        assert verb in done.stdout


def test_bad_bytes_on_standard_input_are_named_by_line(trained, monkeypatch, capsys):
    stream = io.TextIOWrapper(io.BytesIO(b"a dog\n\xff\n"))
    monkeypatch.setattr("sys.stdin", stream)
    assert cli.main(["translate", "--model", str(trained)]) == 1
    error = "keras-transformer: error: standard input:2: not valid UTF-8\n"
    assert capsys.readouterr() == ("", error)


@pytest.mark.slow
def test_a_litert_export_translates_a_file(tmp_path_factory, tmp_path):
    model = tiny_run.litert(tmp_path_factory)
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(text + "\n" for text in TEXTS), "utf-8")
    words = ["translate", "--model", model, "--input", source, "--output", output]
    assert cli.main(list(map(str, words))) == 0
    assert output.read_text("utf-8").splitlines() == tiny_run.translator()(TEXTS)
