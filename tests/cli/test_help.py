"""What the command line says of itself: help, examples, suggestions, completion."""

from __future__ import annotations

import shlex
import subprocess
import sys
from importlib import metadata

import pytest

from keras_transformer import cli
from keras_transformer.cli import make_parser
from tests.cli.test_cli import LEAVES

PARSERS = {"": make_parser()} | {" ".join(words): p for words, p in LEAVES.items()}


def printed(capsys, *words, status=0):
    """What a command that ends the process prints on standard output and error."""
    with pytest.raises(SystemExit, match=str(status)):
        cli.main(list(words))
    return capsys.readouterr()


def examples_in(text):
    """The command lines below the help, without the program's name."""
    lines = text.partition("example")[2].replace("\\\n", " ").splitlines()[1:]
    return [shlex.split(line.partition("keras-transformer ")[2]) for line in lines]


@pytest.mark.parametrize("verb", PARSERS)
def test_every_help_has_examples_that_are_understood(verb, capsys):
    found = examples_in(printed(capsys, *verb.split(), "--help").out)
    assert found
    for words in found:
        if ">" in words:
            words = words[: words.index(">")]
        if "<" in words:
            words = words[: words.index("<")]
        if words[-1] == "--help":
            printed(capsys, *words)
            continue
        options = make_parser().parse_args(words)
        assert verb in ("", options.verb) or verb.split()[0] == options.verb


def groups_of(text):
    """The flags of each group of a help, in order."""
    groups, flags = {}, None
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            flags = groups.setdefault(line[:-1], [])
        elif flags is not None and line.startswith("  -"):
            names = [w.rstrip(",") for w in line.split() if w.startswith("--")]
            flags.append(names[0])
    return groups


def test_ten_options_of_train_come_first_and_the_general_ones_last(capsys):
    groups = groups_of(printed(capsys, "train", "--help").out)
    titles = list(groups)
    assert (
        groups[titles[0]]
        == (
            "--train --valid --run --preset --norm-first --dropout-rate "
            "--vocabulary-size --batch-tokens --epochs --warmup-steps"
        ).split()
    )
    assert titles[0] == "the ten options that matter first"
    assert titles[-2:] == ["general options", "examples"]
    assert groups["general options"] == ["--help", "--traceback", "--quiet", "--json"]
    assert "--d-model" in groups["model options"]
    flags = [flag for group in groups.values() for flag in group]
    assert len(flags) == len(set(flags)) > 60


def test_the_usage_shows_what_must_be_given(capsys):
    usage = printed(capsys, "train", status=2).err.partition("keras-transformer train")
    assert (
        usage[2].split("\n\n")[0].split()[:9]
        == (
            "--train FILE [FILE ...] --run DIRECTORY [OPTION ...] keras-transformer"
        ).split()
    )


def test_the_version_is_that_of_the_package(capsys):
    out = printed(capsys, "--version").out
    version = metadata.version("keras-transformer-seq2seq")
    assert out.startswith(f"keras-transformer-seq2seq {version}, keras ")
    assert f"tensorflow {metadata.version('tensorflow')}" in out
    assert out.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("trian --run x", "unknown VERB 'trian' (did you mean train?)"),
        ("--traceback exprot", "unknown VERB 'exprot' (did you mean export"),
        ("plot atention x", "unknown KIND 'atention' (did you mean attention?)"),
        ("frobnicate", "unknown VERB 'frobnicate' (choose from quickstart, train, "),
        ("--quiet train", "unrecognized arguments: --quiet (give it after the VERB)"),
        ("--verison", "unrecognized arguments: --verison (did you mean --version?)"),
        ("serve --json x", "unrecognized arguments: --json"),
    ],
)
def test_a_wrong_word_is_answered_with_the_nearest(words, line, capsys):
    error = printed(capsys, *words.split(), status=2).err.splitlines()[-1]
    assert line in error


def completions(script, words):
    """What bash offers for the last of some words."""
    program = f"""
source {script}
COMP_WORDS=({" ".join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}
function=$(complete -p keras-transformer | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
$function
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, check=True
    )
    return [word.strip() for word in done.stdout.splitlines()]


def test_bash_completes_verbs_flags_values_and_files(tmp_path, capsys, monkeypatch):
    assert cli.main(["completion", "bash"]) == 0
    script = tmp_path / "script.bash"
    script.write_text(capsys.readouterr().out, "utf-8")
    (tmp_path / "train.en").touch()
    monkeypatch.chdir(tmp_path)
    for words, found in (
        (["tr"], ["train", "translate"]),
        (["train", "--presen"], []),
        (["train", "--prese"], ["--preset"]),
        (["train", "--preset", "t"], ["tiny"]),
        (["plot", "att"], ["attention"]),
        (["train", "--train", "train."], ["train.en"]),
    ):
        assert completions(script, ["keras-transformer", *words]) == (found or [""])


def test_zsh_gets_a_script_too(capsys):
    assert cli.main(["completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("#compdef keras-transformer")
    assert "_keras_transformer_translate" in script


def test_completion_without_shtab_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 1
    assert "keras-transformer-seq2seq[completion]" in capsys.readouterr().err
