"""The verbs that use a model: `evaluate`, `translate`, `clean` and `distill`."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections import Counter
from pathlib import Path

from keras_transformer.apps.cli.flags import (
    check_standard_output,
    given,
    load_module,
    load_pairs,
)
from keras_transformer.files import (
    check_another_file,
    check_file_to_write,
)
from keras_transformer.search.run_directory import (
    is_run,
    record_scores,
    weights_digest,
)
from keras_transformer.terminal import (
    native_messages_hidden,
    plural,
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
    text = load_pairs(options.test, options)
    bad_lines = load_module("text").BadLines(options.bad_line_share)
    pairs = [(pair.source, pair.target) for pair in text.pairs(bad_lines)]
    if bad_lines.count:
        print_warning(f"left out {bad_lines}")
    scores = evaluation.evaluate_translator(
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
    values |= {"output": options.output, "bad_lines": bad_lines.count}
    if options.robust:
        values["robust"] = {}
        for name, form in load_module("text.views").FORMS.items():
            written = itertools.starmap(form, pairs)
            found = evaluation.evaluate_translator(
                translator, written, show_progress=not options.quiet
            )
            print_result(f"BLEU {found.bleu:5.2f}  {name}")
            values["robust"][name] = found.bleu
    return values


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
    bulk = load_module("apps.bulk")
    if options.ray_workers is None:
        translator = load_translator(options)
    else:
        _check_for_ray(options)
        translator = bulk.RayTranslator(options.model, options.ray_workers)
    texts = options.texts
    name = "text " if texts else f"{options.input or 'standard input'}:"
    if options.output is not None and not texts:
        return _translate_file(translator, source, options, name)
    window = bulk.WINDOW
    if not texts and options.input is None and not sys.stdin.seekable():
        # A person waits for each line.
        window = 1 if sys.stdin.isatty() else _LINES_OF_A_PIPE
    texts, sources = itertools.tee(texts or bulk.read_texts(source))
    one_line = load_module("text.lines").one_line
    translations = bulk.translate_lines(
        _found_by(translator, options), texts, window=window
    )
    results = []
    cut = 0
    doubts = Counter()
    for number, (found, text) in enumerate(
        zip(translations, sources, strict=True), start=1
    ):
        if options.output is not None:
            results.append(_line(found, options))
        elif options.json:
            results.append(_object(found, text, options.n_best))
        else:
            line = _line(found, options)
            # A terminal shows escapes, but the text's own line breaks are lines.
            for part in line.split("\n") if "\n" in text else [one_line(line)]:
                print_result(part)
        best = found[0]
        if best.truncated:
            cut += 1
            _warn_of_cut(f"{name}{number}")
        doubts.update(best.doubts)
        if best.doubts:
            words = ", ".join([*best.doubts, *best.lost])
            print_warning(f"the translation of {name}{number} is doubtful: {words}")
    counts = {"truncated": cut, "doubts": dict(doubts)}
    if options.output is None:
        return {"translations": results} | counts
    load_module("text.lines").write_lines(options.output, results)
    return {"output": options.output, "sentences": len(results)} | counts


def _translate_file(translator, source, options, name):
    """Translates a file into a file; `name` stands before the number of a line."""
    bulk = load_module("apps.bulk")

    found_by = _found_by(translator, options)

    def translate(texts):
        rows = found_by(texts)
        return [found[0]._replace(text=_line(found, options)) for found in rows]

    summary = bulk.translate_file(
        translate,
        source,
        options.output,
        window=bulk.WINDOW * (options.ray_workers or 1),
        fingerprint=_fingerprint(translator, options),
        show_progress=not options.quiet,
    )
    if not options.quiet:
        print_message(str(summary))
    if summary.truncated:
        others = f", as {summary.truncated - 1:,} more" if summary.truncated > 1 else ""
        _warn_of_cut(f"{name}{summary.first_truncated}", others)
    return dataclasses.asdict(summary) | {"output": options.output}


def _found_by(translator, options):
    """Returns a function of texts that finds the translations of each, best first."""
    if options.n_best is None and not options.no_split:
        terms = _terms_of(options.terms)
        return lambda texts: [[best] for best in translator.translate(texts, *terms)]
    if options.terms is not None:
        raise ValueError("`--terms` needs whole texts: no `--n-best`, no `--no-split`.")
    return lambda texts: translator.nbest(texts, options.n_best or 1)


def _terms_of(file):
    """Returns `terms` and `dont_translate` of the lines of a file."""
    if file is None:
        return ()
    terms, stay = {}, []
    for number, line in enumerate(load_module("apps.bulk").read_texts(file), start=1):
        term, *new = line.split("\t")
        if not term.strip() or len(new) > 1:
            raise ValueError(
                f"{file}:{number}: a line must be a word, a tab and its translation, "
                f"or a word that stays. Received: {line!r:.100}"
            )
        if new:
            terms[term] = new[0]
        else:
            stay.append(term)
    return terms, stay


def _line(found, options):
    """Returns the line of a text's translations, with the columns that are wanted."""
    if options.n_best is None and not options.scores:
        return found[0].text
    columns = []
    for translation in found:
        if options.scores:
            columns.append(f"{translation.score:.4f}")
        columns.append(" ".join(translation.text.split("\t")))
    return "\t".join(columns)


