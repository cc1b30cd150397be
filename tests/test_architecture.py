"""The rules of the package's own source: who imports whom, docstrings, names.

The source is read, not run, so an import inside a function counts like any other.
"""

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import keras
import pytest

import keras_transformer
from tests.tiny_run import in_a_process

PACKAGE = "keras_transformer"
ROOT = Path(keras_transformer.__file__).parent

# The doors from the bottom up. Data flows text -> ids -> batches -> model -> search ->
# text, and a door imports from the levels below its own alone.
LEVELS = (
    {"extras", "files", "terminal", "types"},
    {"config", "quiet"},
    {"nn"},
    {"models", "text", "testing"},
    {"search"},
    # A run knows no other program, and a program no run but by its directory.
    {"formats", "training"},
    {"apps"},
)
LEVEL = {door: i for i, level in enumerate(LEVELS) for door in level}
# Within a door, from the bottom up; what is not named may import all of the door.
WITHIN = {
    "nn": ("kernels", "arguments", "masks", "losses", "optimizers", "layers"),
    "apps": ("serving", "bulk", "plots", "quickstart", "cli"),
}
# Doors that know less of the package than what lies below them.
KNOW_ONLY = {
    "nn": {"config", "extras", "types"},
    # It checks anybody's layers by what they do.
    "testing": {"config", "types"},
    # The model side and the text side meet above both.
    "text": {"config", "extras", "files"},
    "models": set(LEVEL) - {"text"},
}
# Modules that know less than their door.
MODULES_KNOW_ONLY = {
    # They are copied to machines without the package.
    "search.translation": {"text.spans"},
    "text.doubts": set(),
    "text.sentences": set(),
    "text.spans": {"text.sentences"},
    "formats.lite_translator": {
        "search.translation", "text.doubts", "text.sentences", "text.spans",
    },
}  # fmt: skip
# What a translator is decides what is written, so the writers stand above it. Its
# method `export` is the only import upwards.
UPWARDS = {"search.translator imports formats.exporters"}
MAY_IMPORT_TENSORFLOW = {"text", "formats", "training", "apps", "quiet"}
# The modules of the backend-free doors that use TensorFlow, inside functions: faster
# paths beside the general ones, for what is no operation of Keras, such as a write to a
# tensor in place, and the training step, of which each backend has its own.
HAVE_TENSORFLOW_PATHS = {
    f"{PACKAGE}.{name}"
    for name in (
        "models.batch_step",
        "models.tensorflow_step",
        "nn.kernels.caches",
        "nn.kernels.crossentropy",
        "nn.arguments",
        "nn.kernels.execution",
        "nn.kernels.keras_private",
        "nn.layers.attention",
        "nn.layers.dropout",
        "nn.optimizers",
        "search.compiled",
    )
}
# Strings come in and go out here: TensorFlow from the first line.
NEED_TENSORFLOW = {
    f"{PACKAGE}.search.{name}" for name in ("string_search", "strings", "translator")
}


@functools.cache
def sources():
    """The syntax tree of every module of the package, by its name."""
    trees = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        trees[".".join((PACKAGE, *parts))] = ast.parse(path.read_text("utf-8"))
    return trees


def door_of(module):
    """The file or folder below the package: "nn" of keras_transformer.nn.layers.x."""
    return module.split(".")[1] if "." in module else ""


def room_of(module):
    """What stands in a door: "layers" of keras_transformer.nn.layers.x."""
    return module.split(".")[2] if module.count(".") > 1 else ""


def imports_of(module):
    """Names of the modules that a module imports, anywhere in its source."""
    imported = set()
    for node in ast.walk(sources()[module]):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: a relative import"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                imported.add(submodule if submodule in sources() else node.module)
    return imported


def imports_of_the_package(module):
    return {
        name
        for name in imports_of(module)
        if name == PACKAGE or name.startswith(PACKAGE + ".")
    }


def test_every_door_stands_in_the_table_and_no_file_name_stands_twice():
    assert {door_of(module) for module in sources()} - {""} == set(LEVEL)
    assert len([door for door in LEVEL if (ROOT / door).is_dir()]) == 9
    names = [path.name for path in ROOT.rglob("*.py") if path.stem != "__init__"]
    assert sorted(names) == sorted(set(names))


