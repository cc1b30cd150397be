"""The examples of the models without a decoder run, at a tiny size."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from tests.test_examples import load

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")


def picture(tmp_path):
    return ["--picture", str(tmp_path / "picture.png")]


def write(path, text):
    path.write_bytes(gzip.compress(text.encode("utf-8")))
    return str(path)


def tagged(tmp_path, name):
    lines = ["The dog sleeps .\tDET NOUN VERB PUNCT", "Dogs sleep\tNOUN VERB"]
    return write(tmp_path / name, "\n".join(lines * 3) + "\n")


@pytest.mark.slow
def test_words_of_a_file_are_tagged(tmp_path):
    example = load("tag_words")
    files = ["--files", tagged(tmp_path, "t.gz"), tagged(tmp_path, "v.gz")]
    accuracy, baseline = example.main([*files, "--epochs", "1", *picture(tmp_path)])
    assert 0 <= accuracy <= 1
    assert baseline == 1


@pytest.mark.slow
def test_generated_words_are_tagged(tmp_path):
    # Six seeds read 0.959 to 0.978 after 8 epochs, and 0.900 to 0.967 after 6.
    arguments = ["--epochs", "8", *picture(tmp_path)]
    accuracy, baseline = load("tag_words").main(arguments)
    assert (tmp_path / "picture.png").stat().st_size > 1000
    assert accuracy > 0.9 > baseline


def test_features_of_a_word():
    features = load("tag_words").features_of("McX-12")
    starts, ends = ["m-", "mc-", "mcx-", "mcx--"], ["-2", "-12", "--12", "-x-12"]
    assert features == ["mcx-12", "shape XxX-9", *starts, *ends]


def test_most_frequent_tag_is_that_of_the_word_or_else_noun():
    train = [[("a", "X"), ("a", "Y"), ("a", "Y"), ("b", "X"), ("c", "X")]]
    valid = [[("a", "Y"), ("a", "X"), ("b", "X"), ("new", "NOUN")]]
    assert load("tag_words").most_frequent_tags(train, valid) == 0.75


@pytest.mark.slow
def test_sentences_of_a_file_are_classified_after_pre_training(tmp_path):
    text = write(tmp_path / "x.gz", "a good film\t1\na bad film\t0\n" * 6)
    arguments = ["--files", text, text, "--epochs", "1", "--pretrain", "1"]
    example = load("classify_sentences")
    accuracy, baseline = example.main([*arguments, *picture(tmp_path)])
    assert 0 <= accuracy <= 1
    assert baseline == 1


@pytest.mark.slow
def test_denials_are_understood_by_the_model_and_not_by_a_bag_of_words(tmp_path):
    arguments = picture(tmp_path)
    accuracy, baseline = load("classify_sentences").main(arguments)
    assert (tmp_path / "picture.png").stat().st_size > 1000
    assert accuracy > 0.9
    assert 0.3 < baseline < 0.7


def test_an_unknown_word_is_known_by_its_beginning():
    example = load("classify_sentences")
    known = {"wonderful": 5, "wond-": 6, "wonder--": 7}
    rows = [example.features_of(["wonderland", "wonky", "wonderful"], 3)]
    ids = example.to_ids(rows, known)
    assert ids.shape == (1, 48, 3)
    assert ids[0, :4].tolist() == [[3, 6, 7], [3, 3, 3], [5, 6, 7], [0, 0, 0]]
    words = example.to_ids([example.features_of(["wonderful"], 1)], known)
    assert words[0, :2].tolist() == [5, 0]


def idx(array):
    sizes = np.array(array.shape, ">i4").tobytes()
    return gzip.compress(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())


@pytest.mark.slow
def test_images_of_files_are_classified(tmp_path):
    rng = np.random.default_rng(1)
    for part, count in (("train", 7), ("valid", 3)):
        images = rng.integers(0, 256, (count, 6, 4), "uint8")
        classes = rng.integers(0, 10, count).astype("uint8")
        for name, array in (("images-idx3", images), ("labels-idx1", classes)):
            (tmp_path / f"{part}-{name}-ubyte.gz").write_bytes(idx(array))
    example = load("classify_images")
    train, _ = example.read_images(tmp_path)
    assert train[0].shape == (7, 6, 4, 1) and train[0].max() <= 1
    assert example.read_idx(tmp_path / "valid-labels-idx1-ubyte.gz").tolist() == [
        *classes
    ]
    arguments = ["--images", str(tmp_path), "--epochs", "1", *picture(tmp_path)]
    accuracy = example.main(arguments)
    assert 0 <= accuracy <= 1


def test_images_are_moved_and_all_shown():
    images = np.arange(5 * 36, dtype="float32").reshape(5, 6, 6, 1)
    batches = load("classify_images").Shifted(images, np.arange(5), 1, batch_size=2)
    seen = [batches[index] for index in range(len(batches))]
    assert [len(classes) for _, classes in seen] == [2, 2, 1]
    assert sorted(np.concatenate([classes for _, classes in seen])) == [*range(5)]
    for moved, classes in seen:
        for image, number in zip(moved, classes, strict=True):
            assert sorted(image.ravel()) == sorted(images[number].ravel())


@pytest.mark.slow
def test_built_in_digits_are_classified(tmp_path):
    arguments = ["--epochs", "3", *picture(tmp_path)]
    assert load("classify_images").main(arguments) > 0.7
    assert (tmp_path / "picture.png").stat().st_size > 1000


@pytest.mark.slow
def test_nodes_of_files_are_classified(tmp_path):
    rows = ["a\ttrain\t0\t0 2", "7\ttrain\t1\t1", "0\tvalid\t0\t0 3", "b\tnone\t-1\t"]
    nodes = write(tmp_path / "n.gz", "\n".join(rows) + "\n")
    edges = write(tmp_path / "e.gz", "a\t0\n7\tb\n")
    example = load("classify_nodes")
    features, links, classes, splits = example.read_graph(nodes, edges)
    expected = [[1, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]]
    np.testing.assert_array_equal(features, expected)
    np.testing.assert_array_equal(links, [[0, 2], [1, 3]])
    assert classes.tolist() == [1, 2, 1, 0]
    assert splits.tolist() == ["train", "train", "valid", "none"]
    arguments = ["--files", nodes, edges, "--epochs", "2", *picture(tmp_path)]
    accuracy, baseline = example.main(arguments)
    assert accuracy in (0, 1)
    assert baseline == 1


@pytest.mark.slow
def test_links_of_a_generated_graph_help(tmp_path):
    accuracy, baseline = load("classify_nodes").main(picture(tmp_path))
    assert (tmp_path / "picture.png").stat().st_size > 1000
    assert accuracy > baseline + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("task", ["amide", "ring"])
def test_molecules_are_whole_and_the_questions_answered(task):
    example = load("classify_graphs")
    rng = np.random.default_rng(1)
    for size in (9, 14):
        atoms, bonds, ring = example.molecule(size, rng)
        assert len(atoms) == size and example.NITROGEN in atoms
        np.testing.assert_array_equal(bonds, bonds.T)
        assert (bonds.sum(axis=1) <= example.VALENCES[atoms]).all()
        # Connected, as many bonds as atoms: one ring.
        assert (np.linalg.matrix_power(np.eye(size) + bonds, size) > 0).all()
        assert (bonds > 0).sum() == 2 * size
        left = np.full(size, True)
        for _ in atoms:
            left &= (bonds[:, left] > 0).sum(axis=1) > 1
        assert left.sum() == ring
    arguments = ["--task", task, "--molecules", "48", "--epochs", "1", "--walks", "3"]
    accuracy, baseline = example.main(arguments)
    assert 0 <= accuracy <= 1 and 0 <= baseline <= 1


def test_an_amide_is_a_nitrogen_on_the_carbon_with_the_double_bond():
    example = load("classify_graphs")
    atoms = np.array([example.CARBON, example.OXYGEN, example.NITROGEN, example.CARBON])
    bonds = np.zeros((4, 4), int)
    for one, other, times in ((0, 1, 2), (0, 2, 1), (2, 3, 1)):
        bonds[one, other] = bonds[other, one] = times
    assert example.has_amide(atoms, bonds, 0)
    single = np.minimum(bonds, 1)
    assert not example.has_amide(atoms, single, 0)
    apart = atoms[[0, 1, 3, 2]]
    assert not example.has_amide(apart, bonds, 0)


@pytest.mark.slow
def test_molecules_are_told_by_their_bonds_and_not_by_their_atoms():
    accuracy, baseline = load("classify_graphs").main(["--task", "amide"])
    assert accuracy > 0.9 > 0.8 > baseline


def test_images_of_digits_are_composed_and_captioned(tmp_path):
    example = load("caption_images")
    digits = np.arange(1, 4)[:, None, None] * np.ones((3, 8, 8))
    rng = np.random.default_rng(1)
    images, captions = example.compose(digits, np.array([7, 0, 9]), 50, rng)
    assert images.shape == (50, 8, 24, 1) and captions.shape == (50, 5)
    names = {1: "seven", 2: "zero", 3: "nine"}
    for image, caption in zip(images[:, 0, :, 0], captions, strict=True):
        seen = image[image > 0].reshape(-1, 8)
        assert (seen == seen[:, :1]).all() and 1 <= len(seen) <= 3
        assert example.spell(caption) == " ".join(names[x] for x in seen[:, 0])
        assert caption[0] == 1 and caption[len(seen) + 1] == 2
    arguments = ["--images", "200", "--epochs", "1"]
    path = tmp_path / "captions.png"
    right = example.main([*arguments, "--plot", str(path)])
    assert 0 <= right <= 1
    assert path.stat().st_size > 1000


@pytest.mark.slow
def test_captions_of_digits_never_seen_are_right():
    assert load("caption_images").main([]) > 0.8


def tone(digit, voice, speed):
    """A tenth of a second of a digit's tone, in the place of speech."""
    pitch = 300 * (digit + 1) + sum(map(ord, voice)) % 97
    return 0.3 * np.sin(2 * np.pi * pitch * np.arange(2205) / 22050)


