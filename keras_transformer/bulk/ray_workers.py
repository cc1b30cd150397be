"""Bulk translation on many processes or machines, with Ray Data (extra `ray`).

Each worker is a Ray actor with the same SavedModel; one process alone writes, in order.

Ray starts an actor only where its CPUs are free, and reading takes a CPU too: if the
workers hold them all, Ray Data waits for ever. So one more is always required.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from keras_transformer.bulk.translate import (
    BATCH_SIZE,
    WINDOW,
    BulkSummary,
    check_sizes,
    model_fingerprint,
    read_texts,
    save_translations,
    translate_window,
)
from keras_transformer.files import replacing
from keras_transformer.text.lines import GZIP_MAGIC, skip_byte_order_mark

_MOST_BLOCKS = 4096


@dataclass(frozen=True)
class RayWorkers:
    """How many workers translate, and how.

    Attributes:
        count: Workers, each with its own copy of the model.
        cpus: CPU cores of each; its TensorFlow computes on as many threads.
        gpus: GPUs of each.
        batch_size: Sentences translated at a time by each.
        window: Lines sorted by length and translated at a time by each.
    """

    count: int = 2
    cpus: int = 1
    gpus: float = 0.0
    batch_size: int = BATCH_SIZE
    window: int = WINDOW

    def __post_init__(self):
        check_sizes(self.window, self.batch_size)
        for name, least in (("count", 1), ("cpus", 1), ("gpus", 0)):
            if getattr(self, name) < least:
                raise ValueError(
                    f"`{name}` must be at least {least}. Received: "
                    f"{name}={getattr(self, name)}"
                )


def translate_dataset(
    dataset,
    model: str | Path,
    *,
    column: str = "text",
    into: str = "translation",
    workers: RayWorkers | None = None,
):
    """Adds a column of translations to a Ray dataset, lazily and in order.

    Ray runs it when the result is read or written.

    Args:
        dataset: A `ray.data.Dataset` with a column of strings.
        model: Directory of a SavedModel, at the same path on every machine.
        column: Column to translate; a missing value gives an empty translation.
        into: Column to add.
        workers: How many workers translate, and how.

    Returns:
        A `ray.data.Dataset`.

    Raises:
        FileNotFoundError: If `model` is no SavedModel.
        ImportError: If Ray is not installed.
        ValueError: If `dataset` has no `column`, or has `into` already, or the cluster
            has too few CPUs.

    Example:
        >>> dataset = ray.data.read_parquet("articles/")  # a column "text"
        >>> dataset = translate_dataset(dataset, "saved_models/en-de/1")
        >>> save_parquet(dataset, "german.parquet")
    """
    ray, workers = _import_ray(), workers or RayWorkers()
    model = _saved_model(model)
    _start_ray(ray, workers)
    names = dataset.schema().names
    if column not in names or into in names:
        raise ValueError(
            "The dataset must have the column that is translated and lack the one "
            f"that is added. Received: column={column!r}, into={into!r}, columns "
            f"{', '.join(names)}"
        )
    arguments = (model, workers, column, into)
    return _map(ray, dataset, _ColumnTranslator, arguments, workers.window)


def save_parquet(dataset, output: str | Path) -> int:
    """Writes a Ray dataset to one Parquet file, in order, whole or not at all.

    (`Dataset.write_parquet` writes many files, whose names do not keep the order.)

    Args:
        dataset: A `ray.data.Dataset`.
        output: File to write.

    Returns:
        Rows written.

    Raises:
        IsADirectoryError: If `output` is a directory.
        RuntimeError: If a worker fails.

    Example:
        >>> save_parquet(dataset, "german.parquet")
    """
    ray, output = _import_ray(), Path(output)
    import pyarrow.parquet

    rows, writer = 0, None
    output.parent.mkdir(parents=True, exist_ok=True)
    with replacing(output) as temporary, contextlib.ExitStack() as stack:
        for table in _tables(ray, dataset, WINDOW):
            writer = writer or stack.enter_context(
                pyarrow.parquet.ParquetWriter(temporary, table.schema)
            )
            writer.write_table(table)
            rows += table.num_rows
    return rows


def translate_text(
    model: str | Path,
    source: str | Path,
    output: str | Path,
    workers: RayWorkers | None = None,
    show_progress: bool = False,
) -> BulkSummary:
    """Translates a text file as `translate_file` does, on many workers.

    The output is byte for byte that of one process, and either can continue what the
    other left unfinished. Ray is started on this machine unless the program has called
    `ray.init` or the environment variable RAY_ADDRESS names a cluster.

    Args:
        model: Directory of a SavedModel, at the same path on every machine.
        source: Text file of one sentence a line, not gzip, at the same path on every
            machine.
        output: Text file to write; a gzip file if it ends in ".gz".
        workers: How many workers translate, and how.
        show_progress: Whether to show a progress bar, if standard error is a terminal.

    Returns:
        A `BulkSummary`.

    Raises:
        FileNotFoundError: If `model` is no SavedModel, or `source` is missing.
        ImportError: If Ray is not installed.
        RuntimeError: If a worker fails; what was done before is kept.
        ValueError: As for `translate_file`, or if `source` is a gzip file.

    Example:
        >>> translate_text("saved_models/en-de", "news.en", "news.de", RayWorkers(16))
    """
    ray, workers = _import_ray(), workers or RayWorkers()
    model, source = _saved_model(model), Path(source).absolute()
    with open(source, "rb") as stream:
        if stream.read(2) == GZIP_MAGIC:
            raise ValueError(
                f"{source} is a gzip file, which workers cannot share: unpack it with "
                "gunzip, or translate it in one process."
            )

    def translated(_, start, advance):
        places = [
            {"path": str(source), "first": first, "last": last}
            for first, last in _places_of_windows(source, start, workers.window)
        ]
        if not places:
            return
        _start_ray(ray, workers)
        with _quiet_context(ray):
            blocks = min(len(places), _MOST_BLOCKS)
            dataset = ray.data.from_items(places, override_num_blocks=blocks)
        dataset = _map(ray, dataset, _PlaceTranslator, (model, workers), 1)
        for table in _tables(ray, dataset, workers.window):
            texts = table["text"].to_pylist()
            yield texts, table["translation"].to_pylist()
            advance(len(texts))

    return save_translations(
        translated, source, output, model_fingerprint(model), show_progress
    )


def _import_ray():
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError(
            "Ray is not installed. Install the extra: "
            'pip install "keras-transformer-seq2seq[ray]"'
        ) from error
    return ray


def _saved_model(path):
    from keras_transformer.export import latest_version

    return str(latest_version(path).absolute())


def _start_ray(ray, workers):
    """Starts Ray here, unless there is a cluster to join, and checks its size."""
    needed = workers.count * workers.cpus + 1
    if not ray.is_initialized():
        if os.environ.get("RAY_ADDRESS"):
            ray.init(logging_level="ERROR")
        else:
            ray.init(
                address="local",
                num_cpus=needed,
                include_dashboard=False,
                logging_level="ERROR",
                log_to_driver=False,
            )
    available = ray.cluster_resources().get("CPU", 0)
    if available < needed:
        raise ValueError(
            "Ray needs the CPUs of all workers and one more for reading, or it would "
            "wait for ever. Use fewer workers, or call ray.init with more `num_cpus`. "
            "Received: "
            f"count={workers.count}, cpus={workers.cpus}, {available:.0f} CPUs there"
        )


def _quiet_context(ray):
    """Hides Ray's progress bars for datasets made inside: they would disturb ours."""
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    return ray.data.DataContext.current(context)