def _object(found, source, n_best):
    """Returns what `--json` says of a text."""
    alternatives = [
        {"text": one.text, "score": one.score, "doubt": one.doubt} for one in found
    ]
    best = found[0]
    told = {
        "source": source,
        **alternatives[0],
        "truncated": best.truncated,
        "doubts": best.doubts,
        "lost": best.lost,
    }
    if best.sentences:
        told["sentences"] = [sentence._asdict() for sentence in best.sentences]
    return told if n_best is None else told | {"n_best": alternatives}


def _warn_of_cut(place, others=""):
    print_warning(f"{place} is too long and was cut{others}: see --max-source-length")


def clean(options):
    """Writes pairs without those that are certainly wrong, or least likely."""
    check_file_to_write(options.output)
    text = load_module("text").clean_pairs(
        load_pairs(options.files, options), options.keep
    )
    for line in str(text.cleaning).splitlines():
        print_result(line)
    found = load_module("apps.bulk").write_pairs(
        text,
        options.output,
        by=options.model and load_translator(options),
        by_share=options.by_share,
        bad_line_share=options.bad_line_share,
        show_progress=not options.quiet,
    )
    if found["bad_lines"]:
        places = "; ".join(found["first_bad_lines"])
        print_warning(f"left out {plural(found['bad_lines'], 'bad line')}: {places}")
    if options.model:
        print_result(f"left out the {plural(found['unlikely'], 'least likely pair')}")
    print_result(f"{options.output}: {plural(found['pairs'], 'pair')}")
    rules = {"lines": text.cleaning.lines, "rules": text.cleaning.counts}
    return {"output": options.output} | rules | found


def distill(options):
    """Writes a teacher's translations of training sources as training pairs."""
    check_file_to_write(options.output)
    teacher = load_runs(options.models, options)
    bulk = load_module("apps.bulk")
    search = teacher.config.to_json()
    parts = [bulk.model_fingerprint(run, search) for run in options.models]
    summary = bulk.distill(
        teacher,
        load_pairs(options.train, options),
        options.output,
        best_of=options.best_of,
        bad_line_share=options.bad_line_share,
        fingerprint=" ".join(parts),
        facts={"command": options.command, "search": teacher.config.to_dict()},
        show_progress=not options.quiet,
    )
    if not options.quiet:
        print_message(str(summary))
    return dataclasses.asdict(summary) | {"output": options.output}


def _check_for_ray(options):
    """Raises `ValueError` unless the options of `translate` fit `--ray-workers`."""
    if options.input is None or options.output is None:
        raise ValueError("`--ray-workers` needs `--input` and `--output`.")
    _check_no_search(options)


def _fingerprint(translator, options):
    """Identifies model and options: only the same may continue an output."""
    path = options.model
    what = f"n_best={options.n_best}, scores={options.scores}"
    what += f", no_split={options.no_split}, terms={_terms_of(options.terms)}"
    if is_run(path):
        what += translator.config.to_json()
    else:
        path = translator.path  # With the version that was chosen.
        what += str(given(options))
    return load_module("apps.bulk").model_fingerprint(path, what)


def load_translator(options):
    """Returns the translator of a run directory or an export."""
    if is_run(options.model):
        return load_runs([options.model], options)
    _check_no_search(options, {"doubt_above"})
    load = load_module("formats.load").load
    with native_messages_hidden():
        translator = load(options.model)
    if "doubt_above" in given(options):
        translator.doubt_above = given(options)["doubt_above"]
    return translator


def load_runs(runs, options):
    """Returns a run's translator, or several as an ensemble, with the search given."""
    kind = load_module("search.translator").Translator
    translator = kind.load(*runs) if len(runs) == 1 else kind.ensemble(runs)
    config = translator.config.replace(**given(options))
    return kind(translator.model, translator.tokenizers, config)


def _check_no_search(options, allowed=frozenset()):
    if changes := given(options).keys() - allowed:
        raise ValueError(
            "An export decodes as it was written; give decoding options to "
            f"`export`. Received: {', '.join(sorted(changes))}"
        )
