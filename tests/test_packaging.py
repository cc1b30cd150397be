"""The wheel, the source distribution, what an installed package says and can."""

import ast
import configparser
import dataclasses
import email
import importlib.metadata
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import keras_transformer
from keras_transformer import config, extras
from keras_transformer.extras import how_to_install
from tests.tiny_run import ROOT, in_a_process

BUILD = """
import sys
from setuptools import build_meta
getattr(build_meta, "build_" + sys.argv[1])(sys.argv[2])
"""
# `.ci/run` builds them, the README's test command does not.
built = pytest.mark.slow
INFO = re.compile(r"keras_transformer_seq2seq-[\w.]+\.dist-info/")


def build(kind, source, target):
    """Builds in a directory, as `pip` does without isolation; returns the file."""
    target.mkdir()
    in_a_process("-c", BUILD, kind, target, cwd=source).check_returncode()
    (file,) = target.iterdir()
    return file


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """A copy of the project, its source distribution, and the wheel made of that."""
    pytest.importorskip("setuptools", "77", "what pyproject.toml builds with")
    folder = tmp_path_factory.mktemp("distributions")
    ignored = shutil.ignore_patterns(
        "__pycache__", ".*", "*.egg-info", "build", "dist", "runs", "saved_models",
        "data", "shared",
    )  # fmt: skip
    shutil.copytree(ROOT, folder / "project", ignore=ignored)
    sdist = build("sdist", folder / "project", folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return folder / "project", sdist, build("wheel", unpacked, folder / "wheel")


@pytest.fixture
def wheel(distributions):
    with zipfile.ZipFile(distributions[2]) as archive:
        yield archive


@pytest.fixture
def metadata(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    return email.message_from_bytes(wheel.read(name))


def package_files():
    package = ROOT / "keras_transformer"
    return {
        str(path.relative_to(ROOT))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@built
def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    names = {name for name in wheel.namelist() if not INFO.match(name)}
    assert names == package_files()
    page = "apps/serving/page/index.html"
    data = ("apps/cli/verbs.toml", "py.typed", "__init__.pyi", page)
    assert {f"keras_transformer/{name}" for name in data} <= names
    about = {INFO.sub("", name) for name in wheel.namelist() if INFO.match(name)}
    assert {"METADATA", "RECORD", "entry_points.txt", "licenses/LICENSE"} <= about


@built
def test_the_source_distribution_holds_what_builds_it_and_no_tests(distributions):
    with tarfile.open(distributions[1]) as archive:
        files = [item.name for item in archive.getmembers() if item.isfile()]
    names = {name.partition("/")[2] for name in files}
    package = {name for name in names if name.startswith("keras_transformer/")}
    assert package == package_files()
    assert {name for name in names - package if ".egg-info/" not in name} == {
        "CHANGELOG.md", "LICENSE", "MANIFEST.in", "PKG-INFO", "PYPI.md", "README.md",
        "pyproject.toml", "setup.cfg",
    }  # fmt: skip


@built
def test_the_metadata_is_what_an_index_shows(metadata):
    assert metadata["Name"] == "keras-transformer-seq2seq"
    assert metadata["License"] == "Apache-2.0"
    assert SpecifierSet(metadata["Requires-Python"]) == SpecifierSet(">=3.11,<3.14")
    # There is no address of the project to name.
    assert metadata["Home-page"] is None and metadata["Project-URL"] is None
    needs = [Requirement(text) for text in metadata.get_all("Requires-Dist")]
    always = {need.name for need in needs if "extra" not in str(need.marker)}
    assert always == {"keras", "numpy", "lazy_loader"}
    names = {need.name for need in needs if "extra" in str(need.marker)}
    assert {"tensorflow", "tensorflow-text", "keras-nlp", "pytest"} <= names


@built
def test_the_description_has_no_link_into_the_project(metadata):
    """They lead nowhere on an index, and pictures are not shown."""
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = metadata.get_payload(decode=True).decode("utf-8")
    assert text.strip() == (ROOT / "PYPI.md").read_text("utf-8").strip()
    tokens = [
        inner
        for token in MarkdownIt().parse(text)
        for inner in (token, *(token.children or ()))
    ]
    links = [t.attrs["href"] for t in tokens if t.type == "link_open"]
    links += [t.attrs["src"] for t in tokens if t.type == "image"]
    assert links and all(link.startswith("https://") for link in links)
    readme = (ROOT / "README.md").read_text("utf-8")
    code = [token.content for token in tokens if token.type == "fence"]
    assert code and all(block in readme for block in code)


# What an installed package says of itself.

CONFIGS = [value for value in vars(config).values() if dataclasses.is_dataclass(value)]


@pytest.fixture
def setup():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def test_the_version_is_that_of_the_distribution(setup, monkeypatch):
    name = setup["metadata"]["name"]
    assert keras_transformer.__version__ == importlib.metadata.version(name)
    assert keras_transformer.__version__ == setup["metadata"]["version"]
    monkeypatch.setattr(keras_transformer, "_DISTRIBUTION", "not-installed-at-all")
    with pytest.raises(AttributeError, match="once not-installed-at-all is installed"):
        keras_transformer.__version__  # noqa: B018


def test_every_version_has_its_changes(setup):
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[0] in ("Unreleased", setup["metadata"]["version"])
    assert setup["metadata"]["version"] in headings
    assert setup["metadata"]["author"]


def requirements(setup, extra):
    """The packages of an extra, with those of the extras that it names."""
    found = set()
    for line in setup["options.extras_require"][extra].split("\n"):
        if line and line[0] != "#":
            need = Requirement(line)
            is_own = need.name == setup["metadata"]["name"]
            found |= {need.name} - {setup["metadata"]["name"]}
            for name in need.extras if is_own else ():
                found |= requirements(setup, name)
    return found


def test_an_extra_has_all_that_it_needs_of_another(setup):
    base = setup["options"]["install_requires"].split("\n")
    base = [Requirement(line).name for line in base if line and line[0] != "#"]
    assert base == ["keras", "numpy", "lazy_loader"]
    text = requirements(setup, "text")
    assert {"tensorflow", "tensorflow-text", "keras-nlp", "sacrebleu"} <= text
    names = {*setup["options.extras_require"]}
    assert all(text <= requirements(setup, name) for name in names - {"plots"})
    everything = set().union(*(requirements(setup, name) for name in names))
    # Those for a GPU have packages of the others.
    assert requirements(setup, "dev") == everything - {"jax"}
    heavy = {"ray", "kubernetes-validate", "ruff"}
    assert requirements(setup, "test") == everything - {"jax"} - heavy


def test_errors_advise_extras_that_can_be_installed(setup):
    assert how_to_install("plots").startswith('`pip install ".[plots]"` in a clone ')
    package, advised = ROOT / "keras_transformer", set()
    for path in [*package.rglob("*.py"), *(ROOT / "examples").rglob("*.py")]:
        source = path.read_text("utf-8")
        # No index has this distribution.
        assert "keras-transformer-seq2seq[" not in source, path
        calls = r"(?:how_to_install\(|required\([^)]*, )['\"]([\w-]+)['\"]\)"
        advised |= {*re.findall(calls, source)}
    advised |= {"text", *extras._EXTRAS.values()}
    assert {"plots", "import", "gpu-jax"} <= advised
    assert advised <= {*setup["options.extras_require"]}


@pytest.mark.parametrize("options", CONFIGS, ids=lambda options: options.__name__)
def test_every_option_has_its_line_in_the_docstring(options):
    arguments = options.__doc__.split("\nArgs:\n")[1]
    names = re.findall(r"^    (\w+): [A-Z0-9].*", arguments, re.MULTILINE)
    assert names == [field.name for field in dataclasses.fields(options)]
    assert max(map(len, arguments.splitlines())) <= 84


def test_the_stub_is_the_list_of_the_public_names(setup):
    assert dir(keras_transformer) == sorted([*keras_transformer.__all__, "__version__"])
    assert "Typing :: Typed" in setup["metadata"]["classifiers"]
    stub = Path(keras_transformer.__file__).with_suffix(".pyi").read_text("utf-8")
    names = []
    for node in ast.parse(stub).body:
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            name = ".".join(filter(None, ["keras_transformer", node.module]))
            module = importlib.import_module(name)
            value = getattr(keras_transformer, alias.name)
            assert value is getattr(module, alias.name)
            assert alias.asname == alias.name  # Else it is private to type checkers.
            names.append(alias.name)
    assert sorted(names) == keras_transformer.__all__
    assert "**/*.pyi" in setup["options.package_data"]["keras_transformer"]


# Without tensorflow-text, as on Windows, and without TensorFlow.

# Hides packages from every later import, as if they were not installed.
HIDE = """
import importlib.abc, sys

class Hidden(importlib.abc.MetaPathFinder):
    names = {"tensorflow_text", "keras_hub", "keras_nlp"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
for name in Hidden.names:
    sys.modules.pop(name, None)
"""
# Public names that need texts, and some that do not.
OF_TEXTS = {
    "Corpus", "Tokenizer", "TokenizerPair", "Translator", "import_model",
    "learn_tokenizers", "train",
}  # fmt: skip
OF_TENSORS = {
    "EncoderLayer", "Transformer", "Generator", "LiteTranslator", "RunConfig",
    "open_pairs",
}  # fmt: skip

FIT = """
Hidden.names |= {"fcntl", "resource"}  # Windows has neither.
import keras, numpy as np
import keras_transformer as kt

rng = np.random.default_rng(1)
config = kt.TransformerConfig(
    source_vocabulary_size=11, target_vocabulary_size=11, d_model=8, d_ff=13,
    num_heads=2, num_encoder_layers=1, num_decoder_layers=1,
)
translator = kt.Transformer(config)
source, target = rng.integers(4, 11, (3, 5)), rng.integers(4, 11, (3, 7))
translator.compile(kt.Adam(1e-3), kt.MaskedCrossentropy())
translator.fit((source, target), target, verbose=0)
translator.save("translator.keras")
again = keras.models.load_model("translator.keras")
outputs = kt.Generator(again, kt.DecodingConfig(beam_size=2)).search(
    source, np.full(3, 5)
)
print(outputs.ids.shape[:2])
Hidden.names -= {"fcntl", "resource"}
"""
NAMES = """
from keras_transformer.apps import cli

for name in dir(kt):
    value = getattr(kt, name)
    try:
        if type(value).__name__ == "_Missing" or name == "ExportedTranslator":
            value("none")
    except ImportError as error:
        print(name, error)
assert cli.main(["quickstart"]) == 1
"""
# What needs an extra is there, and says so when it is used.
WITHOUT_EXTRAS = """
Hidden.names |= {
    "tensorflow", "sentencepiece", "sacrebleu", "tensorboard", "matplotlib", "yaml",
    "starlette", "uvicorn", "ray", "onnx", "tf2onnx", "safetensors", "ai_edge_litert",
}
import inspect, pydoc
from keras_transformer import *
import keras_transformer as kt
from keras_transformer.apps import cli

members = dict(inspect.getmembers(kt))
assert members.keys() >= {*kt.__all__} and hasattr(kt, "plots")
assert "Translator" in pydoc.render_doc(kt) and "curves" in pydoc.render_doc(kt.plots)
assert not hasattr(kt.Translator, "__wrapped__")
print(sum(1 for member in members.values() if type(member).__name__ == "_Missing"))
for use in (
    lambda: kt.train([("a", "b")], "run"),
    lambda: kt.Translator.load("run"),
    lambda: kt.plots.training_curves("run"),
    lambda: kt.EncoderLayer(2, 8),
):
    try:
        use()
    except ImportError as error:
        print(error)
assert cli.main(["quickstart"]) == 1
"""
WITHOUT_BACKEND = """
Hidden.names |= {"tensorflow"}
import keras_transformer as kt

kt.RunConfig()
try:
    kt.EncoderLayer
except ImportError as error:
    print(error)
"""

WITHOUT_TENSORFLOW = """
sys.modules["tensorflow"] = None
import keras, numpy as np
import keras_transformer as kt

keras.utils.set_random_seed(1)
config = kt.TransformerConfig(
    source_vocabulary_size=23, target_vocabulary_size=23, d_model=16, d_ff=32,
    num_heads=2, num_encoder_layers=1, num_decoder_layers=1,
)
model = kt.Transformer(config, dtype="mixed_bfloat16")
rate = kt.TransformerSchedule(config.d_model, warmup_steps=20)
model.compile(
    keras.optimizers.Adam(rate, beta_2=0.98, epsilon=1e-9),
    loss=kt.MaskedCrossentropy(label_smoothing=0.1),
    metrics=[kt.MaskedAccuracy(), kt.Perplexity()],
)
ids = np.random.default_rng(1).integers(4, 9, (64, 7)).astype("int32")
ids[::3, 5:] = 0
history = model.fit((ids, ids), ids, batch_size=16, epochs=4, verbose=0).history
assert {"loss", "masked_accuracy", "perplexity"} == set(history)
print(float(history["loss"][0]), float(history["loss"][-1]))
"""


def run(program, directory, **environment):
    done = in_a_process("-c", HIDE + program, cwd=directory, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    "backend", ["tensorflow", pytest.param("jax", marks=pytest.mark.slow)]
)
def test_models_run_without_it_and_names_that_need_it_say_what_is_missing(
    tmp_path, backend
):
    """They are fitted, saved and searched."""
    pytest.importorskip(backend)
    lines, errors = run(FIT + NAMES, tmp_path, KERAS_BACKEND=backend)
    assert lines.pop(0) == "(3, 1)"
    names = {line.partition(" ")[0] for line in lines}
    assert OF_TEXTS | {"ExportedTranslator"} <= names and not OF_TENSORS & names
    for line in lines:
        assert "pip install 'tensorflow-text>=2.20,!=2.21.0,<2.22'" in line
    # So does the command line, in a line.
    assert "keras-transformer: error: Tokenizers need tensorflow-text" in errors
    assert "Traceback" not in errors


def test_without_extras_every_name_is_there_and_says_what_it_needs(tmp_path):
    pytest.importorskip("jax")
    lines, errors = run(WITHOUT_EXTRAS, tmp_path, KERAS_BACKEND="jax")
    how = ', which is not installed: `pip install ".[{}]"` in a clone of '
    how += "keras_transformer."
    assert int(lines[0]) >= len(OF_TEXTS)
    assert lines[1:] == [
        "`train` needs tensorflow" + how.format("text"),
        "`Translator` needs tensorflow" + how.format("text"),
        "`training_curves` needs matplotlib" + how.format("plots"),
    ]
    assert errors.endswith("error: This needs tensorflow" + how.format("text") + "\n")


def test_without_a_backend_the_error_says_how_to_get_one(tmp_path):
    lines, _ = run(WITHOUT_BACKEND, tmp_path, KERAS_BACKEND="tensorflow")
    (line,) = lines
    assert line.startswith("Keras needs a backend, and tensorflow is not installed: ")
    assert 'pip install ".[text]"' in line and "KERAS_BACKEND to jax or torch" in line


def test_the_error_names_what_an_installation_takes(setup):
    """All but Windows gets it; there the rest installs."""
    lines = setup["options.extras_require"]["text"].splitlines()
    needs = [Requirement(line) for line in lines if line and not line.startswith("#")]
    (text,) = (need for need in needs if need.name == "tensorflow-text")
    for system in ("Linux", "Darwin", "Windows"):
        is_taken = text.marker.evaluate({"platform_system": system})
        assert is_taken == (system != "Windows")
    source = (ROOT / "keras_transformer/text/tokenizer.py").read_text("utf-8")
    assert "'tensorflow-text>=2.20,!=2.21.0,<2.22'" in source
    assert text.specifier == SpecifierSet(">=2.20,!=2.21.0,<2.22")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_package_trains_where_tensorflow_cannot_be_imported(backend, tmp_path):
    pytest.importorskip(backend)
    lines, _ = run(WITHOUT_TENSORFLOW, tmp_path, KERAS_BACKEND=backend)
    first, last = map(float, lines[-1].split())
    assert last < first