def _map(ray, dataset, worker, arguments, batch_size):
    """Sends batches of a dataset through actors `worker(*arguments)`, in order."""
    workers = arguments[1]
    result = dataset.map_batches(
        worker,
        fn_constructor_args=arguments,
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=workers.count),
        num_cpus=workers.cpus,
        num_gpus=workers.gpus or None,
    )
    result.context.execution_options.preserve_order = True
    return result


def _tables(ray, dataset, window):
    """Yields a dataset in tables of `window` rows."""
    try:
        yield from dataset.iter_batches(batch_size=window, batch_format="pyarrow")
    except ray.exceptions.RayError as error:
        # Ray's message is a traceback of the worker; the error is its last line.
        *_, cause = str(error).strip().splitlines()
        raise RuntimeError(f"A Ray worker failed: {cause}") from error


def _places_of_windows(path, start, window) -> Iterator[tuple[int, int]]:
    """Yields where each window of lines after line `start` begins and ends (bytes)."""
    with open(path, "rb") as stream:
        skip_byte_order_mark(stream)
        position = stream.tell()
        position += sum(map(len, itertools.islice(stream, start)))
        while size := sum(map(len, itertools.islice(stream, window))):
            yield position, position + size
            position += size


class _ColumnTranslator:
    """A worker: adds translations to tables."""

    def __init__(self, model, workers, column="text", into="translation"):
        # TensorFlow reads these when it is first used: in this process, now.
        os.environ["TF_NUM_INTRAOP_THREADS"] = str(workers.cpus)
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        from keras_transformer.export import ExportedTranslator

        translator = ExportedTranslator(model)
        self._translate = lambda texts: translator(texts, len(texts))
        self._workers, self._column, self._into = workers, column, into

    def __call__(self, table):
        import pyarrow

        texts = [text or "" for text in table[self._column].to_pylist()]
        translations = translate_window(
            self._translate, texts, self._workers.batch_size
        )
        return table.append_column(
            self._into, pyarrow.array(translations, pyarrow.string())
        )


class _PlaceTranslator(_ColumnTranslator):
    """A worker: reads the lines at places of a file and translates them."""

    def __call__(self, places):
        import pyarrow

        for place in places.to_pylist():
            with open(place["path"], "rb") as stream:
                stream.seek(place["first"])
                lines = stream.read(place["last"] - place["first"])
            texts = list(read_texts(io.BytesIO(lines)))
            yield super().__call__(pyarrow.table({"text": texts}))
