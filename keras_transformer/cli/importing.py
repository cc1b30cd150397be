"""The verb `import`: another system's translator becomes a run directory."""

from __future__ import annotations

from pathlib import Path

from keras_transformer.cli.flags import add_verb
from keras_transformer.cli.loading import load_module
from keras_transformer.terminal import print_result

_FORMATS = ("marian", "hugging_face", "ctranslate2")


def add_verbs(verbs):
    """Adds the verb to what `add_subparsers` of the parser returned."""
    parser = add_verb(
        verbs,
        "import",
        _import,
        "Make a run directory of a translator of Marian, Hugging Face or CTranslate2.",
        "Make a run directory of a translator of another system: Marian (OPUS-MT as "
        "released, .npz; Bergamot's and Firefox's students, .bin), Hugging Face's "
        "MarianMTModel (model.safetensors) or CTranslate2 (model.bin). What it needs "
        "and this package lacks is an error. Needs the extra `import`.",
        examples=("import opus-2020-02-26 --output runs/opus-en-de",),
    )
    parser.add_argument(
        "path", type=Path, metavar="FROM", help="folder of the translator"
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="run directory to write; a new one"
    )
    parser.add_argument(
        "--format", choices=_FORMATS, help="what it is (default: what its files say)"
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="SentencePiece models of source and target, or one for both, for a model "
        "of CTranslate2 that comes without",
    )


def _import(options):
    files = options.tokenizer or []
    if len(files) > 2:
        raise ValueError(
            f"`--tokenizer` takes one or two files. Received: {len(files)} files"
        )
    importers = load_module("importers")
    importers.check_new(options.output)
    name = options.format or importers.format_of(options.path)
    if files and name != "ctranslate2":
        raise ValueError(
            "`--tokenizer` goes with a model of CTranslate2: others have their own. "
            f"Received: a model of {name}"
        )
    translator = importers.FORMATS[name](options.path, *files)
    run = importers.save_run(translator, options.output)
    print_result(run)
    return {"run": run, "format": name}