def test_doors_import_only_from_below():
    offenders = set()
    for module in sources():
        door = door_of(module)
        for imported in imports_of_the_package(module) if door else ():
            other = door_of(imported)
            is_below = other == door or LEVEL[other] < LEVEL[door]
            if not is_below or other not in KNOW_ONLY.get(door, set(LEVEL)) | {door}:
                offenders.add(f"{module} imports {imported}".replace(PACKAGE + ".", ""))
    assert offenders == UPWARDS


def test_rooms_of_a_door_import_only_from_below():
    offenders = []
    for module in sources():
        door = door_of(module)
        rooms = WITHIN.get(door, ())
        for imported in imports_of_the_package(module) if room_of(module) else ():
            if door_of(imported) == door and room_of(imported) in rooms:
                levels = rooms.index(room_of(imported)), rooms.index(room_of(module))
                if levels[0] > levels[1]:
                    offenders.append(f"{module} imports {imported}")
    assert not offenders, "\n".join(offenders)


def test_what_is_copied_knows_nothing_of_the_package():
    for module, known in MODULES_KNOW_ONLY.items():
        imported = imports_of_the_package(f"{PACKAGE}.{module}")
        assert imported == {f"{PACKAGE}.{name}" for name in known}


def test_tensorflow_is_imported_only_where_it_is_needed():
    """Layers, models, losses and decoding run on the JAX and PyTorch backends."""
    offenders = []
    for module in sources():
        roots = {name.split(".")[0] for name in imports_of(module)}
        tensorflow = {root for root in roots if root.startswith(("tensorflow", "tf_"))}
        is_free = door_of(module) not in MAY_IMPORT_TENSORFLOW
        if tensorflow and is_free and module not in NEED_TENSORFLOW:
            offenders.append(f"{module} imports {', '.join(tensorflow)}")
    assert sorted(offenders) == [
        f"{module} imports tensorflow" for module in sorted(HAVE_TENSORFLOW_PATHS)
    ]
    for module in HAVE_TENSORFLOW_PATHS:
        imports = [
            node for node in sources()[module].body if isinstance(node, ast.Import)
        ]
        assert not any(alias.name == "tensorflow" for i in imports for alias in i.names)


def test_input_is_never_checked_with_assert_and_every_module_says_what_it_is():
    """`python -O` removes assert statements."""
    for module, tree in sources().items():
        asserts = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Assert)]
        assert not asserts, f"{module}:{asserts}"
        assert ast.get_docstring(tree), module


def test_autograph_can_read_what_a_graph_of_a_user_calls():
    """`tf.function` translates the functions that it calls, and has no word for `:=`.

    It would warn of each, and run it as it is.
    """
    doors = {"nn", "models", "search"}
    for module, tree in sources().items():
        nodes = ast.walk(tree) if door_of(module) in doors else ()
        named = [node.lineno for node in nodes if isinstance(node, ast.NamedExpr)]
        assert not named, f"{module}:{named}"


def public_objects():
    """Public classes and functions of the parts that the package offers names of."""
    found = {}
    for part in ("config", "models", "search", "text", "training", "formats", "testing",
                 "nn.layers", "nn.losses", "nn.masks", "nn.optimizers",
                 "training.evaluation", "apps.plots"):  # fmt: skip
        module_name = f"{PACKAGE}.{part}"
        module = importlib.import_module(module_name)
        for name in getattr(module, "__all__", vars(module)):
            value = getattr(module, name)
            made_here = getattr(value, "__module__", "").startswith(module_name)
            is_code = inspect.isclass(value) or inspect.isfunction(value)
            if is_code and made_here and not name.startswith("_"):
                found[f"{module_name}.{name}"] = value
    return found


