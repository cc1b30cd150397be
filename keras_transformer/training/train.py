"""Training from text and options to a directory with a trained translator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
from rich.console import Console

from keras_transformer.config import (
    DecodingConfig,
    RunConfig,
    TokenizerConfig,
    TransformerConfig,
)
from keras_transformer.config.run_config import (
    FINE_TUNING,
    FINE_TUNING_IMPORTED,
    preset_for,
)
from keras_transformer.files import write_json
from keras_transformer.models.loading import read_config
from keras_transformer.search.run_directory import SUMMARY, trained_directory
from keras_transformer.search.translator import Translator
from keras_transformer.terminal import plain_console, plural, say, warn
from keras_transformer.text import clean_pairs, open_pairs
from keras_transformer.text.held_out import split
from keras_transformer.training.devices import distribution_scope
from keras_transformer.training.intervals import (
    RunCallbacks,
    StopSignals,
    close_interval,
    is_over,
    keep_initial,
    restore,
    train_interval,
)
from keras_transformer.training.plan import Job, check_directory, plan
from keras_transformer.training.report import (
    Log,
    TrainingBar,
    report_held_out,
    summary,
)
from keras_transformer.training.run import Run, opened, prepared
from keras_transformer.training.run_model import check_initial, split_by_default
from keras_transformer.training.state import (
    KEPT_STATES,
    candidates,
    checkpoints_of,
    load_average,
    named,
    rank,
    remove_checkpoints,
    rows_to_keep,
)
from keras_transformer.training.validation import Validation, doubting, score_test_set


def train(
    text: Any,
    directory: str | Path,
    config: RunConfig | None = None,
    validation: Any = None,
    console: Console | None = None,
    *,
    tokenizers: Any = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    optimizer: keras.optimizers.Optimizer | None = None,
    loss: Any = None,
    init: Translator | str | Path | None = None,
    model: Callable[[TransformerConfig], keras.Model] | None = None,
    command: str | None = None,
) -> Translator:
    """Learns a vocabulary, trains a model with `model.fit`, and saves everything.

    The directory then holds config.json, data.json, tokenizer/, corpus/, states/,
    checkpoints/, log.csv, tensorboard/, summary.json and the translator: decoding.json
    and model.keras. `load(directory)` opens it.

    The final weights are the mean of the last checkpoints (`average_checkpoints`). With
    validation pairs the means of the last 1, 2, 3, 5 and 10 and the best checkpoint are
    validated too, and what is best by `monitor` is taken.

    Training proceeds in intervals of `save_every` batches. After each one the model is
    validated, and a checkpoint and the whole state are saved. With TensorFlow on two to
    four processor cores batches are split over them (`split_batches_over_cores`) unless
    the program has computed something before.

    Call this again with the same text and options to resume an interrupted run from its
    last state. Options that end the training may change; a limit that ended it within
    an interval leaves one checkpoint more. On the same kind and number of processor
    cores the final weights equal those of an uninterrupted run to the bit; on others
    they differ by rounding, and a warning is printed. A finished run is only loaded,
    unless its limits allow more training. SIGTERM, SIGHUP (a closed terminal) and the
    first Ctrl-C stop the run after the current batch and save its state.

    Args:
        text: Training pairs, as `open_pairs` returns or takes them. `clean_pairs` is
            applied to them.
        directory: Directory of the run: new, empty, or that of a run to resume.
        config: All options, except that the tokenizers determine the vocabulary sizes.
            Default `default_config(directory, init, text)`: those of an existing run,
            those for fine-tuning, or the preset for the number of pairs.
        validation: Pairs for the loss, accuracy and perplexity of every interval;
            default some of `text`, which are not trained on (`hold_out`).
        console: Rich console for progress; default the terminal.
        tokenizers: A `TokenizerPair`, one tokenizer for both sides as
            `TokenizerPair.of` takes it, or a tuple of two; default learned from `text`.
            With several workers give files, because TensorFlow must not run before.
        callbacks: Keras callbacks, for which an interval is an epoch. Figures that they
            add to the logs are logged. An `on_train_batch_end` makes the run wait for
            the device after every batch. A resumed run calls `on_train_begin` again. It
            is exact if callbacks keep no state, or have methods `state()`, whose result
            JSON can hold, and `restore(state)`.
        optimizer: A new Keras optimizer in place of that of the options.
        loss: A Keras loss that is a mean over targets, in place of a
            `MaskedCrossentropy` with `label_smoothing`.
        init: A `Translator`, or its directory, whose weights and tokenizers the run
            begins with (fine-tuning); default random weights. They are validated first,
            and kept if no update is better. If it is the directory of a run, pairs of
            that run are shown too (`replay`). The options `model`,
            except dropout rates, and `tokenizer` must be those of `init`, as in
            `default_config`. A resumed run does not need it.
        model: Function of `config.model` that returns the model to train: a subclass of
            `Transformer`, or any Keras model that `Translator` takes; default
            `Transformer`. Its dtype policy must be that of `mixed_precision`, which is
            "mixed_bfloat16" on a GPU unless given. A resumed run needs it again.
            Register its class with Keras.
        command: What resumes the run at a shell, for errors about an unfinished run.

    Returns:
        The trained `Translator`.

    Raises:
        BlockingIOError: If another process trains in `directory`.
        FileExistsError: If `directory` holds something other than a run.
        FloatingPointError: If a loss or gradient is not finite.
        KeyboardInterrupt: After Ctrl-C, with the state saved.
        OSError: If a file cannot be read.
        SystemExit: After SIGTERM (status 143) or SIGHUP (129), with the state saved.
        ValueError: If data or options are invalid, or differ from those of the run in
            `directory` or of `init`.

    Example:
        >>> pairs = open_pairs("train.en", "train.de")
        >>> train(pairs, "runs/en-de")(["Two men are talking."])
        ['Zwei Männer unterhalten sich.']
    """
    directory = Path(directory)
    job = _job(
        directory,
        text,
        config,
        validation,
        console,
        tokenizers=tokenizers,
        init=init,
        optimizer=optimizer,
        loss=loss,
        model=model,
        command=command,
    )
    with opened(job, directory) as run:
        if run is None:
            return Translator.load(directory)
        validated = Validation(run)
        train_to_the_end(run, callbacks, validated)
        return finish(run, validated)


def dry_run(
    text: Any,
    directory: str | Path,
    config: RunConfig | None = None,
    validation: Any = None,
    console: Console | None = None,
    **given: Any,
) -> dict[str, Any]:
    """Prints the plan of `train` with these arguments: data, device, parameters.

    It reads the text, learns the vocabulary and makes the model, but writes no files.
    It takes the arguments of `train` but `callbacks`, raises the same errors, and
    returns the printed numbers, under "model" and "data".
    """
    directory = Path(directory)
    job = _job(directory, text, config, validation, console, **given)
    with distribution_scope(job.config.training.distribute) as distribution:
        run = prepared(plan(job, directory), distribution)
    say(run.console, "nothing was trained or written: this was a dry run")
    return {name: run.facts[name] for name in ("model", "data")}


def _job(directory, text, config, validation, console, init=None, **others):
    """Returns the job of the arguments of `train`; opens the text that they name."""
    check_directory(directory)
    console = plain_console() if console is None else console
    text = open_pairs(text)
    if config is None:
        config = default_config(directory, init, text, console)
    split_by_default(config.training, console)
    text = clean_pairs(text, config.data.keep)
    wanted = config.training.hold_out
    if validation is not None:
        validation = open_pairs(validation)
        if wanted:
            raise ValueError(
                "`hold_out` must be left out or 0 where validation pairs are given. "
                f"Received: hold_out={wanted}"
            )
        wanted = 0
    sets = split(text, wanted, config.training.test_size)
    if not (directory / "config.json").exists():  # Said once.
        for line in str(text.cleaning).splitlines():
            say(console, line)
        report_held_out(console, sets, wanted)
    return Job(
        text=sets.training,
        config=config,
        validation=sets.validation if validation is None else validation,
        test=sets.test,
        console=console,
        init=init,
        **others,
    )


def default_config(
    directory: str | Path,
    init: Translator | str | Path | None = None,
    text: Any = None,
    console: Console | None = None,
) -> RunConfig:
    """Returns the default options of a run.

    An existing run has its own. A new one has the preset for its number of pairs; or
    with `init` the model, tokenizer and search options of that translator and training
    options for fine-tuning.

    Args:
        directory: Directory of the run.
        init: The translator that it begins with, or its directory.
        text: Training pairs, as `open_pairs` returns or takes them. Without them and
            `init` a new run has the paper's options.
        console: Rich console that is told the preset.

    Raises:
        FileNotFoundError: If `init` holds no translator.
        ValueError: If a file is damaged.

    Example:
        >>> config = default_config("runs/domain", init="runs/en-de")
        >>> config = config.with_options(epochs=20, dropout_rate=0.3)
    """
    if (own := Path(directory) / "config.json").exists():
        return RunConfig.load(own)
    if init is None:
        if text is None:
            return RunConfig()
        count = open_pairs(text).count()
        name = preset_for(count)
        if console is not None:
            words = f"the preset for {plural(count, 'pair')} is {name}"
            say(console, f"{words}: other options override it")
        return RunConfig.preset(name)
    if isinstance(init, Translator):
        check_initial(init.model)
        config = RunConfig(
            init.model.config, init.tokenizers.config, decoding=init.config
        )
        return config.with_options(**FINE_TUNING_IMPORTED)
    folder = trained_directory(init)
    config = RunConfig(
        read_config(folder / "model.keras"),
        TokenizerConfig.load(folder / "tokenizer" / "tokenizer.json"),
        decoding=DecodingConfig.load(folder / "decoding.json"),
    )
    if not (begun := folder / "config.json").exists():
        return config.with_options(**FINE_TUNING_IMPORTED)
    before = RunConfig.load(begun).training
    return config.with_options(
        **FINE_TUNING, label_smoothing=before.label_smoothing, robust=before.robust
    )


def train_to_the_end(
    run: Run, given: Sequence[keras.callbacks.Callback], validation: Validation
):
    """Trains interval by interval, until a limit is reached."""
    options = run.config.training
    is_chief = run.distribution.is_chief
    bar = TrainingBar(run.console, run.training.num_batches, options, run.state)
    log = Log(run) if is_chief else None
    with bar, StopSignals() as signals:
        callbacks = RunCallbacks(given, run, signals, bar)
        if run.state.step:
            callbacks.restore(run.state)
        callbacks.begin_run()
        if not run.state.step:  # `on_train_begin` may have changed a weight.
            run.state = callbacks.captured()
            if run.job.init and run.validation:
                keep_initial(run, callbacks, validation)
                if log:
                    log.add(run.state.history, run.state.seconds)
        try:
            while run.state.finished != run.limits:
                if is_over(run, callbacks) and run.state.has_row:
                    run.state.finished = run.limits  # lower ones than before
                else:
                    figures = train_interval(run, callbacks)
                    if figures is not None:
                        close_interval(run, callbacks, validation, figures)
                        if log:
                            log.add(run.state.history, run.state.seconds)
                if is_chief:
                    run.states.save(run.state)
                    history = run.state.history
                    remove_checkpoints(run.checkpoints, history, KEPT_STATES, options)
                if run.distribution.any(signals.received is not None):
                    other = "a signal to another process"
                    name = signals.received.name if signals.received else other
                    after = plural(run.state.updates, "update")
                    words = "run the same command again to resume"
                    say(run.console, f"stopped by {name} after {after}; {words}")
                    signals.stop()
        finally:
            callbacks.end_run()


def finish(run: Run, validation: Validation) -> Translator:
    """Makes the final model from the checkpoints, saves it and returns it."""
    options = run.config.training
    state = run.state
    is_chief = run.distribution.is_chief
    if is_chief or run.validation:  # All processes validate together.
        rows, figures, scores = _load_final(run, validation)
    if is_chief:
        remove_checkpoints(run.checkpoints, state.history, 1, options)
        translator = doubting(run)
        translator.save(run.path)
        tested = score_test_set(run, translator)
        warmup = options.warmup_steps
        rises = run.job.optimizer is None and state.updates < warmup
        if rises:
            warn(
                run.console,
                f"the run ended after {plural(state.updates, 'update')} of a "
                f"warm-up of {warmup:,}, while the learning rate still rose: train "
                "longer, or shorten `warmup_steps`",
            )
        facts = summary(
            run.facts,
            state,
            state.history[-1],
            weights=named(rows),
            averaged_checkpoints=len(rows),
            final=figures,
            candidates=scores,
            rate_still_rose=rises,
            **tested,
        )
        if not state.history[0]["step"]:
            facts["initial"] = state.history[0]
        write_json(run.path / SUMMARY, facts)
    run.distribution.wait()  # It is written.
    return translator if is_chief else Translator.load(run.path)


def _load_final(
    run: Run, validation: Validation
) -> tuple[list[dict], dict[str, float], dict[str, float]]:
    """Loads the mean of checkpoints that validates best, or the only candidate.

    Returns its rows, its figures, and the score of each candidate by its name.
    """
    options = run.config.training
    rows = rows_to_keep(run.state.history, options)
    rows = [row for row in rows if _can_load(run, row)]
    if not rows:
        warn(run.console, "the final weights are those of the last state")
        restore(run.model, run.state)
        run.model.optimizer.finalize_variable_values(run.model.trainable_weights)
        return [], validation.figures(), {}
    tried = []
    for mean in candidates(rows, options):
        load_average(run.model, checkpoints_of(run.checkpoints, mean))
        tried.append((mean, validation.figures()))
    if not run.validation:
        return *tried[0], {}
    taken, figures = max(tried, key=lambda each: rank(each[1], options))
    load_average(run.model, checkpoints_of(run.checkpoints, taken))
    score = f"val_{options.monitor}"
    scores = {named(mean): found[score] for mean, found in tried}
    if not taken[-1]["step"]:
        warn(run.console, f"no update improved {score} {figures[score]:.4f}")
    say(run.console, f"final weights: {named(taken)}, with the best {score} of")
    for name, value in scores.items():
        say(run.console, f"{value:10.4f}  {name}")
    return taken, figures, scores


def _can_load(run, row):
    """Returns whether a checkpoint can be loaded, and warns if it cannot."""
    try:
        load_average(run.model, checkpoints_of(run.checkpoints, [row]))
    except (FileNotFoundError, ValueError) as error:
        warn(run.console, f"the final weights do without it: {error}")
        return False
    return True
