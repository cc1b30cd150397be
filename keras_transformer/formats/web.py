"""A translator as a page for a browser: a static folder, with nothing to run behind it.

The page's own files lie in web_page/ beside this file. Needs TensorFlow.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer.files import creating_directory, digest, read_json, write_json
from keras_transformer.formats.litert import (
    check_arguments,
    convert,
    describe,
    digests,
    fixed_signatures,
    source_lengths,
)
from keras_transformer.search.run_directory import example_sources

PAGE = Path(__file__).with_name("web_page")
# The version that the page was tried with.
LITERT_JS = "2.5.3"
# With and without relaxed SIMD, which not every browser has.
_RUNTIMES = [
    f"litert_wasm_{kind}internal.{end}"
    for kind in ("", "compat_")
    for end in ("js", "wasm")
]


def export_web(
    translator: Any,
    path: str | Path,
    quantize: str = "int8",
    languages: Sequence[str] | None = None,
    litert_js: str | Path = "node_modules",
    run: str | Path | None = None,
    no_examples: bool = False,
) -> Path:
    """Writes a folder that any web server serves: it translates in the browser.

    Nothing that is typed leaves the browser, the page loads nothing from elsewhere, and
    after the first visit it works offline. LiteRT.js needs every shape to be fixed, so
    model.tflite has the signatures of
    `keras_transformer.formats.litert.fixed_signatures`.

    Args:
        translator: A `Translator` with SentencePiece models; the page shows all of
            `n_best`.
        path: Directory to create, such as "site".
        quantize: As for `export_litert`.
        languages: Codes of source and target language, shown by the page, or `None`.
        litert_js: Folder into which `npm install @litertjs/core@2.5.3` has put
            LiteRT.js, which is copied.
        run: Directory of the training run, of whose validation or test data the page
            offers three sentences to click, or `None`.
        no_examples: Whether the page goes without these sentences.

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
    check_arguments(translator, path, quantize, languages)
    if more := translator.tokenizers.source.additions:
        raise ValueError(
            "A page cuts text with a SentencePiece model alone, and this translator's "
            "vocabulary has pieces besides; LiteRT and a SavedModel have them. "
            f"Received: {len(more)} pieces, such as {next(iter(more))!r}"
        )
    config = translator.config
    model = translator.model.with_dtype("float32")
    signatures = fixed_signatures(model, config, translator.shortlist)
    with creating_directory(path) as temporary:
        shutil.copytree(PAGE, temporary, dirs_exist_ok=True)
        version = _copy_litert(Path(litert_js), temporary / "litert")
        content = convert(model, signatures, quantize)
        (temporary / "model.tflite").write_bytes(content)
        description = {
            "format": "keras_transformer.web",  # By which `LiteTranslator` refuses it.
            **describe(translator, temporary, quantize, languages),
            "examples": [] if run is None or no_examples else example_sources(run),
            "lengths": source_lengths(config.max_source_length),
            "litert": version,
        }
        _finish(temporary, description)
    return path


def _copy_litert(modules, folder):
    """Copies LiteRT.js from a node_modules folder; returns its version."""
    core = modules / "@litertjs" / "core"
    # The one package that it imports.
    nested = core / "node_modules" / "@litertjs" / "wasm-utils"
    utils = nested if nested.is_dir() else modules / "@litertjs" / "wasm-utils"
    try:
        version = read_json(core / "package.json")["version"]
        text = (core / "dist" / "index.js").read_text("utf-8")
        folder.mkdir()
        shutil.copyfile(utils / "dist" / "index.js", folder / "wasm-utils.js")
        for name in _RUNTIMES:
            shutil.copyfile(core / "wasm" / name, folder / name)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            "`litert_js` must be a node_modules folder with LiteRT.js, which the page "
            f"carries: npm install @litertjs/core@{LITERT_JS}. It lacks "
            f"{error.filename}"
        ) from error
    # Browsers' workers know no import map, and so no names of packages.
    text, count = re.subn(
        r'from "@litertjs/wasm-utils"', 'from "./wasm-utils.js"', text
    )
    if count != 1:
        raise ValueError(
            f"`litert_js` must have @litertjs/core {LITERT_JS} or one that imports "
            f"@litertjs/wasm-utils as it does. Received: version {version}"
        )
    (folder / "core.js").write_text(text, encoding="utf-8")
    return version


def _finish(site, description):
    """Writes translator.json with the checked files, and the version into sw.js."""
    # Without sw.js, which the browser keeps itself. Of two runtimes one is used.
    paths = sorted(path for path in site.rglob("*.*") if path.name != "sw.js")
    names = [path.relative_to(site).as_posix() for path in paths]
    small = [
        name
        for name in names
        if name.endswith((".html", ".css", ".js")) and "_internal" not in name
    ]
    files = digests(site)
    sizes = {name: (site / name).stat().st_size for name in files}
    description |= {"files": files, "sizes": sizes}
    # Any other file or option is another version, for which the browser fetches anew.
    told = [digest(site / name) for name in small] + [json.dumps(description)]
    version = hashlib.sha256("".join(told).encode()).hexdigest()[:16]
    write_json(site / "translator.json", description | {"version": version})
    values = {
        '"{version}"': version,
        '["{files}"]': ["./", "translator.json", *small],
        '["{others}"]': [name for name in names if name not in small],
    }
    worker = site / "sw.js"
    text = worker.read_text("utf-8")
    for mark, value in values.items():
        text = text.replace(mark, json.dumps(value))
    worker.write_text(text, encoding="utf-8")