def body_of(function):
    """The statements of a function, those of the functions inside it left out."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    nodes, pending = [], list(tree.body[0].body)
    while pending:
        node = pending.pop()
        nodes.append(node)
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            pending.extend(ast.iter_child_nodes(node))
    return nodes


def takes_arguments(function):
    return bool(set(inspect.signature(function).parameters) - {"self", "cls", "kwargs"})


def raises(function):
    """Whether it raises, itself or through a function named check_something."""
    for node in body_of(function):
        called = getattr(node, "func", None)
        name = getattr(called, "id", getattr(called, "attr", ""))
        if isinstance(node, ast.Raise) or name.lstrip("_").startswith("check_"):
            return True
    return False


def needed_sections(value):
    """Headings that the docstring of a class or function must have."""
    if not inspect.isclass(value):
        returns = [n for n in body_of(value) if isinstance(n, ast.Return) and n.value]
        needed = {"Args:": takes_arguments(value), "Returns:": returns}
        needed["Raises:"] = raises(value)
    elif (
        issubclass(value, tuple)
        or dataclasses.is_dataclass(value)
        or "__init__" not in vars(value)
    ):
        return set()  # Named fields say what they are where they stand.
    else:
        made = value.__init__
        needed = {"Args:": takes_arguments(made), "Raises:": raises(made)}
        is_called = issubclass(value, keras.layers.Layer | keras.losses.Loss)
        if is_called and "call" in vars(value):
            needed |= {"Call arguments:": True, "Returns:": True}
    return {name for name, is_needed in needed.items() if is_needed}


@pytest.mark.parametrize("name", public_objects())
def test_public_code_is_documented(name):
    """In full for the package's own names; of others, at least what they raise.

    The first line of the others may say what they take and return.
    """
    value = public_objects()[name]
    # The class's own: a dataclass without one gets its signature instead.
    docstring = value.__dict__["__doc__"] if inspect.isclass(value) else value.__doc__
    assert docstring and not docstring.startswith(f"{value.__name__}("), "no docstring"
    needed = needed_sections(value)
    if value.__name__ not in keras_transformer.__all__:
        needed &= {"Raises:", "Call arguments:"}
    lacking = needed - {line.strip() for line in docstring.splitlines()}
    assert not lacking, f"{name} lacks {', '.join(sorted(lacking))}"


MODULES = {
    "apps", "config", "formats", "layers", "losses", "masks", "models", "nn",
    "optimizers", "plots", "search", "testing", "text", "training",
}  # fmt: skip
NAMES = sorted(set(keras_transformer.__all__) - MODULES)


def test_modules_can_be_reached_as_attributes():
    found = {
        name for name in MODULES if inspect.ismodule(getattr(keras_transformer, name))
    }
    assert found == MODULES


@pytest.mark.parametrize("name", NAMES)
def test_public_name_resolves_and_shows_an_example(name):
    value = getattr(keras_transformer, name)
    assert value.__name__ == name
    is_record = dataclasses.is_dataclass(value) or hasattr(value, "_fields")
    assert is_record or "Example:" in value.__doc__


def own_public_methods(cls):
    """Public methods and properties of a class that none of its bases has."""
    for name, attribute in vars(cls).items() if inspect.isclass(cls) else ():
        is_code = isinstance(attribute, property | classmethod | staticmethod)
        is_code = is_code or inspect.isfunction(attribute)
        is_new = not any(hasattr(base, name) for base in cls.__bases__)
        if is_code and is_new and not name.startswith("_"):
            yield name, getattr(cls, name)


def test_public_methods_are_documented():
    for name, value in public_objects().items():
        for method_name, method in own_public_methods(value):
            assert method.__doc__, f"{name}.{method_name}"


def documented_arguments(value, section):
    """Yields the name and the text of each argument in a section of a docstring."""
    docstring = inspect.cleandoc(value.__doc__ or "") + "\n"
    for lines in re.findall(rf"^{section}:\n((?:    .*\n)+)", docstring, re.MULTILINE):
        for name, text in re.findall(
            r"^    (\w+): (.*(?:\n {8}.*)*)", lines, re.MULTILINE
        ):
            yield name, " ".join(text.split())


def signatures():
    """Public functions and methods, and the texts of their arguments, by name."""
    for name, value in public_objects().items():
        if not inspect.isclass(value):
            yield name, value, documented_arguments(value, "Args")
            continue
        yield name, value.__init__, documented_arguments(value, "Args")
        for call in {"call", "__call__"} & vars(value).keys():
            texts = documented_arguments(value, "Call arguments")
            yield f"{name}.{call}", getattr(value, call), texts
        for method_name, method in own_public_methods(value):
            if callable(method):
                texts = documented_arguments(method, "Args")
                yield f"{name}.{method_name}", method, texts


def test_defaults_that_docstrings_tell_are_those_of_the_signatures():
    checked = 0
    for name, function, texts in signatures():
        parameters = inspect.signature(function).parameters
        for argument, text in texts:
            told = re.search(r"\bdefault ('.*?'|[^\s;]+)(;|\.?$)?", text)
            if told is None or argument not in parameters:
                continue
            default = parameters[argument].default
            assert default is not inspect.Parameter.empty, f"{name}: {argument}"
            # Others than single values are words for what `None` stands for.
            try:
                value = ast.literal_eval(told[1].removesuffix("."))
            except (SyntaxError, ValueError):
                value = None
            value = None if told[2] is None else value
            assert default == value, f"{name}: {argument}"
            checked += 1
    assert checked > 100


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'keras_transformer' has no .* 'Nothing'"):
        keras_transformer.Nothing  # noqa: B018


def printed(script):
    done = in_a_process("-c", script)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# The command line's help, what needs no Keras and curves must not wait for a library;
# then a backend that Keras has and the package has not.
WITHOUT_KERAS = """
import os, sys, keras_transformer
from keras_transformer import TransformerConfig
from keras_transformer.apps import cli, serving
for words in (["--help"], ["train", "--help"], ["paint"]):
    try:
        cli.main(words)
    except SystemExit:
        pass
