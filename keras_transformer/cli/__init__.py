"""The command line: each verb calls one function of the package."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings

from keras_transformer.cli.flags import given, run_config
from keras_transformer.cli.parser import make_parser
from keras_transformer.files import check_not_directory
from keras_transformer.terminal import (
    print_message,
    print_result,
    replace_closed_streams,
)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: Words after the program's name; default those of the process.

    Returns:
        The exit status: 0, or 1 after an error, which is one line on standard error.
        Bad usage ends the process with status 2, as `argparse` does.
    """
    replace_closed_streams()
    options = make_parser().parse_args(arguments)
    try:
        _VERBS[options.verb](options)
        # A reader that has gone shows here, not in Python's own flush at exit.
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _fail("interrupted")
    except BrokenPipeError:
        # The reader of our output has gone; Python's own flush at exit must not fail.
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if options.traceback:
            raise
        return _fail(_describe(error))
    return 0


def _fail(message):
    print_message(f"keras-transformer: error: {message}")
    return 1


def _describe(error):
    """Returns one line about an error; its kind too where the text may not do alone."""
    expected = (ValueError, TypeError, ImportError, FloatingPointError)
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    message = " ".join(str(error).split())
    if isinstance(error, (*expected, OSError)) and message:
        return message
    hint = "keras-transformer --traceback VERB ... shows where"
    return f"{type(error).__name__}: {message} ({hint})"


def _open(files):
    with _quiet():
        from keras_transformer.text import open_pairs

    if len(files) > 2:
        raise ValueError(
            "Pairs come in two aligned files or in one file of tab-separated lines. "
            f"Received: {len(files)} files"
        )
    return open_pairs(*files)


