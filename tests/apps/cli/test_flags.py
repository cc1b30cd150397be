"""What the command line says of itself, what it understands, and what it refuses."""

import dataclasses
import json
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from keras_transformer import RunConfig, training
from keras_transformer.apps import cli
from keras_transformer.apps.cli import make_parser
from keras_transformer.config.run_config import FINE_TUNING, PRESETS
from tests import tiny_run

VERBS = (
    "quickstart train average import evaluate translate clean distill export serve "
    "plot-attention plot-training"
).split()
PARSERS = {"": make_parser(), **make_parser().verbs}
SCRIPT = Path(sys.executable).with_name("keras-transformer")


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def printed(capsys, *words, status=0):
    """What a command that ends the process prints on standard output and error."""
    with pytest.raises(SystemExit, match=str(status)):
        cli.main(list(map(str, words)))
    return capsys.readouterr()


@pytest.mark.parametrize("verb", PARSERS)
def test_every_help_has_examples_that_are_understood(verb, capsys):
    text = printed(capsys, *verb.split(), "--help").out
    assert text.startswith(f"usage: keras-transformer {verb}".rstrip())
    assert max(map(len, text.splitlines())) <= 80
    lines = text.partition("\nexample")[2].splitlines()[1:]
    assert lines
    for line in lines:
        words = shlex.split(line.partition("keras-transformer ")[2])
        words = words[: words.index("<")] if "<" in words else words
        if words[-1] == "--help":
            printed(capsys, *words)
            continue
        options = make_parser().parse_args(words)
        assert verb in ("", options.verb)


def test_the_verbs_are_these_and_the_console_script_names_them(capsys):
    assert [name for name in PARSERS if name] == VERBS
    done = subprocess.run([SCRIPT, "--help"], capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"\n    {verb}" in done.stdout for verb in VERBS)
    out = printed(capsys, "--version").out
    version = metadata.version("keras-transformer-seq2seq")
    assert out.startswith(f"keras-transformer-seq2seq {version}, keras ")
    assert f"tensorflow {metadata.version('tensorflow')}" in out
    assert out.count("\n") == 1


def test_train_has_at_most_sixty_three_flags_and_a_help_of_two_screens(capsys):
    actions = PARSERS["train"]._actions
    assert len(actions) <= 63
    short = printed(capsys, "train", "--help").out
    every = printed(capsys, "train", "--help", "all").out
    assert len(short.splitlines()) <= 100
    rare = [action for action in actions if getattr(action, "is_rare", False)]
    for action in actions:
        assert action.option_strings[-1] in every
        assert (f"\n  {action.option_strings[0]}" in short) == (action not in rare)
    assert every.index("general options:") > every.index("--beam-size")
    head = short.split("usage: keras-transformer ")[1].splitlines()[0]
    assert head == "train --train FILE [FILE] --run RUN [OPTION ...]"
    # What has no flag is in no help, and flags stand at the verbs that have them.
    for name in ("key_dim", "nonfinite", "length_penalty_form"):
        assert "--" + name.replace("_", "-") not in PARSERS["train"].flags()
    for verb in ("evaluate", "translate", "export"):
        flags = PARSERS[verb].flags()
        assert ("--top-k" in flags) == (verb == "export")
        assert ("--n-best" in flags) == (verb != "evaluate")


TRAIN = "train --train a --run b "
REFUSED = {
    "": "the following arguments are required: VERB",
    "trian --run x": "invalid choice: 'trian'",
    "train": "the following arguments are required: --train, --run",
    "export x": "the following arguments are required: --output",
    "serve --json x": "unrecognized arguments: --json",
    # Never a part of a flag, nor a flag of the verb before it.
    "translate x --ouput y": "--ouput y (did you mean --output or --input?)",
    TRAIN + "--batch 64": "--batch 64 (did you mean --batch-tokens?)",
    TRAIN + "--vocabulary-siz=9": "--vocabulary-siz=9 (did you mean --vocabulary-size",
    TRAIN + "--source-vocabulary-size 7": "unrecognized arguments",
    # Bounds and choices, in words that name the flag.
    TRAIN + "--vocabulary-size 2147483648": (
        "argument --vocabulary-size: must be at most 1000000. Received: 2147483648"
    ),
    TRAIN + "--dropout-rate nan": "argument --dropout-rate: must be finite",
    TRAIN + "--epochs many": "argument --epochs: invalid int value: 'many'",
    TRAIN + "--preset huge": "argument --preset: invalid choice: 'huge'",
    TRAIN + "--mixed-precision int8": "argument --mixed-precision: invalid choice",
}


