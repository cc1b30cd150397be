"""What a type checker knows of the package, as a user's program shows it.

mypy takes long: `.ci/run` calls it, the README's test command does not.
"""

import inspect
import re
from pathlib import Path

import keras
import pytest

import keras_transformer
from keras_transformer.nn.layers import TransformerLayer
from keras_transformer.nn.layers.transformer_layer import LayerArguments
from keras_transformer.types import WeightOptions
from tests.tiny_run import ROOT, in_a_process

PACKAGE = Path(keras_transformer.__file__).parent
NAMES = keras_transformer.__all__
SCRIPT = Path(__file__).parent / "typing_script.py"


def checked(path):
    """Runs mypy on a file; returns its errors and notes as (kind, line, text)."""
    pytest.importorskip("mypy")
    done = in_a_process(
        "-m",
        "mypy",
        "--follow-imports=silent",
        "--ignore-missing-imports",
        "--no-error-summary",
        "--config-file=",
        path.name,
        cwd=path.parent,
        env={"MYPYPATH": str(ROOT)},
    )
    assert not done.stderr, done.stderr
    found = []
    for line in done.stdout.splitlines():
        kind = re.match(r"[^:]+:(\d+): (error|note): (.*)", line)
        assert kind, line
        found.append((kind[2], int(kind[1]), kind[3]))
    return found


def marked(word):
    """The lines of the script that end in a comment `# word: text`, with the text."""
    lines = enumerate(SCRIPT.read_text("utf-8").splitlines(), start=1)
    parts = ((number, line.partition(f"  # {word}: ")) for number, line in lines)
    return {number: text for number, (_, mark, text) in parts if mark}


@pytest.mark.slow
def test_exactly_the_marked_lines_are_errors_and_the_types_are_known(tmp_path):
    """Of the script, and of every public name after it."""
    lines = SCRIPT.read_text("utf-8").splitlines()
    public = {len(lines) + i: name for i, name in enumerate(NAMES, start=1)}
    lines += [f"reveal_type(keras_transformer.{name})" for name in public.values()]
    script = tmp_path / "script.py"
    script.write_text("\n".join(lines), encoding="utf-8")
    findings = checked(script)
    errors = {line: text for kind, line, text in findings if kind == "error"}
    expected = marked("error")
    assert sorted(errors) == sorted(expected)
    for line, text in expected.items():
        assert errors[line].startswith(text), f"line {line}: {errors[line]}"
    known = (each for each in findings if each[2].startswith("Revealed type is"))
    expected = marked("is") | {
        line: "ModuleType"
        if inspect.ismodule(getattr(keras_transformer, name))
        else "def"
        for line, name in public.items()
    }
    assert {line: short(text) for _, line, text in known} == expected


def short(text):
    """What a note reveals: `def` for a class or function, else without modules."""
    name = re.sub(r"\b(\w+\.)+", "", text.split('"')[1])
    return "def" if name.startswith("def ") else name


def functions_of(name):
    """A public function, or a class' own public methods."""
    value = getattr(keras_transformer, name)
    members = vars(value).items() if inspect.isclass(value) else [(name, value)]
    for key, member in members:
        function = getattr(member, "__func__", getattr(member, "fget", member))
        is_public = not key.startswith("_") or key in ("__init__", "__call__")
        if is_public and inspect.isfunction(function):
            if Path(function.__code__.co_filename).is_relative_to(PACKAGE):
                yield function


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_and_result_has_a_type(name):
    for function in functions_of(name):
        signature = inspect.signature(function)
        types = {p.name: p.annotation for p in signature.parameters.values()}
        if function.__name__ != "__init__":
            types["return"] = signature.return_annotation
        lacking = {key for key in types if types[key] is inspect.Signature.empty}
        assert lacking <= {"self", "cls"}, function.__qualname__


PUBLIC = [getattr(keras_transformer, name) for name in NAMES]
CLASSES = [value for value in PUBLIC if inspect.isclass(value)]
LAYERS = [cls for cls in CLASSES if issubclass(cls, keras.layers.Layer)]
LAYERS.remove(keras_transformer.ExactModel)  # Its arguments are Keras'.


@pytest.mark.parametrize("cls", LAYERS, ids=lambda cls: cls.__name__)
def test_a_layer_documents_its_own_arguments(cls):
    """What every layer of `Dense` layers takes is one entry, `**options`."""
    parameters = inspect.signature(cls).parameters.values()
    several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    expected = {p.name for p in parameters if p.kind not in several}
    if issubclass(cls, TransformerLayer):
        expected |= {*LayerArguments.__annotations__} - {*WeightOptions.__annotations__}
    if cls.__init__ is keras.layers.Layer.__init__:
        return
    # Python 3.13 removes the indentation of docstrings.
    text = inspect.cleandoc(cls.__doc__).split("\nArgs:\n")[1]
    section = re.split(r"\n\w[\w ]+:\n", text)[0]
    documented = re.findall(r"^    (\w+): ", section, re.MULTILINE)
    assert len(documented) == len(set(documented)) and set(documented) <= expected
    # Of another class, or told together with another one.
    told = {name for name in expected if f"`{name}`" in section} | {"name"}
    assert "*args: Arguments and options of" in section or expected - told <= set(
        documented
    )
