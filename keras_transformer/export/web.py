"""A translator as a page for a browser: a static folder, with nothing to run behind it.

The page's own files lie in web_page/ beside this file. Needs TensorFlow.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from keras_transformer.config import DecodingConfig
from keras_transformer.export.litert import (
    SOURCE,
    check_export,
    convert,
    describe,
    digest,
    found_by,
    save_tokenizers,
    signature,
    write_description,
)
from keras_transformer.files import creating_directory
from keras_transformer.generation.generator import Generator
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.text.tokenizer_pair import TokenizerPair

FORMAT = "keras_transformer.web"
FORMAT_VERSION = 1
PAGE = Path(__file__).with_name("web_page")
# The version that the page was tried with.
LITERT_JS = "2.5.3"
CDN = "https://cdn.jsdelivr.net/npm/@litertjs/"
# With and without relaxed SIMD, which not every browser has.
_RUNTIMES = ("litert_wasm_internal", "litert_wasm_compat_internal")
# Source lengths double from here, so that padding at most doubles a source (tokens).
_SHORTEST = 16


def export_web(
    model: Seq2Seq,
    tokenizers: TokenizerPair,
    config: DecodingConfig,
    path: str | Path,
    quantize: str = "int8",
    languages: Sequence[str] | None = None,
    scores: dict | None = None,
    litert_js: str | Path | None = None,
) -> Path:
    """Writes a folder that any web server serves: it translates in the browser.

    LiteRT.js needs every shape to be fixed, so model.tflite has a signature
    `translate_L` for each of some source lengths L, all with the same weights; the page
    takes the shortest that a sentence fits in and pads. N translations, T tokens:

    | signature   | inputs                      | outputs                           |
    |-------------|-----------------------------|-----------------------------------|
    | translate_L | source [1, L], lengths [1]  | ids [1, N, T], scores [1, N]      |

    Args:
        model: A `Transformer`, or another `Seq2Seq`.
        tokenizers: A `TokenizerPair` with its vocabulary sizes.
        config: How to search; the page shows all of `n_best`.
        path: Directory to create, such as "site".
        quantize: As for `export_litert`.
        languages: Codes of source and target language, shown by the page, or `None`.
        scores: Scores of the training run for translator.json, or `None`.
        litert_js: A node_modules folder with @litertjs/core, which is copied; or `None`
            to load it from a public server, `CDN`, at the first visit.

    Returns:
        `path`.

    Raises:
        FileExistsError: If `path` exists.
        FileNotFoundError: If `litert_js` lacks a file of LiteRT.js.
        RuntimeError: If the Keras backend is not TensorFlow.
        ValueError: If an argument is out of range, LiteRT lacks an operation, or the
            vocabulary has pieces that the page cannot cut.
    """
    path = Path(path)
    check_export(path, tokenizers, quantize, languages)
    if more := tokenizers.source.additions:
        raise ValueError(
            "A page cuts text with a SentencePiece model alone, and this translator's "
            "vocabulary has pieces besides; LiteRT and a SavedModel have them. "
            f"Received: {len(more)} pieces, such as {next(iter(more))!r}"
        )
    packages = None if litert_js is None else _packages(Path(litert_js))
    model = model.with_dtype("float32")
    with creating_directory(path) as temporary:
        shutil.copytree(PAGE, temporary, dirs_exist_ok=True)
        litert = _copy_litert(packages, temporary) if packages else _from_cdn()
        content = convert(model, signatures_of(model, config), quantize)
        (temporary / "model.tflite").write_bytes(content)
        names = save_tokenizers(tokenizers, temporary)
        description = describe(model, config, names, quantize) | {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "lengths": source_lengths(config.max_source_length),
            "languages": None if languages is None else list(languages),
            "scores": scores,
            "litert": litert,
        }
        _finish(temporary, description)
    return path


def source_lengths(longest: int) -> list[int]:
    """Returns the lengths of the signatures: they double up to the longest source.

    Args:
        longest: `max_source_length` (tokens).

    Example:
        >>> source_lengths(100)
        [16, 32, 64, 100]
    """
    doubled = (_SHORTEST * 2**i for i in itertools.count())
    return [*itertools.takewhile(lambda length: length < longest, doubled), longest]


def signatures_of(model: Seq2Seq, config: DecodingConfig) -> dict:
    """Returns the functions from ids to ids of a page.

    Args:
        model: A `Transformer`, or another `Seq2Seq`.
        config: How to search.

    Returns:
        The `tf.function` of each signature in the table of `export_web`.
    """
    generator = Generator(model, config, fixed_shapes=True)
    n_best = config.n_best or config.beam_size
    search = found_by(functools.partial(generator.search, n_best=n_best))
    lengths = tf.TensorSpec([1], tf.int32)
    return {
        f"translate_{length}": signature(
            search, SOURCE, tf.TensorSpec([1, length], tf.int32), lengths
        )
        for length in source_lengths(config.max_source_length)
    }


def _packages(modules):
    """Returns the folders of @litertjs/core and of the one package that it imports."""
    core = modules / "@litertjs" / "core"
    nested = core / "node_modules" / "@litertjs" / "wasm-utils"
    utils = nested if nested.is_dir() else modules / "@litertjs" / "wasm-utils"
    wasm = [f"wasm/{name}.{end}" for name in _RUNTIMES for end in ("js", "wasm")]
    needed = {core: ["package.json", "dist/index.js", *wasm], utils: ["dist/index.js"]}
    for package, files in needed.items():
        for name in files:
            if not (package / name).is_file():
                raise FileNotFoundError(
                    "`litert_js` must be a node_modules folder with LiteRT.js: npm "
                    f"install @litertjs/core@{LITERT_JS}. It lacks {package / name}"
                )
    return core, utils


def _copy_litert(packages, site):
    """Copies LiteRT.js; returns where translator.json says that it is."""
    core, utils = packages
    package = json.loads((core / "package.json").read_text("utf-8"))
    text = (core / "dist" / "index.js").read_text("utf-8")
    # Browsers' workers know no import map, and so no names of packages.
    text, count = re.subn(
        r'from "@litertjs/wasm-utils"', 'from "./wasm-utils.js"', text
    )
    if count != 1:
        raise ValueError(
            f"`litert_js` must have @litertjs/core {LITERT_JS} or one that imports "
            f"@litertjs/wasm-utils as it does. Received: version {package['version']}"
        )
    (site / "litert").mkdir()
    (site / "litert" / "core.js").write_text(text, encoding="utf-8")
    shutil.copyfile(utils / "dist" / "index.js", site / "litert" / "wasm-utils.js")
    for name in _RUNTIMES:
        for file in (f"{name}.js", f"{name}.wasm"):
            shutil.copyfile(core / "wasm" / file, site / "litert" / file)
    version = package["version"]
    return {"version": version, "module": "litert/core.js", "wasm": "litert/"}


def _from_cdn():
    core = f"{CDN}core@{LITERT_JS}/"
    return {"version": LITERT_JS, "module": f"{core}+esm", "wasm": f"{core}wasm/"}


def _finish(site, description):
    """Writes translator.json with the checked files, and the version into sw.js."""
    large = sorted(
        path.relative_to(site).as_posix()
        for path in site.rglob("*")
        if path.suffix in (".tflite", ".model", ".wasm")
    )
    small = sorted(
        path.relative_to(site).as_posix()
        for path in site.rglob("*")
        if path.is_file() and path.suffix in (".html", ".css", ".js")
    )
    small.remove("sw.js")  # The browser keeps it itself.
    small = [name for name in small if "_internal" not in name]  # One of two is used.
    description |= {
        "files": {name: digest(site / name) for name in large},
        "sizes": {name: (site / name).stat().st_size for name in large},
    }
    # Any other file or option is another version, for which the browser fetches anew.
    told = [digest(site / name) for name in small] + [json.dumps(description)]
    version = hashlib.sha256("".join(told).encode()).hexdigest()[:16]
    write_description(site, description | {"version": version})
    worker = site / "sw.js"
    values = {
        "version": version,
        "files": ["./", "translator.json", *small],
        "litert": CDN if description["litert"]["wasm"].startswith(CDN) else "litert/",
    }
    text = worker.read_text("utf-8")
    for name, value in values.items():
        mark = f'["{{{name}}}"]' if name == "files" else f'"{{{name}}}"'
        text = text.replace(mark, json.dumps(value))
    worker.write_text(text, encoding="utf-8")
