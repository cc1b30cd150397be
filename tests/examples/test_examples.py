"""Every example and experiment runs, at a tiny size, and does what it says."""

import gzip
import importlib
import math
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests import tiny_run

EXAMPLES = Path(__file__).parents[2] / "examples"
WHY, DOCS = EXAMPLES / "why", EXAMPLES.parent / "docs"


def load(name):
    """Imports an example; some import others."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return importlib.import_module(name)


@pytest.fixture
def load_why(scripts):
    """Imports an experiment of the folder `why`."""
    return scripts(WHY)


def tone(digit, voice, speed):
    """A tenth of a second of a digit's tone, in the place of speech."""
    pitch = 300 * (digit + 1) + sum(map(ord, voice)) % 97
    return 0.3 * np.sin(2 * np.pi * pitch * np.arange(2205) / 22050)


# Words of the command line, and whether what it returns is right: those that only have
# to run, and those that have learned.
RUNS = [
    ("compose_layers", "--epochs 1 --rows 64", lambda x: x.count_params() > 0),
    ("conformer", "--recordings 8 --epochs 1", lambda x: len(x) == 2),
    (
        "recurrent_sentences", "--count 40 --epochs 1 --cell lstm --plot {picture}",
        lambda x: len(x) == 4,
    ),
    ("speech", "--recordings 8 --epochs 1 --task voice", lambda x: 0 <= min(x)),
    (
        "bert", "--epochs 20 --picture {picture}", lambda x: x[0] > 0.9 and x[1] > 0.5,
    ),
    ("caption_images", "--plot {picture}", lambda x: x > 0.8),
    ("classify_graphs", "--task amide", lambda x: x[0] > 0.9 > 0.8 > x[1]),
    ("classify_images", "--epochs 3 --picture {picture}", lambda x: x > 0.7),
    ("classify_nodes", "--picture {picture}", lambda x: x[0] > x[1] + 0.1),
    (
        "classify_sentences", "--picture {picture}",
        lambda x: x[0] > 0.9 and 0.3 < x[1] < 0.7,
    ),
    ("fit_arrays", "", lambda x: x > 0.9),
    ("from_keras_hub", "", lambda x: max(x) < 1e-5),
    # By chance it is 0.125.
    ("linformer_attention", "", lambda x: x > 0.5),
    *(
        (f"{kind}_attention", "", lambda x: x > 0.9)
        for kind in ("additive", "lsh", "performer", "relu")
    ),
    ("linear_attention", "", lambda x: x > 0.5),
    ("local_attention", "--length 100 --window 7", lambda x: x < 1e-5),
    ("plain_transformer", "", lambda x: x > 0.95),
    # Fewer than six in ten frames are silence.
    ("speech", "--recordings 64 --epochs 15", lambda x: x[0] > 0.7),
    # Six seeds read 0.959 to 0.978 after 8 epochs, and 0.900 to 0.967 after 6.
    ("tag_words", "--epochs 8 --picture {picture}", lambda x: x[0] > 0.9 > x[1]),
]  # fmt: skip
# They import scikit-learn.
NEED_DATA = {"caption_images", "classify_graphs", "classify_images", "classify_nodes"}
NEED_DATA |= {"bert", "classify_sentences", "conformer", "speech"}
# Run by tests of their own: here, in test_example_models.py, in test_clients.py.
OTHERS = {"encoder_parts", "language_model", "nearest_words", "train_multi30k"}
OTHERS |= {"recurrent_translation", "recurrent_translator"}
OTHERS |= {"grpc_client", "rest_client", "serve_saved_model"}


