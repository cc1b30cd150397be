"""What a run says while it trains, and what it writes about itself.

Lines on the console, the bar at a terminal, log.csv, TensorBoard, summary.json.
"""

from __future__ import annotations

import csv
import itertools
import math
import shlex
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from keras_transformer.config import TrainingConfig
from keras_transformer.extras import how_to_install
from keras_transformer.files import read_json, replacing
from keras_transformer.models.batch_step import available_cores
from keras_transformer.models.transformer import Seq2Seq
from keras_transformer.search.run_directory import SUMMARY, TEST, shown_figure
from keras_transformer.terminal import plural, say, warn
from keras_transformer.text import BadLines, Corpus
from keras_transformer.text.held_out import Split
from keras_transformer.training.devices import gpu_names
from keras_transformer.training.state import State, without_progress

# What each backend needs for NVIDIA GPUs.
_REMEDIES = {
    "tensorflow": how_to_install("gpu"),
    "jax": how_to_install("gpu-jax"),
    "torch": "install a PyTorch that is built for CUDA",
}
# The figures in the table at the terminal: title, name, format. log.csv has all.
_FIGURES = (
    ("updates", "updates", ",.0f"),
    ("loss", "loss", ".4f"),
    ("val loss", "val_loss", ".4f"),
    ("BLEU", "val_bleu", ".2f"),
    ("chrF", "val_chrf", ".2f"),
    ("tokens/s", "tokens_per_second", ",.0f"),
)
_WIDTHS = {"epoch": 9, "updates": 9, "loss": 7, "BLEU": 6, "chrF": 6, "time": 11}
# Seconds to watch after the first figures, before which the step is compiled, and the
# largest share of `max_minutes`.
_WATCHED = 15.0
_WATCHED_SHARE = 0.04


def report_data(console: Console, corpora: dict[str, Corpus]):
    """Says how many pairs and batches there are, and in how many shapes."""
    for name, corpus in corpora.items():
        say(
            console,
            f"{name} data: {plural(corpus.num_pairs, 'pair')}, "
            f"{plural(corpus.num_batches, 'batch')}, {corpus.bad_lines}",
        )
        if len(corpus.text.parts) > 1:
            mix = [f"{weight} x {part.origin}" for part, weight in corpus.text.parts]
            say(console, f"mixed of {', '.join(mix)}")
    training = corpora["training"]
    say(
        console,
        f"a batch has {training.num_tokens / training.num_batches:,.0f} tokens of both "
        "sides on average, without padding",
    )
    if training.padding is not None:
        say(
            console,
            f"batches of {plural(len(training.shapes), 'shape')}, with "
            f"{training.padding:.0%} padding",
        )


def report_held_out(console: Console, sets: Split, wanted: int | None):
    """Says what was taken out of the training text, and how to choose that."""
    validation, test = (part.count() if part else 0 for part in sets[1:3])
    if validation or test:
        say(
            console,
            f"held out of the training pairs: {validation:,} for validation, {test:,} "
            f"for {TEST}; {sets.num_others:,} with a sentence of these are left out",
        )
    if wanted is None:
        what = "other validation pairs: `--valid`; none: `hold_out` 0 (`--config`)"
        if not validation:
            what = "no validation: of so few pairs none are held out (`--valid`)"
        say(console, what)


def report_devices(console: Console, dtype: str):
    """Says what a run computes on, and warns of a GPU that it cannot use."""
    backend = keras.backend.backend()
    names = gpu_names()
    cores = available_cores()
    where = plural(cores, "processor core")
    if names:
        where = f"{plural(len(names), 'GPU')}, {names[0]}"
    say(console, f"computing in {dtype} with {backend} on {where}")
    gpus = Path("/proc/driver/nvidia/gpus")
    if not names and gpus.is_dir() and any(gpus.iterdir()):
        warn(
            console,
            f"{backend} cannot use the NVIDIA GPU of this machine: "
            f"{_REMEDIES[backend]}, and see docs/training.md",
        )


def report_model(console: Console, model: keras.Model, freeze: str | None):
    """Says the class of a model, its sizes, and how many weights are trained."""
    words = f"{model.count_params():,} parameters"
    if freeze is not None:
        frozen = sum(math.prod(v.shape) for v in model.non_trainable_weights)
        words = f"{model.count_params() - frozen:,} of {words}, without {freeze}"
    sizes = f"of {model.name!r}"
    if isinstance(model, Seq2Seq):
        config = model.config
        vocabularies = {config.source_vocabulary_size, config.target_vocabulary_size}
        pieces = " and ".join(f"{size:,}" for size in sorted(vocabularies))
        sizes = (
            f"{config.num_encoder_layers}+{config.num_decoder_layers} layers, "
            f"d_model {config.d_model}, d_ff {config.d_ff}, {config.num_heads} heads, "
            f"{pieces} pieces"
        )
    say(console, f"{type(model).__name__}: {sizes}")
    say(console, words)


