"""The verbs that use a trained model: `evaluate` and `translate`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from keras_transformer.cli.flags import (
    PAIRS_HELP,
    add_columns_flag,
    add_decoding_flags,
    add_verb,
    sentence,
)
from keras_transformer.cli.loading import (
    check_no_decoding_options,
    is_run,
    load_module,
    load_pairs,
    load_translator,
)
from keras_transformer.cli.results import check_standard_output, print_remark
from keras_transformer.files import check_not_directory
from keras_transformer.terminal import print_message, print_result

# Options of an export's signatures, which `evaluate` and `translate` do not use.
_OF_EXPORTS = {"n_best", "top_k", "top_p", "alignment_layer"}


def add_verbs(verbs):
    """Adds the verbs to what `add_subparsers` of the parser returned."""
    _add_evaluate(verbs)
    _add_translate(verbs)


def _add_evaluate(verbs):
    parser = add_verb(
        verbs,
        "evaluate",
        _evaluate,
        "Translate a test set and score it (sacreBLEU).",
        "Translate a test set and score it (sacreBLEU). The scores of a training run "
        "are kept in its scores.json, for the model card.",
        examples=(
            "evaluate --model runs/en-de --test test.en test.de --output test.out.de",
            "evaluate --model saved_models/en-de --test test.tsv.gz --json",
        ),
    )
    _add_model(parser)
    parser.add_argument(
        "--test", nargs="+", required=True, metavar="FILE", help=PAIRS_HELP
    )
    add_columns_flag(parser)
    parser.add_argument("--output", type=Path, help="file for the translations")
    add_decoding_flags(parser, without=_OF_EXPORTS)


def _evaluate(options):
    check_standard_output()
    evaluation = load_module("evaluation")
    translator = load_translator(options)
    text = load_pairs(options.test, options.columns)
    pairs = ((pair.source, pair.target) for pair in text.pairs())
    scores = evaluation.evaluate(
        translator, pairs, options.output, show_progress=not options.quiet
    )
    for line in str(scores).splitlines():
        print_result(line)
    values = dataclasses.asdict(scores)
    if is_run(options.model):
        _record(options, text, translator.config, values)
    return values | {"output": options.output}


def _record(options, text, search, scores):
    """Keeps the scores in the run, for its model card; that it cannot is no error."""
    name = " and ".join(Path(name).name for name in options.test)
    facts = load_module("export.run_facts")
    try:
        facts.record_scores(options.model, name, text.fingerprint(), search, scores)
    except OSError as error:
        print_message(
            f"keras-transformer: warning: the scores were not recorded: {error}"
        )


def _add_translate(verbs):
    parser = add_verb(
        verbs,
        "translate",
        _translate,
        "Translate arguments, a file or standard input, one sentence a line.",
        examples=(
            'translate --model runs/en-de "Two men are talking."',
            "translate --model runs/en-de --input news.en.gz --output news.de",
            'translate --model saved_models/en-de --n-best 3 --scores "Good morning."',
            "translate --model lite/en-de < news.en > news.de",
        ),
    )
    _add_model(parser)
    parser.add_argument(
        "texts", nargs="*", type=sentence, metavar="TEXT", help="sentences"
    )
    parser.add_argument(
        "--input",
        type=Path,
        help="file of sentences, gzipped or not, of any size (default: standard input)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="file for the translations; after an interruption the same command "
        "continues where it stopped",
    )
    parser.add_argument(
        "--ray-workers",
        type=int,
        metavar="N",
        help="translate on N processes or machines with Ray (extra `ray`); for a "
        "SavedModel and files",
    )
    _add_columns(parser)
    add_decoding_flags(parser, without=_OF_EXPORTS)


def _add_columns(parser):
    parser.add_argument(
        "--n-best",
        type=int,
        metavar="N",
        help="give the N best translations of a sentence, best first, on one line, "
        "with tabs between; at most the beam size, or the --n-best of an export "
        "(default: 1)",
    )
    parser.add_argument(
        "--scores",
        action="store_true",
        help="put before each translation its score and a tab: its log-probability "
        "(nats) over the length penalty",
    )


def _translate(options):
    if options.texts and options.input:
        raise ValueError("Give sentences or `--input`, not both.")
    if options.output is not None:
        check_not_directory(options.output)
    if options.ray_workers is not None:
        return _translate_with_ray(options)
    if options.output is None:
        check_standard_output(", or give `--output`")
    if not options.texts and options.input is None and sys.stdin is None:
        raise ValueError(
            "Standard input must be open, or give sentences or `--input`. Received: it "
            "is closed"
        )
    translator = load_translator(options)
    if options.output is None and options.json:
        return {"translations": list(_found(translator, options))}
    translate = _with_columns(translator, options)
    if options.output is None:
        return _print_translations(translate, options)
    if options.texts:
        translations = translate(options.texts)
        load_module("evaluation").write_lines(options.output, translations)
        return {"output": options.output, "sentences": len(translations)}
    summary = load_module("bulk").translate_file(
        translate,
        sys.stdin.buffer if options.input is None else options.input,
        options.output,
        fingerprint=_fingerprint(translator, options),
        show_progress=not options.quiet,
    )
    return _written(summary, options)


def _written(summary, options):
    """Says what a file's translation did, and returns it for `--json`."""
    print_remark(options, str(summary))
    return dataclasses.asdict(summary) | {"output": options.output}


