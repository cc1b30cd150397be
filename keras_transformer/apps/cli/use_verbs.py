"""The verbs that translate with a trained model: `evaluate` and `translate`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from keras_transformer.apps.cli.flags import (
    check_standard_output,
    given,
    load_module,
    load_pairs,
)
from keras_transformer.config import DataConfig
from keras_transformer.files import (
    check_another_file,
    check_file_to_write,
)
from keras_transformer.formats.versions import latest_version
from keras_transformer.search.run_directory import record_scores, weights_digest
from keras_transformer.terminal import (
    native_messages_hidden,
    print_message,
    print_result,
    print_warning,
)

_LINES_OF_A_PIPE = 32  # Translated together, where a program may write them slowly.


def evaluate(options):
    """Scores the translations of a test set."""
    check_standard_output()
    if options.output is not None:
        check_file_to_write(options.output)
        check_another_file(options.output, options.test)
    translator, weights = _with_digest(options)
    evaluation = load_module("training.evaluation")
    text = load_pairs(options.test, options.columns)
    bad_lines = load_module("text").BadLines(_bad_line_budget(options))
    pairs = [(pair.source, pair.target) for pair in text.pairs(bad_lines)]
    if bad_lines.count:
        print_warning(f"left out {bad_lines}")
    scores = evaluation.evaluate(
        translator, pairs, options.output, show_progress=not options.quiet
    )
    for line in str(scores).splitlines():
        print_result(line)
    values = dataclasses.asdict(scores)
    if weights is not None:
        name = " and ".join(Path(name).name for name in options.test)
        try:
            record_scores(
                options.model,
                name=name,
                fingerprint=text.fingerprint(),
                search=translator.config,
                scores=values,
                weights=weights,
            )
        except OSError as error:
            print_warning(f"the scores were not recorded: {error}")
        if weights_digest(options.model) != weights:
            print_warning(
                f"{options.model} has other weights by now: the scores are those of "
                "the weights before"
            )
    return values | {"output": options.output, "bad_lines": bad_lines.count}


def _bad_line_budget(options):
    """Returns the number of `--bad-line-budget`, which must not be negative."""
    return DataConfig(bad_line_budget=options.bad_line_budget).bad_line_budget


def _with_digest(options):
    """Returns the translator and, of a run, the digest of the weights that it has."""
    if not is_run(options.model):
        return load_translator(options), None
    translator = weights = None
    # A training may replace the weights while they are read.
    while translator is None or weights != weights_digest(options.model):
        weights = weights_digest(options.model)
        translator = load_translator(options)
    return translator, weights


def translate(options):
    """Translates arguments, a file or standard input."""
    if options.texts and options.input:
        raise ValueError("Give sentences or `--input`, not both.")
    if options.output is None:
        check_standard_output(", or give `--output`")
    else:
        check_file_to_write(options.output)
    source = options.input or getattr(sys.stdin, "buffer", None)
    if not options.texts and source is None:
        raise ValueError(
            "Standard input must be open, or give sentences or `--input`. Received: it "
            "is closed"
        )
    workers = _ray_workers(options)
    bulk = load_module("apps.bulk")
    if workers:
        translator = bulk.RayTranslator(options.model, workers)
    else:
        translator = load_translator(options)
    texts = options.texts
    translate = _with_columns(translator, options)
    name = "sentence " if texts else f"{options.input or 'standard input'}:"
    if options.output is None:
        texts = texts or bulk.read_texts(source)
        if options.json:
            translations = list(_found(translator, texts, options.n_best))
            for number, found in enumerate(translations, start=1):
                if found["truncated"]:
                    _warn_of_cut(f"{name}{number}")
            return {"translations": translations}
        window = bulk.WINDOW
        if not options.texts and options.input is None and not sys.stdin.seekable():
            # A person waits for each line.
            window = 1 if sys.stdin.isatty() else _LINES_OF_A_PIPE
        one_line = load_module("text.lines").one_line
        translations = bulk.translate_lines(translate, texts, window=window)
        for number, translation in enumerate(translations, start=1):
            print_result(one_line(translation.text))
            if translation.truncated:
                _warn_of_cut(f"{name}{number}")
        return None
    if texts:
        translations = translate(texts)
        lines = [translation.text for translation in translations]
        load_module("training.evaluation").write_lines(options.output, lines)
        cut = [i for i, found in enumerate(translations, start=1) if found.truncated]
        for number in cut:
            _warn_of_cut(f"{name}{number}")
        return {
            "output": options.output,
            "sentences": len(lines),
            "truncated": len(cut),
        }
    summary = bulk.translate_file(
        translate,
        source,
        options.output,
        window=bulk.WINDOW * (workers or 1),
        fingerprint=_fingerprint(translator, options),
        show_progress=not options.quiet,
    )
    if not options.quiet:
        print_message(str(summary))
    if summary.truncated:
        others = f", as {summary.truncated - 1:,} more" if summary.truncated > 1 else ""
        _warn_of_cut(f"{name}{summary.first_truncated}", others)
    return dataclasses.asdict(summary) | {"output": options.output}


def _warn_of_cut(place, others=""):
    print_warning(f"{place} is too long and was cut{others}: see --max-source-length")


def distill(options):
    """Writes a teacher's translations of training sources as training pairs."""
    check_file_to_write(options.output)
    teacher = load_runs(options.models, options)
    bulk = load_module("apps.bulk")
    search = teacher.config.to_json()
    parts = [bulk.model_fingerprint(run, search) for run in options.models]
    summary = bulk.distill(
        teacher,
        load_pairs(options.train, options.columns),
        options.output,
        best_of=options.best_of,
        bad_line_budget=_bad_line_budget(options),
        fingerprint=" ".join(parts),
        facts={"command": options.command, "search": teacher.config.to_dict()},
        show_progress=not options.quiet,
    )
    if not options.quiet:
        print_message(str(summary))
    return dataclasses.asdict(summary) | {"output": options.output}