def report_resumed(console: Console, state: State, num_batches: int, machine: dict):
    """Says where a run resumes; warns if its last bits will be others on `machine`."""
    epoch, batch = divmod(state.step, num_batches)
    say(
        console,
        f"resuming after {plural(state.updates, 'update')}, at batch {batch + 1:,} of "
        f"epoch {epoch + 1}",
    )
    names = {"parts": "cores that share a batch"}
    before = state.machine
    found = [
        f"{value} {names.get(name, name)} (before: {before[name]})"
        for name, value in machine.items()
        if before[name] != value
    ]
    if found:
        warn(
            console,
            f"going on with {'; '.join(found)}: the result is that of an "
            "uninterrupted run to rounding only, and dropout may draw other numbers",
        )


class TrainingBar(Progress):
    """The bar of a run at a terminal, and once a line that says how long it will take.

    The bar is of the one limit that will end the run: epochs, updates or minutes. The
    line would only repeat the minutes. `num_batches` are those of an epoch.
    """

    speed: float | None = None  # batches a second, once that is known

    def __init__(
        self, console: Console, num_batches: int, options: TrainingConfig, state: State
    ):
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(None, table_column=Column(ratio=1)),  # The rest of the line.
            TextColumn("{task.percentage:.0f} %"),
            TimeElapsedColumn(),
            TextColumn("so far{task.fields[rest]}"),
            console=console,
            transient=True,
            expand=True,
            disable=not console.is_terminal,  # It would leave an empty line.
            get_time=time.monotonic,
        )
        self._options = options
        self._num_batches = num_batches
        self._updates = options.planned_updates(num_batches)
        self._batches = self._updates * options.gradient_accumulation_steps
        self._most_seconds = 60 * (options.max_minutes or math.inf)
        # A resumed run goes on with its time.
        self._since = time.monotonic() - state.seconds
        self._first = None
        self._is_said = False
        self._run = self.add_task("starting", total=1.0, rest="")
        self.tasks[0].start_time -= state.seconds

    def wait(self, reason: str):
        """Shows what the next step waits for."""
        self.update(self._run, description=reason)

    def show(self, step: int, loss: float, waited: float = 0.0):
        """Shows how far the run is, its loss, and how long the rest will take.

        `waited` are the seconds of this process that are not part of its speed.
        """
        seconds = max(time.monotonic() - self._since, 1e-9)
        self.speed = self._measured_speed(step, seconds - waited)
        speed = self.speed or step / seconds
        left = max(self._batches - step, 0) / speed
        left_by_time = max(self._most_seconds - seconds, 0)
        epoch = (step - 1) // self._num_batches + 1
        share = step / self._batches
        words = f"epoch {epoch}"
        is_timed = left_by_time < left
        if is_timed:
            left = left_by_time
            share = seconds / self._most_seconds
            words += f", {seconds / 60:.0f}/{self._options.max_minutes:g} min"
        elif self._updates == self._options.max_updates:
            updates = step // self._options.gradient_accumulation_steps
            words += f", update {updates:,}/{self._updates:,}"
        else:
            words += f"/{self._options.epochs}"
        self.update(self._run, completed=share, description=f"{words}  loss {loss:.3f}")
        if self.speed is None:
            return
        self.update(self._run, rest=f", {duration(left)} to go")
        if not self._is_said and not is_timed:
            self._is_said = True
            words = f"expected: {duration(left)} more, at {speed:.2g} batches a second"
            say(self.console, words)

    def _measured_speed(self, step, seconds):
        """Returns the batches a second, once they have been watched for a while."""
        if self._first is None:
            self._first = (step, seconds)
        first, began = self._first
        watched = min(_WATCHED, _WATCHED_SHARE * self._most_seconds)
        if seconds - began < watched or step == first:
            return None
        return (step - first) / (seconds - began)


def duration(seconds: float) -> str:
    """Returns a time in words, with two units at most: "2 h 1 min"."""
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 10:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