@pytest.mark.parametrize("command", REFUSED)
def test_bad_usage_is_answered_in_our_words_and_has_status_2(command, capsys):
    error = printed(capsys, *command.split(), status=2).err.splitlines()[-1]
    assert REFUSED[command] in error


def test_what_is_missing_is_named_before_tensorflow_is_loaded(tmp_path):
    commands = [
        "train --train none --run a", "translate none a", "translate . a",
        "evaluate . --test none", "export . --output a", "serve .",
        "average none --output a", "plot-attention . a --output a.png",
        "plot-training none --output a.png",
    ]  # fmt: skip
    program = (
        "import sys; from keras_transformer.apps.cli import main\n"
        "print(*[main(words.split()) for words in sys.argv[1:]])\n"
        "print('tensorflow' in sys.modules)"
    )
    done = tiny_run.in_a_process("-c", program, *commands, cwd=tmp_path)
    assert done.stdout.split() == [*"1" * len(commands), "False"], done.stderr
    assert len(done.stderr.splitlines()) == len(commands)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return tiny_run.write_pairs(tmp_path_factory.mktemp("pairs") / "train.tsv")


@pytest.fixture
def asked(monkeypatch):
    """What `train` was called with; nothing is trained."""
    calls = []
    monkeypatch.setattr(
        training, "train", lambda *arguments, **more: calls.append((*arguments, more))
    )
    monkeypatch.setattr(training, "read_summary", lambda run: {})
    monkeypatch.setattr(training, "summary_lines", lambda summary, run: [])
    return calls


def config_of(asked, pairs, *flags):
    """The options of the command with some flags."""
    words = ["train", "--train", pairs, "--run", "unused", *flags]
    assert cli.main(list(map(str, words))) == 0
    return asked.pop()[2]


def other_value(field):
    """A value that is not the field's default, as a word for its flag."""
    if field.metadata["choices"]:
        return [c for c in field.metadata["choices"] if c != field.default][0]
    if field.name in ("activation", "freeze"):
        return "gelu"
    if field.name == "keep":
        return "ratio"
    if "float" in field.type:
        return (field.default or 0.5) * 0.95
    return (field.default or 8) * 2


# Separate vocabularies cannot share all three matrices, for example.
COMPANIONS = {
    "joint_vocabulary": {"tied_embeddings": "none"},
    "schedule": {"learning_rate": 0.5},
    "decay_steps": {"schedule": "cosine", "learning_rate": 0.5},
}


def test_every_flag_of_an_option_sets_it_and_nothing_else(asked, pairs):
    sections = [field.default for field in dataclasses.fields(RunConfig)]
    fields = [field for part in sections for field in dataclasses.fields(part)]
    seen = 0
    for field in fields:
        flag = "--" + field.name.replace("_", "-")
        if flag not in PARSERS["train"].flags():
            continue
        if field.type.startswith("bool"):
            value = not field.default
            words = [flag if value else f"--no-{flag[2:]}"]
        else:
            value = other_value(field)
            words = [flag, value]
        more = COMPANIONS.get(field.name, {})
        for name, one in more.items():
            words += ["--" + name.replace("_", "-"), one]
        wanted = RunConfig.preset("base").with_options(**{field.name: value} | more)
        assert config_of(asked, pairs, "--preset", "base", *words) == wanted
        seen += 1
    assert seen > 35


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--mixed-precision", "bfloat16"),
        ("--mixed-precision --epochs 3", "bfloat16"),
        ("--mixed-precision=float16", "float16"),
        ("--mixed-precision none", "none"),
        ("", None),
    ],
)
def test_half_precision_is_bfloat16_unless_float16_is_said(asked, pairs, words, value):
    config = config_of(asked, pairs, *words.split())
    assert config.training.mixed_precision == value


