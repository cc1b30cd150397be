"""A run's directory, and everything that trains in it, new or resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
from rich.console import Console

from keras_transformer.config import RunConfig
from keras_transformer.files import take_lock, write_json
from keras_transformer.nn.kernels.keras_private import inner_optimizer
from keras_transformer.search.run_directory import DATA, SCORES, SUMMARY, TEST
from keras_transformer.search.translator import Translator
from keras_transformer.terminal import plural, say
from keras_transformer.text import Corpus
from keras_transformer.text.lines import pair_line, write_lines
from keras_transformer.training.devices import Distribution, distribution_scope, machine
from keras_transformer.training.plan import Job, Plan, plan
from keras_transformer.training.report import (
    report_data,
    report_devices,
    report_model,
    report_resumed,
    run_facts,
)
from keras_transformer.training.run_model import (
    build_training_variables,
    compiled_model,
    make_schedule,
    with_device_defaults,
)
from keras_transformer.training.state import State, StateFiles

# Seconds after which a network file system shows what another host has written.
_LATE = 60


@dataclasses.dataclass(eq=False)
class Run:
    """A run that is ready to train. Only `state`, the newest, and `config` change."""

    job: Job
    path: Path
    checkpoints: Path
    console: Console
    asked: RunConfig  # as config.json has it
    config: RunConfig  # with the schedule that fits what is planned
    limits: dict[str, Any]  # the options that end the training
    distribution: Distribution
    machine: dict[str, Any]  # what the last bits of the weights depend on
    training: Corpus
    validation: Corpus | None
    bleu_tokenizer: str | None  # of the validation, if it is scored
    model: keras.Model
    translator: Translator  # of `model`
    facts: dict[str, Any]  # for summary.json
    states: StateFiles
    state: State


@contextlib.contextmanager
def opened(job: Job, directory: Path) -> Iterator[Run | None]:
    """Yields a run that is ready to train, or `None` if it is finished already.

    Until the block ends its devices are set up, and no other process trains in it.
    """
    with contextlib.ExitStack() as stack:
        devices = distribution_scope(job.config.training.distribute)
        distribution = stack.enter_context(devices)
        if distribution.is_chief:
            _keep_compiled_steps(directory / "compiled")
            stack.enter_context(locked(directory))
        else:
            job = dataclasses.replace(job, console=Console(quiet=True))
        planned = plan(job, directory)
        run = None
        if not planned.is_finished:
            run = prepared(planned, distribution, directory / "corpus")
            if distribution.is_chief:
                _write_beginning(planned, run)
        del planned  # frees the memory of the model of `init`
        yield run


def _keep_compiled_steps(directory):
    """Makes JAX keep what it compiles in a directory, unless it keeps it elsewhere."""
    if keras.backend.backend() != "jax":
        return  # TensorFlow is told by the environment, before it is loaded.
    import jax

    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", os.path.abspath(directory))


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Locks a run's directory for this process, until it ends in whatever way."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        if not take_lock(descriptor, directory):
            raise BlockingIOError(
                f"Another process is training in {directory}. Wait until it ends, "
                "or choose another directory."
            )
        # What a killed process has half written; scores are written without this lock.
        for half in directory.rglob(".partial-*"):
            if half.is_file() and not half.name.endswith(SCORES):
                half.unlink(missing_ok=True)
        yield
    finally:
        os.close(descriptor)


def prepared(
    planned: Plan, distribution: Distribution, directory: Path | None = None
) -> Run:
    """Makes the corpora and the model of a plan, and reports them.

    In `directory` the first host keeps the ids of the text, and the others read them.
    Invalid options and data raise errors before anything else is written.
    """
    job = planned.job
    console = job.console
    config = planned.config
    if not planned.is_set_up:  # A run keeps them on other devices.
        config = config.replace(data=with_device_defaults(config).data)
    corpora = _corpora(planned, config, distribution, directory)
    training = corpora["training"]
    this_machine = machine(distribution)
    options = config.training
    state = planned.state or State()
    updates = state.planned_updates or options.planned_updates(training.num_batches)
    if options.max_minutes is None:
        state.planned_updates = updates
    before = options.warmup_steps if planned.state is None else 0  # Said once.
    fitted = _fitted(job, config, updates, before)
    keras.utils.set_random_seed(options.seed)
    with distribution.scope():
        resolved = with_device_defaults(fitted, training)
        model = compiled_model(resolved, job.optimizer, job.loss, job.model)
        build_training_variables(model)
    if planned.init is not None:
        model.take_weights_of(planned.init.model)
        say(console, f"starting from the weights of {planned.data['init']}")
    translator = Translator(model, planned.tokenizers, config.decoding)
    facts = run_facts(model, corpora)
    report_data(console, corpora)
    if training.num_replayed:
        say(
            console,
            f"each epoch also shows {plural(training.num_replayed, 'pair')} of "
            f"{planned.data['init']}",
        )
    report_devices(console, model.compute_dtype)
    if planned.state is None:
        report_model(console, model, options.freeze)
    else:
        report_resumed(console, planned.state, training.num_batches, this_machine)
    return Run(
        job=job,
        path=planned.directory,
        checkpoints=planned.directory / "checkpoints",
        console=console,
        asked=config,
        config=fitted,
        limits=planned.limits,
        distribution=distribution,
        machine=this_machine,
        training=training,
        validation=corpora.get("validation"),
        bleu_tokenizer=planned.data.get("bleu_tokenizer"),
        model=model,
        translator=translator,
        facts=facts,
        states=StateFiles(planned.directory / "states"),
        state=state,
    )


def _corpora(planned, config, distribution, directory):
    """Returns the corpora of training and validation; the first host writes them."""
    job = planned.job
    is_shared = directory is not None
    make = functools.partial(
        Corpus if distribution.is_chief or not is_shared else _CorpusOfTheChief,
        tokenizers=planned.tokenizers,
        config=config.data,
        static_shapes=with_device_defaults(config).data.batch_shapes is not None,
        console=job.console,
    )
    if is_shared and not distribution.is_chief:
        distribution.wait()  # The chief has written them.
    training = make(
        job.text,
        seed=config.training.seed,
        robust=config.training.robust,
        replayed=planned.data.get("replayed"),
        directory=directory and directory / "training",
    )
    corpora = {"training": training}
    if job.validation is not None:
        corpora["validation"] = make(
            job.validation,
            boundaries=training.boundaries,
            directory=directory and directory / "validation",
        )
    if is_shared and distribution.is_chief:
        distribution.wait()
    return corpora


def fit_to_minutes(run: Run, speed: float):
    """Plans the updates that `max_minutes` are enough for, at a speed (batches/s).

    The schedule then fits them. A run that goes on keeps it, because the plan stands in
    its state.
    """
    before = run.config.training
    state = run.state
    num_batches = run.training.num_batches
    every = before.planned_updates(num_batches)
    batches = state.step + (60 * before.max_minutes - state.seconds) * speed
    fits = int(batches / before.gradient_accumulation_steps)
    state.planned_updates = min(fits, every)
    if fits >= every:
        return
    say(
        run.console,
        f"about {plural(fits, 'update')} fit into {before.max_minutes:g} min: "
        f"{batches / num_batches:.1f} of {plural(before.epochs, 'epoch')}",
    )
    run.config = _fitted(run.job, run.asked, fits, before.warmup_steps)
    now = run.config.training
    if now != before and run.job.optimizer is None:
        optimizer = inner_optimizer(run.model.optimizer)
        optimizer.learning_rate = make_schedule(now, run.config.model.d_model)
        run.model.train_function = None  # It has the schedule before.


def _fitted(job, config, updates, before):
    """Returns options with a schedule for some updates; `before` was its warm-up."""
    fitted = config.fitted_to(updates)
    now = fitted.training.warmup_steps
    if now < before and job.optimizer is None:
        say(
            job.console,
            f"the learning rate rises for {plural(now, 'update')}, not "
            f"{before:,}: at most a fifth of the training",
        )
    return fitted


def _write_beginning(planned, run):
    """Writes what a run is told by. One killed before config.json begins anew."""
    directory = planned.directory
    # An earlier model.keras is of fewer updates: the run is unfinished again.
    (directory / SUMMARY).unlink(missing_ok=True)
    if not planned.is_set_up:
        planned.tokenizers.save(directory / "tokenizer")
        write_json(directory / DATA, planned.data)
    write_json(directory / "config.json", run.asked.to_dict())
    if planned.job.test is not None:
        pairs = planned.job.test.pairs()
        write_lines(directory / TEST, (pair_line(*pair[1:]) for pair in pairs))


class _CorpusOfTheChief(Corpus):
    """A corpus that the first of several hosts writes, and this one reads."""

    def _kept(self, path, made_of):
        facts = path.with_suffix(".json")
        seen_until = time.monotonic() + _LATE
        while not facts.exists() and time.monotonic() < seen_until:
            time.sleep(1)
        return super()._kept(path, made_of)

    def _write(self, path, made_of, replayed, console):
        raise FileNotFoundError(
            f"{path} is missing or of other data than those of this host. All hosts "
            "need the same data, and one `--run` that they share, where the first host "
            "writes this file."
        )
