"""The verb `import`: another system's translator becomes a run directory."""

from __future__ import annotations

from pathlib import Path

from keras_transformer.cli.flags import add_verb
from keras_transformer.cli.loading import load_module
from keras_transformer.files import check_absent, creating_directory
from keras_transformer.terminal import print_result


def add_verbs(verbs):
    """Adds the verb to what `add_subparsers` of the parser returned."""
    parser = add_verb(
        verbs,
        "import",
        _import,
        "Make a run directory of a translator of Marian or Hugging Face.",
        "Make a run directory of a translator of another system: Marian (OPUS-MT as "
        "released, .npz; Bergamot's and Firefox's students, .bin) or Hugging Face's "
        "MarianMTModel (model.safetensors). What it needs and this package lacks is an "
        "error. Needs the extra `import`.",
        examples=("import opus-2020-02-26 --output runs/opus-en-de",),
    )
    parser.add_argument(
        "path", type=Path, metavar="FROM", help="folder of the translator"
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="run directory to write; a new one"
    )
    parser.add_argument(
        "--format",
        choices=("marian", "hugging_face"),
        help="what it is (default: what its files say)",
    )


def _import(options):
    check_absent(options.output)
    importers = load_module("importers")
    name = options.format or importers.format_of(options.path)
    translator = importers.FORMATS[name](options.path)
    with creating_directory(options.output) as temporary:
        translator.save(temporary)
    print_result(options.output)
    return {"run": options.output, "format": name}