roots = {name.split(".")[0] for name in sys.modules}
slow = {"keras", "tensorflow", "jax", "torch", "numpy", "matplotlib", "starlette",
        "uvicorn", "asyncio"}
print("loaded:", sorted(roots & slow))
from keras_transformer.apps.plots import training_curves
print("loaded:", "keras" in sys.modules)
for name in [name for name in sys.modules if name.startswith("keras_transformer")]:
    del sys.modules[name]
os.environ["KERAS_BACKEND"] = "numpy"
try:
    import keras
except ValueError as error:
    print(error)
sys.meta_path.pop(0)
import keras
keras.config.backend = lambda: "openvino"
try:
    import keras_transformer
except ValueError as error:
    print(error)
"""


def test_importing_the_package_loads_no_library_and_refuses_another_backend():
    *_, names, has_keras, numpy, openvino = printed(WITHOUT_KERAS)
    assert (names, has_keras) == ("loaded: []", "loaded: False")
    rule = "must be tensorflow, jax or torch: set KERAS_BACKEND. Received: "
    assert numpy.endswith(f"{rule}KERAS_BACKEND=numpy")
    assert openvino.endswith(f"{rule}KERAS_BACKEND=openvino")


# Whatever comes first; `nn` and `models` are half imported when they import Keras.
FIRST_IMPORTS = (
    "import keras_transformer.quiet",
    "import keras_transformer",
    "import keras, keras_transformer",
    "from keras_transformer import RunConfig",
    "from keras_transformer.nn.layers import EncoderLayer",
    "import keras_transformer.nn.masks",
    "import keras_transformer.models.transformer",
    "import keras_transformer.search.beam",
)


@pytest.mark.one_case("import keras_transformer.quiet")
@pytest.mark.parametrize("first", FIRST_IMPORTS)
def test_files_load_whatever_was_imported_first(first, tmp_path):
    inputs = keras.Input((None, 6))
    outputs = keras_transformer.EncoderLayer(2, 10)(inputs)
    model = keras.Model(inputs, outputs)
    rate = keras_transformer.TransformerSchedule(6, warmup_steps=3)
    model.compile(keras_transformer.Adam(rate), "mse")
    model.save(tmp_path / "model.keras")
    script = f"""{first}
import keras
loader = keras.__spec__.loader
model = keras.models.load_model({str(tmp_path / "model.keras")!r})
print(type(model.layers[1]).__name__, type(model.optimizer).__name__)
names = ("LanguageModel", "TransformerSchedule", "MaskedAccuracy", "RotaryPositions")
registered = keras.saving.get_registered_object
print(*(registered(f"keras_transformer>{{name}}").__name__ for name in names))
print(type(loader).__name__, keras.__loader__ is loader)
"""
    assert printed(script) == [
        "EncoderLayer Adam",
        "LanguageModel TransformerSchedule MaskedAccuracy RotaryPositions",
        "SourceFileLoader True",
    ]