def _ray_workers(options):
    """Returns the number of `--ray-workers`, or `None`, after checking the rest."""
    number = options.ray_workers
    if number is None:
        return None
    if number < 1:
        raise ValueError(f"`--ray-workers` must be at least 1. Received: {number}")
    if options.input is None or options.output is None:
        raise ValueError("`--ray-workers` needs `--input` and `--output`.")
    if options.n_best is not None or options.scores:
        raise ValueError("Leave out `--n-best` and `--scores`, or `--ray-workers`.")
    if is_run(options.model):
        raise ValueError(
            "`--ray-workers` needs a SavedModel: `export` writes one. Received: "
            f"{options.model}, a training run"
        )
    _check_no_search(options)
    return number


def _found(translator, texts, n_best):
    """Yields what was found for each text, for `--json`."""
    bulk = load_module("apps.bulk")
    for window in bulk.windows_of(texts, bulk.WINDOW):
        found = translator.translate(window, n_best or 1)
        for source, several in zip(window, found, strict=True):
            alternatives = [{"text": one.text, "score": one.score} for one in several]
            more = {} if n_best is None else {"n_best": alternatives}
            is_cut = {"truncated": several[0].truncated}
            yield {"source": source, **alternatives[0], **is_cut, **more}


def _with_columns(translator, options):
    """Returns a function of texts that gives the line of each as a `Translation`."""
    if options.n_best is None and not options.scores:
        return load_module("apps.bulk").best_translations(translator)
    count = 1 if options.n_best is None else options.n_best

    def line(translations):
        columns = []
        for translation in translations:
            columns += [f"{translation.score:.4f}"] if options.scores else []
            columns.append(" ".join(translation.text.split("\t")))
        return translations[0]._replace(text="\t".join(columns))

    return lambda texts: [line(found) for found in translator.translate(texts, count)]


def _fingerprint(translator, options):
    """Identifies model and options: only the same may continue an output."""
    path = options.model
    what = f"n_best={options.n_best}, scores={options.scores}"
    if is_run(path):
        what += translator.config.to_json()
    else:
        path = translator.path  # With the version that was chosen.
    return load_module("apps.bulk").model_fingerprint(path, what)


def load_translator(options):
    """Returns the translator of a run directory, a SavedModel or a LiteRT export."""
    if not options.model.is_dir():
        raise FileNotFoundError(
            f"{options.model} is not a directory: MODEL is that of a training run, a "
            "SavedModel or a LiteRT export."
        )
    if is_run(options.model):
        return load_runs([options.model], options)
    _check_no_search(options)
    if (options.model / "translator.json").exists():
        lite = load_module("formats.lite_translator").LiteTranslator
        with native_messages_hidden():
            return lite(options.model)
    path = latest_version(options.model)
    return load_module("formats.saved_model").ExportedTranslator(path)


def is_run(path: Path) -> bool:
    """Whether it is the directory of a run, finished or not, and not an export."""
    return any((path / name).exists() for name in ("model.keras", "data.json"))


def load_runs(runs, options):
    """Returns a run's translator, or several as an ensemble, with the search given."""
    kind = load_module("search.translator").Translator
    translator = kind.load(*runs) if len(runs) == 1 else kind.ensemble(runs)
    config = translator.config.replace(**given(options))
    return kind(translator.model, translator.tokenizers, config)


def _check_no_search(options):
    if changes := given(options):
        raise ValueError(
            "An export decodes as it was written; give decoding options to "
            f"`export`. Received: {', '.join(sorted(changes))}"
        )
