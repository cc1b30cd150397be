"""The page for a browser: its folder, tokens and signatures, and the page itself."""

from __future__ import annotations

import configparser
import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from ai_edge_litert.interpreter import Interpreter

from keras_transformer import DecodingConfig, TokenizerConfig, cli
from keras_transformer.export import litert, web
from keras_transformer.text.tokenizer import Tokenizer
from tests import tiny_run
from tests.export.browser import Browser, Site, litert_js
from tests.export.odd_texts import odd_rows, odd_texts

HERE = Path(__file__).parent
TEXTS = ["the old man sleeps.", "a bear", "the good dog runs. the big bird sings."]
# Longer than the shortest signature, and than the longest source.
LONG = "the old bear sleeps. the young dog runs. the big bird"
TOO_LONG = "the old bear sleeps. " * 12


@pytest.fixture(scope="module")
def node_modules(tmp_path_factory):
    """LiteRT.js's files by name alone: enough to be copied."""
    folder = tmp_path_factory.mktemp("npm") / "node_modules"
    core, utils = folder / "@litertjs/core", folder / "@litertjs/wasm-utils"
    files = {
        core / "package.json": '{"version": "2.5.3"}',
        core / "dist/index.js": 'import { a } from "@litertjs/wasm-utils";\n',
        utils / "dist/index.js": "export const a = 1;\n",
    }
    for kind in ("", "compat_", "threaded_"):
        for end in ("js", "wasm"):
            files[core / f"wasm/litert_wasm_{kind}internal.{end}"] = f"{kind}{end}"
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory, node_modules):
    path = tmp_path_factory.mktemp("web") / "site"
    return tiny_run.translator().export(
        path, "web", quantize="none", languages=("en", "de"), litert_js=node_modules
    )


PAGE = {
    "LICENSE", "app.js", "index.html", "page.js", "sentencepiece.js", "style.css",
    "sw.js", "translator.js", "worker.js",
}  # fmt: skip
LITERT = {"core.js", "wasm-utils.js"} | {
    f"litert_wasm_{kind}internal.{end}"
    for kind in ("", "compat_")
    for end in ("js", "wasm")
}


def files_of(folder):
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_folder_holds_all_that_the_page_asks_for(site):
    assert files_of(site) == (
        PAGE
        | {"joint.model", "model.tflite", "translator.json"}
        | {f"litert/{name}" for name in LITERT}
    )
    assert (
        site / "litert/core.js"
    ).read_text() == 'import { a } from "./wasm-utils.js";\n'
    assert (site / "LICENSE").read_bytes() == (HERE.parents[1] / "LICENSE").read_bytes()


def test_an_installed_package_has_the_page():
    setup = configparser.ConfigParser()
    setup.read(HERE.parents[1] / "setup.cfg", encoding="utf-8")
    patterns = setup["options.package_data"]["keras_transformer"].split(",")
    package = web.PAGE.parents[1]
    installed = {path for each in patterns for path in package.glob(each.strip())}
    assert set(web.PAGE.iterdir()) <= installed
    assert {path.name for path in web.PAGE.iterdir()} == PAGE