@contextlib.contextmanager
def _quiet():
    """Hides what TensorFlow's native code prints to standard error when imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def _load(options):
    """Returns the translator of a run directory or of a SavedModel."""
    if not options.model.is_dir():
        raise FileNotFoundError(f"{options.model} is not a directory.")
    if _is_run(options.model):
        return _load_run(options)
    _check_no_decoding_options(options)
    with _quiet():
        from keras_transformer.export import ExportedTranslator

    return ExportedTranslator(options.model)


def _is_run(directory):
    return (directory / "model.keras").exists()


def _check_no_decoding_options(options):
    if changes := given(options, "decoding"):
        raise ValueError(
            "A SavedModel decodes as it was exported; give decoding options to "
            f"`export`. Received: {', '.join(sorted(changes))}"
        )


def _load_run(options):
    """Returns the translator of a run directory, with the decoding options given."""
    with _quiet():
        from keras_transformer.translator import Translator

    translator = Translator.load(options.model)
    config = translator.config.replace(**given(options, "decoding"))
    return Translator(translator.model, translator.tokenizers, config)


def _quickstart(options):
    with _quiet():
        from keras_transformer.quickstart import CONFIG, quickstart
        from keras_transformer.training import split_by_default

    split_by_default(CONFIG.training)
    quickstart(options.language, options.directory, options.saved_models)


def _train(options):
    config = run_config(options)
    with _quiet():
        from keras_transformer.training import split_by_default, train

    split_by_default(config.training)
    validation = _open(options.valid) if options.valid else None
    train(_open(options.train), options.directory, config, validation)


def _average(options):
    with _quiet():
        from keras_transformer.training import average_run

    paths = average_run(options.run, options.output, options.last, options.checkpoints)
    names = ", ".join(path.name for path in paths)
    print_result(f"{options.output}: the mean of {names}")


def _evaluate(options):
    _check_standard_output()
    with _quiet():
        from keras_transformer.evaluation import evaluate

    translator = _load(options)
    pairs = ((pair.source, pair.target) for pair in _open(options.test).pairs())
    scores = evaluate(translator, pairs, options.output, show_progress=True)
    for line in str(scores).splitlines():
        print_result(line)


def _check_standard_output(instead=""):
    """Checks before hours of work that its result can be printed."""
    if sys.stdout is None:
        raise ValueError(
            f"Standard output must be open{instead}. Received: it is closed"
        )


def _translate(options):
    if options.texts and options.input:
        raise ValueError("Give sentences or `--input`, not both.")
    if options.output is not None:
        check_not_directory(options.output)
    if options.ray_workers is not None:
        return _translate_with_ray(options)
    if options.output is None:
        _check_standard_output(", or give `--output`")
    if not options.texts and options.input is None and sys.stdin is None:
        raise ValueError(
            "Standard input must be open, or give sentences or `--input`. Received: it "
            "is closed"
        )
    translator = _load(options)
    if options.output is None:
        return _print_translations(translator, options)
    with _quiet():
        from keras_transformer.bulk import translate_file
        from keras_transformer.evaluation import write_lines

    if options.texts:
        return write_lines(options.output, translator(options.texts))
    summary = translate_file(
        translator,
        sys.stdin.buffer if options.input is None else options.input,
        options.output,
        fingerprint=_fingerprint(translator, options),
        show_progress=True,
    )
    print_message(str(summary))


def _print_translations(translator, options):
    with _quiet():
        from keras_transformer.bulk import read_texts, translate_lines
        from keras_transformer.bulk.translate import BATCH_SIZE, WINDOW
        from keras_transformer.text.lines import one_line

    texts, window = options.texts, WINDOW
    if not texts:
        texts = read_texts(options.input or sys.stdin.buffer)
    if not options.texts and options.input is None and not sys.stdin.seekable():
        # A person waits for each line, and a program may write its lines slowly.
        window = 1 if sys.stdin.isatty() else BATCH_SIZE
    for translation in translate_lines(translator, texts, window=window):
        print_result(one_line(translation))


def _fingerprint(translator, options):
    """Returns what an interrupted output can be gone on with."""
    from keras_transformer.bulk import model_fingerprint

    if not _is_run(options.model):
        return model_fingerprint(translator.path)
    return model_fingerprint(options.model, translator.config.to_json())


def _translate_with_ray(options):
    if options.ray_workers < 1:
        raise ValueError(
            "`--ray-workers` must be at least 1. Received: "
            f"--ray-workers {options.ray_workers}"
        )
    if options.input is None or options.output is None:
        raise ValueError("`--ray-workers` needs `--input` and `--output`.")
    if _is_run(options.model):
        raise ValueError(
            "`--ray-workers` needs a SavedModel: `export` writes one. Received: "
            f"--model {options.model}, a training run"
        )
    _check_no_decoding_options(options)
    with _quiet():
        from keras_transformer.bulk.ray_workers import RayWorkers, translate_text

    workers = RayWorkers(options.ray_workers)
    summary = translate_text(
        options.model, options.input, options.output, workers, show_progress=True
    )
    print_message(str(summary))


def _export(options):
    translator = _load_run(options)
    with _warnings_as_lines():
        path = translator.export(options.output, options.dtype, options.jit_compile)
    print_result(path)


@contextlib.contextmanager
def _warnings_as_lines():
    """Prints each warning to users once, on a line like that of an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", UserWarning)
        yield
    for warning in dict.fromkeys(str(warning.message) for warning in caught):
        message = " ".join(warning.split())
        print_message(f"keras-transformer: warning: {message}")


def _serve(options):
    from keras_transformer.serving import ServingConfig, check_directory, serve

    config = ServingConfig(**given(options, "serving"))
    check_directory(options.directory)
    with _quiet():
        import keras_transformer.serving.served_model  # noqa: F401
    serve(options.directory, config)


def _plot(options):
    check_not_directory(options.output)
    with _quiet():
        from keras_transformer.cli import plot as verb

    translator = None
    if options.kind == "attention":
        if not _is_run(options.model):
            raise ValueError(
                "`plot attention` needs the directory of a training run. Received: "
                f"--model {options.model}"
            )
        translator = _load_run(options)
    with _warnings_as_lines():
        verb.plot(options, translator)
    print_result(options.output)


_VERBS = {
    "quickstart": _quickstart,
    "train": _train,
    "average": _average,
    "evaluate": _evaluate,
    "translate": _translate,
    "export": _export,
    "serve": _serve,
    "plot": _plot,
}