@pytest.mark.one_case("compose_layers --epochs 1 --rows 64")
@pytest.mark.parametrize(
    ("name", "words", "is_right"),
    [pytest.param(*run, id=f"{run[0]} {run[1]}") for run in RUNS],
)
def test_it_runs_and_learns(name, words, is_right, tmp_path):
    if name in NEED_DATA:
        pytest.importorskip("sklearn")
    if "{picture}" in words:
        pytest.importorskip("matplotlib")
    picture, speak = tmp_path / "picture.png", {}
    if name in ("conformer", "speech"):
        speak = {"speak": tone}
    found = load(name).main(words.format(picture=picture).split(), **speak)
    assert is_right(found), found
    if "{picture}" in words:
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_every_example_is_short_and_has_a_test():
    files = {path.stem: path for path in EXAMPLES.glob("*.py")}
    assert files.keys() == {name for name, *_ in RUNS} | OTHERS
    # A page or two; what holds a model or an attention of its own may be longer.
    longer = {"recurrent_translator": 270, "lsh_attention": 260}
    longer |= {"local_attention": 180, "plain_transformer": 260}
    for name, path in files.items():
        lines = path.read_text("utf-8").splitlines()
        assert len(lines) <= longer.get(name, 160), name


def test_the_plain_transformer_is_the_packages(rng):
    plain = load("plain_transformer")
    model = plain.PlainTransformer(41, 2, 12, 16, 3, dropout=0.1)
    texts, _ = plain.dates(7, seed=3)
    source = plain.ids_of(texts)
    model((source, source[:, :5]))
    config = kt.TransformerConfig(
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_model=12,
        d_ff=16,
        num_heads=3,
        source_vocabulary_size=41,
        target_vocabulary_size=41,
    )
    ours = kt.Transformer(config)
    ours((source, source[:, :5]))
    weights = ours.weights
    names = {one.path.removeprefix(f"{ours.name}/"): one for one in weights}
    assert model.table.keys() == {name for name in names if "seed_" not in name}
    for name, weight in model.table.items():
        # With these sizes the outputs differ, and do not repeat one token for ever.
        is_gamma = name.endswith("gamma")
        values = rng.normal(is_gamma, 1.0 if is_gamma else 0.3, weight.shape)
        weight.assign(values)
        names[name].assign(weight)
    target_in = rng.integers(3, 41, (7, 9))
    logits = ours((source, target_in))
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(model((source, target_in))),
        keras.ops.convert_to_numpy(logits),
        rtol=1e-4,
        atol=1e-4,
    )
    decoding = kt.DecodingConfig(beam_size=1, max_output_length=19)
    found = kt.Generator(ours, decoding).search(source)
    strings = list(map(plain.text_of, np.asarray(found.ids)[:, 0].tolist()))
    assert list(map(plain.text_of, model.greedy(source).tolist())) == strings
    assert len(set(strings)) > 3


def write(path, text):
    path.write_bytes(gzip.compress(text.encode("utf-8")))
    return str(path)


def idx(array):
    """A file of MNIST's format."""
    sizes = np.array(array.shape, ">i4").tobytes()
    return gzip.compress(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())


def write_images(folder):
    rng = np.random.default_rng(1)
    for part, count in (("train", 7), ("valid", 3)):
        images = rng.integers(0, 256, (count, 6, 4), "uint8")
        classes = rng.integers(0, 10, count).astype("uint8")
        for name, array in (("images-idx3", images), ("labels-idx1", classes)):
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(idx(array))
    return ["--images", str(folder)]


def write_nodes(folder):
    rows = ["a\ttrain\t0\t0 2", "7\ttrain\t1\t1", "0\tvalid\t0\t0 3", "b\tnone\t-1\t"]
    nodes = write(folder / "n.gz", "\n".join(rows) + "\n")
    return ["--files", nodes, write(folder / "e.gz", "a\t0\n7\tb\n")]


def write_tags(folder):
    lines = "The dog sleeps .\tDET NOUN VERB PUNCT\nDogs sleep\tNOUN VERB\n"
    return ["--files", *[write(folder / "x.gz", 3 * lines)] * 2]


def write_sentences(folder):
    lines = "a good film\t1\na bad film\t0\n"
    return ["--files", *[write(folder / "x.gz", 6 * lines)] * 2]