def test_the_description_tells_the_page_what_it_needs(site):
    description = json.loads((site / "translator.json").read_text("utf-8"))
    files, sizes = description.pop("files"), description.pop("sizes")
    assert len(description.pop("version")) == 16
    assert description == {
        "format": "keras_transformer.web",
        "format_version": 1,
        "special_ids": {"pad_id": 0, "start_id": 1, "end_id": 2, "unknown_id": 3},
        "tokenizers": {"source": "joint.model", "target": "joint.model"},
        "max_source_length": 32,
        "longest_output": 35,
        "n_best": 3,
        "search": json.loads(tiny_run.translator().config.to_json()),
        "quantize": "none",
        "lengths": [16, 32],
        "languages": ["en", "de"],
        "litert": {"version": "2.5.3", "module": "litert/core.js", "wasm": "litert/"},
    }
    wasm = {f"litert/{name}" for name in LITERT if name.endswith(".wasm")}
    assert set(files) == set(sizes) == {"joint.model", "model.tflite"} | wasm
    for name, digest in files.items():
        content = (site / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest
        assert len(content) == sizes[name]


def test_the_service_worker_names_this_export_and_its_small_files(site):
    text = (site / "sw.js").read_text("utf-8")
    version = json.loads((site / "translator.json").read_text("utf-8"))["version"]
    assert f'const VERSION = "{version}";' in text
    listed = json.loads(text.split("const FILES = ")[1].split(";")[0])
    assert set(listed) == (PAGE - {"LICENSE", "sw.js"}) | {
        "./", "translator.json", "litert/core.js", "litert/wasm-utils.js",
    }  # fmt: skip
    assert 'const LITERT = "litert/";' in text
    assert "{version}" not in text and "{files}" not in text


def test_another_export_is_another_version(tmp_path, site, monkeypatch):
    monkeypatch.setattr(web, "convert", lambda *_: b"another model")
    version = tiny_run.translator().export(tmp_path / "site", "web")
    read = json.loads((version / "translator.json").read_text("utf-8"))
    old = json.loads((site / "translator.json").read_text("utf-8"))
    assert read["version"] != old["version"]
    # Without a folder of packages, from the public server, of one fixed version.
    cdn = "https://cdn.jsdelivr.net/npm/@litertjs/"
    assert read["litert"] == {
        "version": "2.5.3",
        "module": f"{cdn}core@2.5.3/+esm",
        "wasm": f"{cdn}core@2.5.3/wasm/",
    }
    assert f'const LITERT = "{cdn}";' in (version / "sw.js").read_text("utf-8")
    assert read["quantize"] == "int8"
    assert not (version / "litert").exists()


@pytest.mark.parametrize(
    ("longest", "lengths"),
    [(2, [2]), (16, [16]), (17, [16, 17]), (256, [16, 32, 64, 128, 256])],
)
def test_lengths_double_up_to_the_longest_source(longest, lengths):
    assert web.source_lengths(longest) == lengths


def test_every_length_of_source_gives_what_the_live_model_gives(site):
    live = tiny_run.translator()
    interpreter = Interpreter(str(site / "model.tflite"))
    tokenizer = sentencepiece.SentencePieceProcessor(
        model_file=str(site / "joint.model")
    )
    assert set(interpreter.get_signature_list()) == {"translate_16", "translate_32"}
    expected = live.translate([*TEXTS, LONG], n_best=3)
    for text, translations in zip([*TEXTS, LONG], expected, strict=True):
        ids = [*tokenizer.encode(text), 2]
        for length in (16, 32):
            if len(ids) > length:
                continue
            row = np.array([ids + [0] * (length - len(ids))], np.int32)
            runner = interpreter.get_signature_runner(f"translate_{length}")
            found = runner(source=row, lengths=np.array([len(ids)], np.int32))
            assert found["ids"].shape == (1, 3, length + 3)
            texts = [cut(tokenizer, row) for row in found["ids"][0]]
            assert texts == [translation.text for translation in translations]
            np.testing.assert_allclose(
                found["scores"][0], [t.score for t in translations], atol=1e-4
            )


def cut(tokenizer, ids):
    """The text of a row of ids, as `Tokenizer.detokenize` gives it."""
    ids = [int(i) for i in ids]
    ids = ids[: ids.index(2)] if 2 in ids else ids
    return tokenizer.decode([i for i in ids if i not in (0, 1)])


def test_no_shape_is_left_open(site):
    """LiteRT.js refuses a shape that is; Python's LiteRT does not."""
    interpreter = Interpreter(str(site / "model.tflite"))
    for name in interpreter.get_signature_list():
        runner = interpreter.get_signature_runner(name)
        details = runner.get_input_details(), runner.get_output_details()
        for tensors in details:
            for tensor in tensors.values():
                assert -1 not in tensor["shape_signature"], tensor
                assert list(tensor["shape"]) == list(tensor["shape_signature"])


def test_signatures_share_the_weights(site):
    parameters = tiny_run.model().count_params() * 4  # bytes
    size = (site / "model.tflite").stat().st_size
    assert parameters < size < parameters + 2 * 150_000


@pytest.mark.slow
def test_empty_caches_are_not_in_the_file():
    config = DecodingConfig(beam_size=8, max_extra_length=1000, max_source_length=16)
    model = tiny_run.model()
    content = litert.convert(model, web.signatures_of(model, config))
    # Keys and values of one decoder layer: 1016 positions of 8 hypotheses.
    assert 2 * 1016 * 8 * model.config.d_model * 4 > 1_000_000  # bytes
    assert len(content) < model.count_params() * 4 + 300_000


def test_bad_arguments_leave_nothing(tmp_path, monkeypatch, node_modules):
    live = tiny_run.translator()
    (tmp_path / "old").mkdir()
    with pytest.raises(FileExistsError, match="never overwritten"):
        live.export(tmp_path / "old", "web")
    with pytest.raises(ValueError, match="`quantize` must be one of none, float16, in"):
        live.export(tmp_path / "new", "web", quantize="int4")
    with pytest.raises(FileNotFoundError, match="core@2.5.3. It lacks .*json"):
        live.export(tmp_path / "new", "web", litert_js=tmp_path / "old")
    other = shutil.copytree(node_modules, tmp_path / "old" / "npm")
    (other / "@litertjs/core/dist/index.js").write_text("import nothing;")
    with pytest.raises(ValueError, match="`litert_js` must have @litertjs/core 2.5.3"):
        live.export(tmp_path / "new", "web", litert_js=other)
    monkeypatch.setattr(web, "convert", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        live.export(tmp_path / "new", "web")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.slow
def test_the_command_line_exports(tmp_path, tmp_path_factory, node_modules, capsys):
    run, path = tiny_run.run_directory(tmp_path_factory), tmp_path / "site"
    words = ["export", "--run", str(run), "--output", str(path), "--format", "web"]
    assert cli.main([*words, "--litert-js", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "`litert_js` must be a node_modules folder" in error
    assert "Traceback" not in error and not path.exists()
    words += ["--litert-js", str(node_modules), "--languages", "en", "de"]
    assert cli.main([*words, "--beam-size", "1"]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    description = json.loads((path / "translator.json").read_text("utf-8"))
    assert description["quantize"] == "int8"
    assert description["search"]["beam_size"] == description["n_best"] == 1
    # The other client of exports says what it cannot read.
    assert cli.main(["translate", "--model", str(path), "a bear"]) == 1
    assert "must have the format keras_transformer.litert" in capsys.readouterr().err


TOKENIZERS = {
    "tiny": None,
    "unigram": TokenizerConfig(algorithm="unigram", vocabulary_size=830),
    "bpe": TokenizerConfig(algorithm="bpe", vocabulary_size=1000),
    "no_bytes": TokenizerConfig(
        algorithm="unigram", vocabulary_size=575, byte_fallback=False
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_tokens_are_those_of_python(tmp_path, name):
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node: it runs the page's tokenizer outside a browser")
    for file in ("sentencepiece.js", "translator.js"):
        shutil.copyfile(web.PAGE / file, tmp_path / file)
    # Node takes a .js file for a module only if it is told so.
    (tmp_path / "package.json").write_text('{"type": "module"}')
    learn_tokenizer(name).save(tmp_path / "joint.model")
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(tmp_path / "joint.model")
    )
    texts = odd_texts()
    rows = [processor.encode(text) for text in texts]
    rows += odd_rows(processor.get_piece_size())
    assert len(texts) > 1000
    special = {"pad_id": 0, "start_id": 1, "end_id": 2}
    given = {
        "site": tmp_path.as_uri(), "model": str(tmp_path / "joint.model"),
        "description": {"max_source_length": 256, "special_ids": special},
        "texts": texts, "rows": rows,
    }  # fmt: skip
    found = json.loads(
        subprocess.run(
            [node, HERE / "tokens.mjs"], input=json.dumps(given), text=True,
            capture_output=True, check=True, timeout=120, encoding="utf-8",
        ).stdout
    )  # fmt: skip
    for text, row, source in zip(texts, rows, found["sources"], strict=False):
        assert source == {"ids": [*row[:255], 2], "isCut": len(row) > 255}, repr(text)
    for row, text in zip(rows, found["targets"], strict=True):
        assert text == cut(processor, row), row


def learn_tokenizer(name):
    config = TOKENIZERS[name]
    if config is None:
        return tiny_run.tokenizers().source
    plain = [text for pair in tiny_run.PAIRS for text in pair]
    return Tokenizer.learn(plain + odd_texts()[60:120] * 3, config)


@pytest.fixture(scope="module")
def real_site(tmp_path_factory):
    """An export with LiteRT.js itself."""
    path = tmp_path_factory.mktemp("real") / "site"
    return tiny_run.translator().export(
        path, "web", quantize="none", languages=("en", "de"), litert_js=litert_js()
    )


@pytest.fixture(scope="module")
def browser():
    with Browser() as one:
        yield one


READY = "document.body.dataset.ready"
QUIET = "document.querySelector('#target').getAttribute('aria-busy') === 'false'"


def enter(browser, text):
    """Puts a text into the field as if typed, and waits for its translation."""
    browser.run(
        "const field = document.querySelector('#source');"
        "document.querySelector('#target').setAttribute('aria-busy', 'true');"
        "field.value = arguments[0]; field.dispatchEvent(new InputEvent('input'));",
        text,
    )
    browser.wait(QUIET)
    assert lines_of(browser, "#target .pending") == []
    return [line.rstrip("\n") for line in lines_of(browser, "#target p")]


def lines_of(browser, selector):
    return browser.run(
        "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)",
        selector,
    )


def test_a_browser_translates_what_is_typed_and_goes_on_offline(real_site, browser):
    live = tiny_run.translator()
    best = [row[0].text for row in live.translate([*TEXTS, LONG], n_best=3)]
    with Site(real_site) as site:
        browser.open(site.url)
        browser.wait(READY)
        browser.type("#source", TEXTS[0])
        browser.wait(f"{QUIET} && document.querySelector('#target').innerText.trim()")
        browser.wait(f"document.querySelector('#target').innerText == {best[0]!r}")
        others = lines_of(browser, "#others-list span")
        assert others == [t.text for t in live.translate(TEXTS[:1], n_best=3)[0]]
        assert enter(browser, "\n".join([*TEXTS, "", LONG])) == [*best[:3], "", best[3]]
        # Nothing but files of the folder was asked for, and nothing was sent.
        names = {f"/translator/{name}" for name in files_of(real_site)}
        assert {method for method, _ in site.requests} == {"GET"}
        assert {path for _, path in site.requests} <= names | {"/translator/"}
        assert browser.wait("document.body.dataset.offline") == "true"
        picture = browser.screenshot()
        assert picture.startswith(b"\x89PNG") and len(picture) > 10_000
    browser.open(site.url)  # Which now answers nobody.
    browser.wait(READY)
    assert enter(browser, TEXTS[2]) == [best[2]]
    assert browser.log() == []


@pytest.fixture(scope="module")
def window(real_site):
    """A browser of its own and the page, which it may break."""
    with Site(real_site) as site, Browser() as one:
        yield one, site


@pytest.mark.slow
def test_every_failure_is_told_and_can_be_tried_again(window):
    browser, site = window
    failed = "!document.querySelector('#failure').hidden"
    faults = {
        "model.tflite": (None, "model.tflite did not come: the server answered with"),
        "joint.model": (
            b"x" * 9,
            "joint.model is damaged or of another export: 9 bytes",
        ),
        "litert/litert_wasm_internal.wasm": (
            b"x",
            "litert_wasm_internal.wasm is damag",
        ),
    }
    for i, (name, (content, message)) in enumerate(faults.items()):
        site.faults = {name: content}
        if i == 0:
            browser.open(site.url)
            browser.type("#source", TEXTS[0])  # It waits for the model.
        else:
            browser.run("document.querySelector('#again').click()")
        browser.wait(f"{failed} && document.body.innerText.includes({message!r})")
    site.faults, site.pause = {}, 0.01
    browser.run("document.querySelector('#again').click()")
    browser.wait("document.querySelector('#download-bar').value > 1e6")
    assert browser.text("#download-text").startswith("Downloading: ")
    site.pause = 0.0
    browser.wait(READY)
    expected = tiny_run.translator()(TEXTS[:1])[0]
    browser.wait(f"document.querySelector('#target').innerText == {expected!r}")
    assert not browser.run(f"return {failed}")


def loaded(window):
    """The browser with the page loaded anew, without a fault."""
    browser, site = window
    site.faults, site.pause = {}, 0.0
    browser.open(site.url)
    browser.wait(READY)
    return browser


@pytest.mark.slow
def test_long_and_foreign_texts_and_small_windows(window):
    browser = loaded(window)
    assert enter(browser, " \n\t") == ["", ""]
    enter(browser, f"a bear\n{TOO_LONG}")
    assert "Line 2 is too long and was cut after 31 tokens." in browser.text("#note")
    enter(browser, "مرحبا")
    source = "getComputedStyle(document.querySelector('#source')).direction"
    assert browser.run(f"return {source}") == "rtl"
    for width in (360, 1000):
        browser.resize(width, 740, touch=width == 360)
        enter(browser, "x" * 400)
        wide = browser.run("return document.scrollingElement.scrollWidth")
        assert wide <= width


@pytest.mark.slow
def test_a_newer_text_takes_the_place_of_an_unfinished_one(window):
    browser = loaded(window)
    lines = [f"{text} {i}" for i in range(300) for text in TEXTS]
    browser.run(
        "const field = document.querySelector('#source');"
        "field.value = arguments[0]; field.dispatchEvent(new InputEvent('input'));",
        "\n".join(lines),
    )
    browser.wait("document.querySelectorAll('#target p').length > 500")
    assert enter(browser, TEXTS[1]) == tiny_run.translator()(TEXTS[1:2])
    assert browser.run("return document.querySelectorAll('#target p').length") == 1