@pytest.mark.one_case
@pytest.mark.parametrize("task", ["digits", "voice"])
def test_frames_of_sound_are_labelled(task):
    example = load("speech")
    epochs = {"digits": "15", "voice": "1"}[task]
    arguments = ["--task", task, "--recordings", "64", "--epochs", epochs]
    accuracy, baseline = example.main(arguments, speak=tone)
    # Fewer than six in ten frames are silence.
    assert (0.7 if task == "digits" else 0) <= accuracy <= 1
    assert 0 <= baseline <= 1


def test_frames_have_their_bands_and_their_digits():
    example = load("speech")
    frames, tags, voices = example.record(2, ["a", "b"], (150,), tone, seed=3)
    assert frames.shape == (*tags.shape, 40) and voices.tolist() == [[1], [2]]
    assert (frames[tags == 0] == 0).all()
    loudest = {
        digit: frames[tags == 2 + digit].mean(axis=0).argmax() for digit in range(10)
        if (tags == 2 + digit).any()
    }  # fmt: skip
    assert len(loudest) > 3
    assert list(loudest.values()) == sorted(loudest.values())


def test_without_espeak_the_example_says_what_to_install(monkeypatch):
    example = load("speech")
    monkeypatch.setattr(example.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="espeak-ng must be installed"):
        example.main([])


@pytest.mark.slow
def test_the_blocks_of_the_page_run():
    page = Path(__file__).parents[1] / "docs" / "relatives.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    # The last line of each says the shape of what it computes.
    for block in blocks:
        names = {}
        *_, last = block.strip().splitlines()
        call, said = last.split(".shape  # ")
        exec(block, names)
        assert str(tuple(eval(call, names).shape)) == said
    assert len(blocks) == 3