class Log:
    """log.csv and TensorBoard's files, made anew from the rows when a run goes on.

    So they lose and repeat no row, whenever the run was killed.
    """

    def __init__(self, run: Any):
        self._directory = run.path
        self._console = run.console
        self._options = run.config.training
        rows = run.state.history
        self._writers = {}
        self._has_head = False
        for path in (run.path / "tensorboard").rglob("events.out.tfevents.*"):
            path.unlink()
        self._write(rows, rows)

    def add(self, rows: Sequence[dict], seconds: float):
        """Says and writes the last of the rows; `*` marks the best by validation."""
        row = rows[-1]
        cells = {"epoch": f"{round(row['epoch'], 2):g}/{self._options.epochs}"}
        for title, name, form in _FIGURES:
            if name in row:
                cells[title] = f"{row[name]:{form}}"
            elif not name.startswith("val_"):  # Initial weights have none.
                cells[title] = ""
        cells["time"] = duration(seconds)
        is_best = "val_loss" in row and not without_progress(rows, self._options)
        head = line = ""
        for title, cell in cells.items():
            width = _WIDTHS.get(title, 8)
            head = f"{head}  {title:>{width}}"
            line = f"{line}  {cell:>{width}}"
        if not self._has_head:
            self._has_head = True
            say(self._console, head[2:])
        say(self._console, line[2:] + (" *" if is_best else ""))
        self._write(rows, rows[-1:])

    def _write(self, rows, new):
        """Writes all rows to log.csv, and the new ones for TensorBoard."""
        names = ["epoch", *sorted(set().union(*rows) - {"epoch"})]
        with replacing(self._directory / "log.csv") as temporary:
            with open(temporary, "w", encoding="utf-8", newline="") as stream:
                writer = csv.DictWriter(stream, names)
                writer.writeheader()
                writer.writerows(rows)
        for row in new:
            for name, value in row.items():
                kind = "validation" if name.startswith("val_") else "train"
                if kind not in self._writers:
                    path = self._directory / "tensorboard" / kind
                    self._writers[kind] = tf.summary.create_file_writer(str(path))
                with self._writers[kind].as_default(step=int(row["updates"])):
                    # The names that Keras gives its figures.
                    tf.summary.scalar(f"epoch_{name.removeprefix('val_')}", value)
        for writer in self._writers.values():
            writer.flush()


def run_facts(model: keras.Model, corpora: dict[str, Corpus]) -> dict[str, Any]:
    """Returns what is known of a run before it trains, as JSON can hold it."""
    examples = []  # of a model card
    if validation := corpora.get("validation"):
        pairs = validation.text.pairs(BadLines(validation.config.bad_line_share))
        examples = [pair[1:] for pair in itertools.islice(pairs, 3)]
    return {
        "model": {
            "class": type(model).__name__,
            "parameters": model.count_params(),
            "dtype": model.compute_dtype,
        },
        "data": {
            name: {
                "files": [path.name for path in corpus.text.files],
                "pairs": corpus.num_pairs,
                "replayed": corpus.num_replayed,
                "bad_lines": corpus.bad_lines.count,
                "cleaning": corpus.text.cleaning and corpus.text.cleaning.counts,
                "batches": corpus.num_batches,
                "tokens": corpus.num_tokens,
            }
            for name, corpus in corpora.items()
        },
        "versions": {"keras": keras.__version__, "tensorflow": tf.__version__},
        "examples": examples,
    }


def summary(
    facts: dict[str, Any], state: State, row: dict[str, float], **more: Any
) -> dict[str, Any]:
    """Returns what a training came to, for summary.json; `row` is the last of it."""
    return (
        facts
        | {
            "machine": state.machine,
            "updates": row["updates"],
            "epochs": row["epoch"],
            "seconds": state.seconds,
            "last_epoch": {name: x for name, x in row.items() if name != "step"},
        }
        | more
    )


def read_summary(directory: str | Path) -> dict[str, Any]:
    """Returns what the training of a finished run came to: its summary.json."""
    return read_json(Path(directory) / SUMMARY)


def summary_lines(summary: dict[str, Any], directory: str | Path) -> list[str]:
    """Returns the lines of a run's summary for a person."""
    scores = [f"{name} {shown_figure(x)}" for name, x in summary["final"].items()]
    if scores:
        scores[0] = f"{summary['weights']}: {scores[0]}"
    if tested := summary.get("test"):
        scores.append(
            f"{TEST}: BLEU {tested['bleu']:.2f}, chrF {tested['chrf']:.2f} "
            f"of {plural(tested['sentences'], 'sentence')}"
        )
    run, name = map(shlex.quote, (str(directory), Path(directory).absolute().name))
    return [
        f"trained {summary['model']['parameters']:,} parameters: "
        f"{plural(summary['updates'], 'update')}, "
        f"{plural(round(summary['epochs'], 2), 'epoch')} in "
        f"{duration(summary['seconds'])}",
        *textwrap.wrap(", ".join(scores), 80),
        f"written to {directory}: model.keras, log.csv, tensorboard/, checkpoints/",
        f"next: keras-transformer translate {run} 'A sentence.'",
        f"      keras-transformer export {run} --output saved_models/{name}",
        f"      keras-transformer serve saved_models/{name}",
    ]
