"""Ray Data: two workers give the very bytes of one process."""

from __future__ import annotations

import gzip
import sys

import pytest

from keras_transformer import ExportedTranslator
from keras_transformer.bulk import PartialOutput, model_fingerprint, translate_file
from keras_transformer.bulk.ray_workers import (
    RayWorkers,
    _places_of_windows,
    save_parquet,
    translate_dataset,
    translate_text,
)
from tests import tiny_run

WORKERS = RayWorkers(count=2, batch_size=2, window=3)
LINES = [
    *(source for source, _ in tiny_run.PAIRS),
    "",
    "  ",
    "a dog\u2028runs",
    "Bär Bär Bär",
    *(source.upper() for source, _ in tiny_run.PAIRS[:17]),
]


@pytest.fixture
def model(tmp_path_factory):
    return tiny_run.saved_model(tmp_path_factory)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.txt"
    # A byte order mark, a carriage return and a last line without an end.
    path.write_bytes(
        b"\xef\xbb\xbf" + "\n".join(LINES).replace("g.\n", "g.\r\n").encode()
    )
    return path


@pytest.fixture
def expected(model, source, tmp_path):
    """What one process writes."""
    output = tmp_path / "expected.txt"
    translate_file(ExportedTranslator(model), source, output)
    return output.read_bytes()


@pytest.fixture(scope="module")
def ray():
    module = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    yield module
    module.shutdown()


def test_without_ray_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    remedy = r'Ray is not installed.*pip install "keras-transformer-seq2seq\[ray\]"'
    with pytest.raises(ImportError, match=remedy):
        translate_text(tmp_path, tmp_path / "in", tmp_path / "out")
    with pytest.raises(ImportError, match=remedy):
        translate_dataset(None, tmp_path)


@pytest.mark.parametrize("name", ["count", "cpus", "batch_size", "window"])
def test_sizes_below_1_are_refused(name):
    with pytest.raises(ValueError, match=f"`{name}` must be at least 1. .*{name}=0"):
        RayWorkers(**{name: 0})


@pytest.mark.parametrize("start", [0, 1, 7, 30, 68, 69, 80])
@pytest.mark.parametrize("window", [1, 7, 100])
def test_places_cover_the_lines_that_are_left(source, start, window):
    content = source.read_bytes()
    places = list(_places_of_windows(source, start, window))
    parts = [content[first:last] for first, last in places]
    lines = content.removeprefix(b"\xef\xbb\xbf").splitlines(keepends=True)
    lines = "".join(line.decode() for line in lines[start:]).split("\n")
    assert b"".join(parts).decode().split("\n") == lines
    assert all(part.count(b"\n") == window for part in parts[:-1])


def test_gzip_is_refused_with_the_remedy(ray, model, tmp_path):
    (tmp_path / "in.gz").write_bytes(gzip.compress(b"a dog\n"))
    with pytest.raises(ValueError, match="workers cannot share: unpack it"):
        translate_text(model, tmp_path / "in.gz", tmp_path / "out")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own, of Ray and of Python.
def test_two_workers_write_the_bytes_of_one_process(
    ray, model, source, expected, tmp_path
):
    output = tmp_path / "out.txt"
    summary = translate_text(model, source, output, WORKERS)
    assert output.read_bytes() == expected
    assert (summary.sentences, summary.resumed) == (len(LINES), 0)


@pytest.mark.filterwarnings("ignore")  # Ray's own, of Ray and of Python.
def test_workers_go_on_with_what_one_process_was_interrupted_in(
    ray, model, source, expected, tmp_path
):
    """Of one worker, which takes half of the time; the slow tests have two."""
    workers = RayWorkers(count=1, batch_size=2, window=3)
    output = tmp_path / "out.txt"
    texts, lines = iter(LINES), expected.decode("utf-8").split("\n")
    with PartialOutput(output, model_fingerprint(model)) as partial:
        partial.skip_done(texts)
        partial.append(LINES[:23], lines[:23])
    assert translate_text(model, source, output, workers).resumed == 23
    assert output.read_bytes() == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own, of Ray and of Python.
def test_parquet_keeps_its_order_and_columns(ray, model, expected, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "in").mkdir()
    for part, start in enumerate(range(0, len(LINES), 30)):
        lines = [line or None for line in LINES[start : start + 30]]
        table = {"line": lines, "number": list(range(start, start + len(lines)))}
        parquet.write_table(pyarrow.table(table), tmp_path / "in" / f"{part}.parquet")
    dataset = ray.data.read_parquet(str(tmp_path / "in"))
    translated = translate_dataset(dataset, model, column="line", workers=WORKERS)
    assert save_parquet(translated, tmp_path / "out.parquet") == len(LINES)

    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["line", "number", "translation"]
    assert table["number"].to_pylist() == list(range(len(LINES)))
    translations = "".join(t + "\n" for t in table["translation"].to_pylist())
    assert translations.encode() == expected

    for options in ({"column": "text"}, {"column": "line", "into": "number"}):
        with pytest.raises(ValueError, match="Received: column='.* columns line, numb"):
            translate_dataset(dataset, model, **options)
    with pytest.raises(ValueError, match="count=9, cpus=1, 3 CPUs there"):
        translate_dataset(dataset, model, column="line", workers=RayWorkers(9))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own, of Ray and of Python.
def test_a_worker_that_fails_is_one_line(ray, source, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "saved_model.pb").write_bytes(b"junk")
    with pytest.raises(RuntimeError, match="^A Ray worker failed: .*Cannot parse.*$"):
        translate_text(tmp_path / "bad", source, tmp_path / "out", WORKERS)
    assert not (tmp_path / "out").exists()
