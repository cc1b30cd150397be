"""The verbs that bring a run to others: `export`, `serve`, `plot`."""

from __future__ import annotations

import inspect
import random
import shlex

from keras_transformer.apps.cli.flags import given, load_module
from keras_transformer.apps.cli.use_verbs import load_runs
from keras_transformer.config.options import check_number
from keras_transformer.files import check_absent, replacing
from keras_transformer.formats.versions import check_no_pattern
from keras_transformer.search.run_directory import (
    TRAINING_IDS,
    is_run,
    trained_directory,
    weights_digest,
)
from keras_transformer.terminal import (
    print_message,
    print_result,
    print_warning,
)

# What CTranslate2 takes of the search; it is told the rest in each call.
_OF_CTRANSLATE2 = {
    "alignment_layer",
    "max_source_length",
    "max_output_length",
    "max_extra_length",
}
_SHORTLISTED = "saved_model", "litert", "onnx"
_DOTS_PER_INCH = 150


def export(options):
    """Writes runs in the form of another program."""
    if options.format == "saved_model":
        check_no_pattern(options.output)
    # Else the directory of the model's versions, where the next one goes.
    if options.format != "saved_model" or options.output.name.isdecimal():
        check_absent(options.output)
    names = (
        "dtype",
        "quantize",
        "languages",
        "litert_js",
        "fixed_lengths",
        "no_examples",
    )
    values = {n: getattr(options, n) for n in names if getattr(options, n)}
    writers = load_module("formats.exporters").EXPORTERS
    takes = {kind: inspect.signature(f).parameters for kind, f in writers.items()}
    for name in values.keys() - takes[options.format]:
        formats = " or ".join(kind for kind in takes if name in takes[kind])
        raise ValueError(
            f"`--{name.replace('_', '-')}` goes with `--format {formats}`. Received: "
            f"--format {options.format}"
        )
    searched = given(options).keys() - _OF_CTRANSLATE2
    if options.format == "ctranslate2" and searched:
        raise ValueError(
            "CTranslate2 is told how to search in each call, not at export. Received: "
            f"{', '.join(sorted(searched))}"
        )
    run = None
    if "run" in takes[options.format] and len(options.models) == 1:
        run = values["run"] = options.models[0]  # For card and examples; of one run.
    weights = run and weights_digest(run)
    translator = load_runs(options.models, options)
    if options.shortlist:
        translator = _with_shortlist(translator, options)
    if options.format in ("litert", "onnx", "web") and not options.quiet:
        print_message("converting: this takes a minute")
    path = translator.export(options.output, format=options.format, **values)
    if run and weights_digest(run) != weights:
        print_warning(
            f"{run} has other weights by now: what {path} says of its training and "
            "scores may be theirs"
        )
    print_result(path)
    return {"path": path, "format": options.format}


def _with_shortlist(translator, options):
    """Returns the translator with a shortlist learned from its run's corpus."""
    if options.format not in _SHORTLISTED or len(options.models) > 1:
        raise ValueError(
            "`--shortlist` goes with one run and `--format` "
            f"{' or '.join(_SHORTLISTED)}."
        )
    path = options.models[0] / TRAINING_IDS
    tokenizers = translator.tokenizers
    ids, ends = load_module("text.corpus").read_ids(path)
    count = (len(ends) - 1) // 2
    sizes = tokenizers.vocabulary_sizes.values()
    pairs = (
        [ids[ends[side] : ends[side + 1] - 1] for side in (2 * pair, 2 * pair + 1)]
        for pair in random.Random(0).sample(range(count), count)
    )
    learn = load_module("search.shortlist").learn_shortlist
    shortlist = learn(pairs, *sizes, joint=tokenizers.config.joint_vocabulary)
    kind = type(translator)
    model = translator.model
    return kind(model, tokenizers, translator.config, shortlist)


def serve(options):
    """Serves a SavedModel until Ctrl-C."""
    if is_run(options.model):
        run = trained_directory(options.model)
        words = "export", run, "--output", f"saved_models/{run.absolute().name}"
        command = shlex.join(["keras-transformer", *map(str, words)])
        raise ValueError(f"{run} is a training run. First: {command}")
    load_module("apps.serving").serve(
        options.model,
        options.host,
        options.port,
        options.doubt_above,
        options.corrections,
    )


def plot_attention(options):
    """Draws what the layers of a run attend to in a sentence."""
    plots = load_module("apps.plots")
    translator = load_runs([options.model], options)
    weights, queries, keys = plots.sentence_attention(
        translator, options.text, options.translation, kind=options.of
    )
    layer = options.layer
    last = len(weights) - 1
    check_number("layer", layer, int, minimum=-len(weights), maximum=last)
    title = f"{options.of} attention, layer {layer % len(weights)}"
    figure = plots.attention(weights[layer], queries, keys, title=title)
    return _written(figure, options.output)


def plot_training(options):
    """Draws loss and scores of a run over its epochs."""
    training_curves = load_module("apps.plots").training_curves
    figure = training_curves(options.model, options.metrics)
    return _written(figure, options.output)


def _written(figure, path):
    """Writes a picture, whole or not at all; returns its path."""
    ending = path.suffix.lstrip(".").lower()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=ending, dpi=_DOTS_PER_INCH)
    print_result(path)
    return {"path": path}