def test_the_number_of_pairs_chooses_a_preset_that_is_said(asked, pairs, capsys):
    assert config_of(asked, pairs) == RunConfig.preset("micro")
    (line,) = capsys.readouterr().out.splitlines()
    assert line == "the preset for 40 pairs is micro: other options override it"
    small = RunConfig.preset("small")
    assert config_of(asked, pairs, "--preset", "small") == small
    assert capsys.readouterr().out == ""
    choices = next(a.choices for a in PARSERS["train"]._actions if a.dest == "preset")
    assert list(choices) == list(PRESETS)


def test_flags_go_before_files_which_go_before_the_preset(
    asked, pairs, tmp_path, run_directory
):
    path = tmp_path / "options.json"
    values = {"model": {"d_model": 96, "d_ff": 77, "num_heads": 3, "key_dim": 5}}
    path.write_text(json.dumps(values), encoding="utf-8")
    flags = "--preset", "tiny", "--config", path, "--d-model", "48"
    model = config_of(asked, pairs, *flags).model
    assert (model.d_model, model.d_ff, model.num_heads) == (48, 77, 3)
    # The preset, as the file does not say; and an option that has no flag.
    assert (model.num_encoder_layers, model.key_dim) == (4, 5)
    # A run that exists keeps its options.
    run = RunConfig.preset("small", epochs=3, key_dim=5)
    (tmp_path / "config.json").write_text(run.to_json(), encoding="utf-8")
    flags = "--run", tmp_path, "--epochs", "4"
    assert config_of(asked, pairs, *flags) == run.with_options(epochs=4)
    tiny = RunConfig.preset("tiny", epochs=4)
    assert config_of(asked, pairs, *flags, "--preset", "tiny") == tiny
    # One that begins with another has its sizes.
    config = config_of(asked, pairs, "--init", run_directory, "--epochs", "2")
    begun = RunConfig.load(run_directory / "config.json")
    assert (config.model, config.decoding) == (begun.model, begun.decoding)
    assert config.tokenizer == begun.tokenizer
    wanted = RunConfig().with_options(**FINE_TUNING, epochs=2, robust=False)
    assert config.training == wanted.training


def test_pairs_are_one_file_two_or_several_mixed(asked, tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / name).write_text("x\ty\n", encoding="utf-8")
    (tmp_path / "x.csv").write_text("n,de,en\n1,eins,one\n", encoding="utf-8")
    a, b, table = (str(tmp_path / name) for name in ("a", "b", "x.csv"))

    def train(*words):
        return cli.main(["train", "--run", "unused", *words])

    assert train("--train", a, b, "--valid", a, "--tokenizer", a, b) == 0
    text, _, _, validation, more = asked.pop()
    assert [tuple(pair)[1:] for pair in text.pairs()] == [("x\ty", "x\ty")]
    assert [tuple(pair)[1:] for pair in validation.pairs()] == [("x", "y")]
    assert more["tokenizers"] == (a, b)
    assert train("--train", table, "--columns", "en", "de") == 0
    assert [tuple(pair)[1:] for pair in asked.pop()[0].pairs()] == [("one", "eins")]
    mix = ["--train", a, "--train", a, "--train-weights"]
    assert train(*mix, "1", "4") == 0
    parts = asked.pop()[0].parts
    assert [(str(part.files[0]), weight) for part, weight in parts] == [(a, 1), (a, 4)]
    for words, line in (
        ([*mix, "1"], "`--train-weights` must have a number for each `--train`"),
        (["--train", a, "--tokenizer", a, a, a], "`--tokenizer` takes one file for"),
        (["--train", a, b, "--columns", "x", "y"], "need data with columns"),
    ):
        capsys.readouterr()
        assert train(*words) == 1
        assert line in capsys.readouterr().err