def _found(translator, options):
    """Yields what was found for each text, for `--json`."""
    bulk = load_module("bulk.translate")
    texts = options.texts or bulk.read_texts(options.input or sys.stdin.buffer)
    count = options.n_best or 1
    for window in bulk.windows_of(texts, bulk.WINDOW):
        found = translator.translate(window, count)
        for source, several in zip(window, found, strict=True):
            alternatives = [{"text": one.text, "score": one.score} for one in several]
            yield {"source": source, **alternatives[0]} | (
                {} if options.n_best is None else {"n_best": alternatives}
            )


def _with_columns(translator, options):
    """Returns a function of texts that gives the line of each."""
    if options.n_best is None and not options.scores:
        return translator
    count = 1 if options.n_best is None else options.n_best

    def line(translations):
        columns = []
        for text, score in translations:
            columns += [f"{score:.4f}"] if options.scores else []
            columns.append(" ".join(text.split("\t")))
        return "\t".join(columns)

    return lambda texts: [line(found) for found in translator.translate(texts, count)]


def _print_translations(translate, options):
    bulk, lines = load_module("bulk.translate"), load_module("text.lines")
    texts, window = options.texts, bulk.WINDOW
    if not texts:
        texts = bulk.read_texts(options.input or sys.stdin.buffer)
    if not options.texts and options.input is None and not sys.stdin.seekable():
        # A person waits for each line, and a program may write its lines slowly.
        window = 1 if sys.stdin.isatty() else 32
    for translation in bulk.translate_lines(translate, texts, window=window):
        print_result(lines.one_line(translation))


def _fingerprint(translator, options):
    """Identifies model and options: only the same may continue an output."""
    model_fingerprint = load_module("bulk").model_fingerprint
    columns = ""
    if options.n_best is not None or options.scores:
        columns = f"n_best={options.n_best}, scores={options.scores}"
    if not is_run(options.model):
        return model_fingerprint(translator.path, columns)
    return model_fingerprint(options.model, translator.config.to_json() + columns)


def _translate_with_ray(options):
    if options.ray_workers < 1:
        raise ValueError(
            "`--ray-workers` must be at least 1. Received: "
            f"--ray-workers {options.ray_workers}"
        )
    if options.input is None or options.output is None:
        raise ValueError("`--ray-workers` needs `--input` and `--output`.")
    if options.n_best is not None or options.scores:
        raise ValueError(
            "`--n-best` and `--scores` do not go with `--ray-workers`: leave out either"
        )
    if is_run(options.model):
        raise ValueError(
            "`--ray-workers` needs a SavedModel: `export` writes one. Received: "
            f"--model {options.model}, a training run"
        )
    check_no_decoding_options(options)
    bulk = load_module("bulk")
    translate = bulk.RayTranslator(options.model, options.ray_workers)
    summary = bulk.translate_file(
        translate,
        options.input,
        options.output,
        window=bulk.WINDOW * options.ray_workers,
        fingerprint=bulk.model_fingerprint(translate.path),
        show_progress=not options.quiet,
    )
    return _written(summary, options)


def _add_model(parser):
    parser.add_argument(
        "--model",
        type=Path,
        required=True,
        help="what translates: the directory of a training run, a SavedModel (NAME or "
        "NAME/VERSION) or a LiteRT export",
    )
