"""What a run would do, said before it does anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
from rich.console import Console

from keras_transformer.config import RunConfig
from keras_transformer.terminal import plain_console, say
from keras_transformer.text import Corpus, open_pairs
from keras_transformer.training.beginning import (
    begin_with,
    begins_with,
    begun_or_new,
    open_init,
)
from keras_transformer.training.compiling import (
    compiled_model,
    given_options,
    with_device_defaults,
)
from keras_transformer.training.distribution import distribution_scope
from keras_transformer.training.memory import training_memory
from keras_transformer.training.own_parts import Own, check_given
from keras_transformer.training.report import (
    count_parameters,
    describe_model,
    report_data,
    report_devices,
    report_warm_up,
)
from keras_transformer.training.run_directory import RunDirectory, fingerprints
from keras_transformer.training.state import StateFiles, build_training_variables
from keras_transformer.training.summary import data_facts, model_facts
from keras_transformer.training.train import make_corpora
from keras_transformer.translator import Translator

_MIB = 2**20


def dry_run(
    text: Any,
    directory: str | Path,
    config: RunConfig | None = None,
    validation: Any = None,
    console: Console | None = None,
    *,
    tokenizers: Any = None,
    init: Translator | str | Path | None = None,
) -> dict[str, Any]:
    """Says what `train` would do with these arguments, and does none of it.

    That is its data and bad lines, the device and the float type, the shapes of its
    batches, how often XLA compiles, the parameters, and an estimate of the memory of
    a training step. It reads the text and learns the vocabulary as `train` does, makes
    the model, and writes nothing.

    Args:
        text: Training pairs, as `open_pairs` returns or takes them.
        directory: Directory of the run: new, empty, or that of a run to continue.
        config: All options.
        validation: Validation pairs.
        console: Where it is printed; default the terminal.
        tokenizers: As for `train`.
        init: As for `train`.

    Returns:
        The same as numbers: "model", "data", and "shapes", the batches of each.

    Raises:
        FileExistsError: If `directory` holds something other than a run.
        OSError: If a file cannot be read.
        ValueError: If the data or an option is bad, or they or the tokenizer differ
            from those of the run in `directory` or of `init`.

    Example:
        >>> dry_run(open_pairs("train.en", "train.de"), "runs/en-de")
    """
    console = plain_console() if console is None else console
    config = RunConfig() if config is None else config
    check_given(config, Own(init=init), validated=validation is not None)
    text = open_pairs(text)
    validation = None if validation is None else open_pairs(validation)
    run = RunDirectory(directory)
    with distribution_scope(config.training.distribute) as distribution:
        config, tokenizers = given_options(config, tokenizers, init)
        init = open_init(init, run)
        data = fingerprints(text, validation) | begins_with(init)
        given = config, data, text, console, tokenizers, init
        config, tokenizers = begun_or_new(run, *given)
        with distribution.scope():
            model = compiled_model(config)
            build_training_variables(model)
        if not StateFiles(run.path / "states", 1).paths():
            begin_with(init, model, run, console)
        training, validation = make_corpora(text, validation, tokenizers, config)
        report_data(console, training, validation)
        updates = config.training.planned_updates(training.num_batches)
        report_warm_up(console, config, config.fitted_to(updates), updates)
        report_devices(console, model.compute_dtype)
        say(console, f"batches (sentences x tokens): {_shapes(training.shapes)}")
        compiled = with_device_defaults(config.training).jit_compile
        say(console, _compilations(training, validation, compiled))
        parameters = count_parameters(model, config.training.freeze)
        say(console, f"{describe_model(model)}; {parameters}")
        _report_memory(console, model, training.shapes, distribution.num_replicas)
    say(console, "nothing was trained or written: this was a dry run")
    facts = {"model": model_facts(model), "data": data_facts(training, validation)}
    return facts | {"shapes": list(map(_shape, training.shapes.items()))}


def _shape(entry):
    (rows, length), number = entry
    return {"rows": rows, "tokens": length, "batches": number}


def _shapes(shapes: Mapping[tuple[int, int], int]) -> str:
    return ", ".join(
        f"{number:,} of {rows} x {length}" for (rows, length), number in shapes.items()
    )


def _compilations(training: Corpus, validation: Corpus | None, compiled: bool) -> str:
    """How often XLA compiles in the whole run: each step for each shape."""
    if not compiled:
        return "XLA compiles nothing: one program serves every shape"
    steps = f"XLA compiles the training step {_times(training)}"
    if validation is not None:
        steps += f" and the validation step {_times(validation)}"
    return steps


def _times(corpus):
    number = len(corpus.shapes)
    return "once" if number == 1 else f"{number} times"


def _report_memory(console, model, shapes, replicas):
    """Says how much memory the batch with the most of it takes on one device."""
    estimates = {
        (-(-rows // replicas), length): training_memory(
            model, -(-rows // replicas), length
        )
        for rows, length in shapes
    }
    (rows, length), memory = max(estimates.items(), key=lambda pair: pair[1].total)
    parts = ", ".join(
        f"{name} {size / _MIB:,.0f}" for name, size in memory._asdict().items()
    )
    where = "each device" if replicas > 1 else keras.backend.backend()
    say(
        console,
        f"memory of {rows} x {length} on {where}: about {memory.total / _MIB:,.0f} MiB "
        f"({parts})",
    )