# What writes the files that a person would bring, and the score of the baseline.
FILES = {
    "classify_images": (write_images, None),
    "classify_nodes": (write_nodes, 1),
    "classify_sentences": (write_sentences, 1),
    "tag_words": (write_tags, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_files_are_read_and_learned(name, tmp_path):
    if name in NEED_DATA:
        pytest.importorskip("sklearn")
    write_files, baseline = FILES[name]
    picture = ["--picture", str(tmp_path / "picture.png")]
    found = load(name).main([*write_files(tmp_path), "--epochs", "1", *picture])
    accuracy, *rest = np.atleast_1d(found)
    assert 0 <= accuracy <= 1
    assert rest == ([] if baseline is None else [baseline])


def test_a_graph_of_files_is_that_of_the_files(tmp_path):
    pytest.importorskip("sklearn")
    _, *paths = write_nodes(tmp_path)
    features, links, classes, splits = load("classify_nodes").read_graph(*paths)
    expected = [[1, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]]
    np.testing.assert_array_equal(features, expected)
    np.testing.assert_array_equal(links, [[0, 2], [1, 3]])
    assert classes.tolist() == [1, 2, 1, 0]
    assert splits.tolist() == ["train", "train", "valid", "none"]


def test_composed_layers_survive_saving(tmp_path):
    example = load("compose_layers")
    model, (ids, _) = example.make_model(), example.make_data(8, seed=3)
    layer = next(x for x in model.layers if isinstance(x, example.GatedEncoderLayer))
    assert isinstance(layer.feed_forward, example.GatedFeedForward)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(ids), model(ids), atol=1e-6)
    longer = np.pad(ids, [(0, 0), (0, 5)])
    np.testing.assert_allclose(model(longer), model(ids), atol=1e-5)


def test_the_recipe_trains_and_scores(tmp_path):
    example = load("train_multi30k")
    config = example.CONFIG
    config = config.replace(
        model=config.model.replace(
            num_encoder_layers=1, num_decoder_layers=1, d_model=16, d_ff=32, num_heads=2
        ),
        tokenizer=config.tokenizer.replace(vocabulary_size=400),
        training=config.training.replace(max_updates=2, jit_compile=False),
        decoding=config.decoding.replace(beam_size=1, max_extra_length=3),
    )
    bleu = example.main(["--run", str(tmp_path / "run")], config)
    assert 0 <= bleu <= 100
    assert (tmp_path / "run" / "test.translations.txt").is_file()


@pytest.mark.parametrize("name", ["speech", "conformer"])
def test_without_espeak_the_example_says_what_to_install(name, monkeypatch):
    example = load(name)
    monkeypatch.setattr(example.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="espeak-ng must be installed"):
        example.main([])


OF_LANGUAGE = ["--epochs", "3", "--context", "16", "--layers", "1", "--width", "16"]


def test_a_text_is_learned_scored_continued_and_drawn(tmp_path, capsys):
    example = load("language_model")
    with gzip.open(tmp_path / "text.gz", "wt") as file:
        file.write("abcd" * 4000)
    (tmp_path / "tail.txt").write_text("abcd" * 40 + "?")
    files = ["--text", tmp_path / "text.gz", "--tail", tmp_path / "tail.txt"]
    curve = tmp_path / "curve.png"
    words = [*files, *OF_LANGUAGE, "--prompt", "ab", "--curve", curve]
    nats = example.main(list(map(str, words)))
    assert nats < 0.5 * math.log(4)
    *_, sample, score = capsys.readouterr().out.splitlines()
    assert sample.startswith("abcdabcd") and len(sample) >= 400
    assert score.startswith(f"{nats / math.log(2):.3f} bits")
    assert curve.stat().st_size > 1000


def test_the_nearest_words_are_those_of_the_models_own_vectors(tmp_path, capsys):
    example = load("nearest_words")
    translator = tiny_run.translator()
    translator.save(tmp_path)
    words = ["der", "Donaudampfschiff", "--count", "4"]
    found = example.main([str(tmp_path), *words, "--analogy", "der", "the", "b"])
    assert "'Donaudampfschiff' must be one piece" in capsys.readouterr().out
    matrix = keras.ops.convert_to_numpy(translator.model.source_embedding.embeddings)
    directions = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    tokenizer = translator.tokenizers.source
    ids = [example.id_of(tokenizer, word) for word in ("der", "the", "b")]
    # Special pieces, bytes and what was given are no answers.
    for name, given, signs in (
        ("der", ids[:1], [1]),
        ("der - the + b", ids, [1, -1, 1]),
    ):
        vector = np.array(signs) @ directions[given]
        cosines = directions @ vector / np.linalg.norm(vector)
        cosines[[*range(268), *given]] = -2
        best = np.argsort(-cosines)[: len(found[name])]
        assert [piece for piece, _ in found[name]] == tokenizer.pieces(best)
        shown = [cosine for _, cosine in found[name]]
        np.testing.assert_allclose(shown, cosines[best], rtol=1e-5)


# The experiments on why the parts are there.

PAGES = ("experiments.md", "../examples/README.md")
# What several programs share.
SHARED = {"corpora", "long_range_tasks", "report", "tasks", "translation"}


def is_share(values):
    return bool(np.all((np.asarray(values) >= 0) & (np.asarray(values) <= 1)))


def mask_is_worth(found, _):
    """Told the right words so far or its own: alike with the mask, not without it."""
    _, forced, alone, _ = found["with the mask"]
    _, forced_without, alone_without, _ = found["without"]
    is_alike = alone == pytest.approx(forced, rel=1e-4)
    return is_alike and alone_without > 1.2 * forced_without


def scaling_saves_the_gradient(found, _):
    """Entropy, largest weight and gradient of wide unscaled scores, not of scaled."""
    return all(
        (found[1024, is_scaled][1] < found[4, is_scaled][1] / 4) != is_scaled
        and (found[1024, is_scaled][2] > 0.9) != is_scaled
        and (found[1024, is_scaled][3] < found[4, is_scaled][3] / 2) != is_scaled
        for is_scaled in (False, True)
    )


def has_the_counts_of_table_1(found, _):
    """Multiplications, sequential operations and the longest path, by hand."""
    n, d = 16, 8
    expected = {
        ("self-attention", n): (4 * n * d**2 + 2 * n**2 * d, 4, 1),
        ("recurrence", n): (6 * n * d**2, n, n),
        ("convolution", n): (3 * n * d**2, 1, math.ceil((n - 1) / 2)),
        ("dilated convolution", n): (3 * n * d**2, 1, 3),
        ("dilated convolution", 8): (3 * 8 * d**2, 1, 2),
    }
    return found | expected == found


def only_attention_sees_far(found, _):
    return found["window"][0][3][0] < 0.65 and found["attention"][0][3][0] > 0.9


PAIRS = "--pairs 40 --tests 20 --updates 2"
TASK = "--length 3 --updates 2 --seeds 1"
# Words of the command line, and whether what `main` returns is right. At a tiny size
# it only has to run; the others have learned, or measure what needs no learning.
EXPERIMENTS = {
    "causal": ("--pairs 60 --tests 60 --updates 60", mask_is_worth),
    "convolutions": ("--widths 7 512", lambda x, _: max(x.values()) < 1e-6),
    "heads": (f"--heads 16 {TASK}", lambda x, _: is_share(x[16])),
    "images": (
        "--updates 3 --seeds 2 --amounts 20 40 --plot {plot}",
        lambda x, _: all(len(runs) == 2 and is_share(runs) for runs in x.values()),
    ),
    "lengths": (
        f"{PAIRS} --kinds learned --plot {{plot}}",
        lambda x, _: max(x["learned"][0])[0] > 9,
    ),
    "long_range": (
        "--length 40 --batch 4 --updates 2 --tasks retrieval --kinds linformer lsh",
        lambda x, _: is_share([*x.values()]),
    ),
    "long_range_cost": (
        "--lengths 32 --kinds full linear --rows 1 --turns 1",
        lambda x, _: x[32, "full"][0] == 1.0 and x[32, "linear"][0] > 0,
    ),
    # With a bias heads become a convolution as it grows.
    "neighbour_heads": (
        "--length 12",
        lambda x, _: max(x[(3,)], x[(11,)], x[(3, 3)], x[100.0]) < 1e-6 < 0.1 < x[0.1],
    ),
    "optimizers": (
        f"--optimizers SGD --factors 1.0 {TASK.replace(' --seeds 1', '')}",
        lambda x, _: all(np.shape(rows) == (1, 1) for rows in x.values()),
    ),
    "positions": (
        "--length 8 --updates 2 --seeds 1 --kinds learned relative recurrent "
        "--plot {plot}",
        lambda x, _: [np.shape(curves) for curves in x.values()] == [(1, 32)] * 3,
    ),
    "regularisation": (
        f"{PAIRS} --settings none --seeds 1",
        lambda x, _: [np.shape(rows) for rows in x.values()] == [(1, 4)],
    ),
    "scale": ("--widths 4 1024 --plot {plot}", scaling_saves_the_gradient),
    "scores": (f"{TASK} --widths 9 --kinds additive", lambda x, _: len(x) == 1),
    "table_1": ("--lengths 8 16 --width 8", has_the_counts_of_table_1),
    # Three standard deviations of a share of 2000 draws are at most 0.034.
    "temperature": (
        "--draws 2000 --plot {plot}",
        lambda x, program: all(
            np.abs(shares - program.probabilities(temperature)).max() < 0.034
            for temperature, shares in x.items()
        ),
    ),
    "windows": ("--seeds 1 --kinds window attention", only_attention_sees_far),
}  # fmt: skip
QUICK = {"convolutions", "neighbour_heads", "scale", "table_1", "temperature"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in QUICK else pytest.mark.slow)
        for n in EXPERIMENTS
    ],
)
def test_a_program_runs_and_finds_what_it_says(load_why, name, tmp_path):
    words, is_right = EXPERIMENTS[name]
    if name == "images":
        pytest.importorskip("sklearn")
    if "{plot}" in words:
        pytest.importorskip("matplotlib")
    plot = tmp_path / "plot.png"
    arguments = [  # Names of several words.
        {"SGD": "SGD with momentum", "none": "none of them"}.get(word, word)
        for word in words.format(plot=plot).split()
    ]
    program = load_why(name)
    found = program.main(arguments)
    assert is_right(found, program), found
    if "{plot}" in words:
        assert plot.read_bytes().startswith(b"\x89PNG")


def test_every_program_has_a_test_and_stands_on_a_page():
    page = "".join((DOCS / name).read_text("utf-8") for name in PAGES)
    programs = {path.stem for path in WHY.glob("*.py")}
    assert programs == {*EXPERIMENTS} | SHARED
    longer = {"windows": 175}
    for name in programs:
        is_named = f"python examples/why/{name}.py" in page
        assert is_named != (name in SHARED), name
        lines = (WHY / f"{name}.py").read_text("utf-8").splitlines()
        assert len(lines) <= longer.get(name, 160), name


# Their tasks have the answers that they say.


def test_answers_of_the_tasks_are_scored_alone(load_why):
    tasks = load_why("tasks")
    given = np.array([[9, 1, 8, 2, 3, 4]])
    # 9 and 8 ask for the symbol four places on, 1 and the others for that two on.
    assert tasks.choose(given).tolist() == [[3, 2, 9, 4, 9, 1]]
    ids_in, ids_out = tasks.make_rows("sort", 3, 5, seed=1)
    assert not ids_out[:, :5].any()
    np.testing.assert_array_equal(ids_out[:, 5:], np.sort(ids_in[:, :5]))
    np.testing.assert_array_equal(ids_out[:, 5:-1], ids_in[:, 6:])
