"""The page for a browser: its folder and signatures, and the page itself."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from ai_edge_litert.interpreter import Interpreter

from keras_transformer import DecodingConfig
from keras_transformer.formats import litert, web
from keras_transformer.text.sentences import sentence_rules
from keras_transformer.text.spans import span_rules
from tests import tiny_run
from tests.browser import Site, chromium
from tests.formats.test_web_tokens import cut

HERE = Path(__file__).parent
TEXTS = ["the old man sleeps.", "a bear", "the good dog runs. the big bird sings."]
# Longer than the shortest signature, and than the longest source.
LONG = "the old bear sleeps. the young dog runs. the big bird"
TOO_LONG = "The old bear sleeps, and the young dog runs. " * 12 + "the old bear " * 30


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


def export(tmp_path_factory, litert_js):
    """Writes the folder; what it takes of a run are examples of validation data."""
    folder = tmp_path_factory.mktemp("web")
    examples = {"examples": [["a big bear", "ein Bär"], ["a dog", "ein Hund"]]}
    (folder / "summary.json").write_text(json.dumps(examples), encoding="utf-8")
    return tiny_run.translator().export(
        folder / "site",
        "web",
        quantize="none",
        languages=("en", "de"),
        litert_js=litert_js,
        run=folder,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory, node_modules):
    return export(tmp_path_factory, node_modules)


PAGE = {
    "LICENSE", "app.js", "doubts.js", "index.html", "page.js", "sentencepiece.js",
    "sentences.js", "spans.js", "style.css", "sw.js", "translator.js", "worker.js",
}  # fmt: skip
LITERT = {"core.js", "wasm-utils.js"} | {
    f"litert_wasm_{kind}internal.{end}"
    for kind in ("", "compat_")
    for end in ("js", "wasm")
}


def files_of(folder):
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix() for path in paths}


def test_the_folder_holds_all_that_the_page_asks_for(site):
    litert = {f"litert/{name}" for name in LITERT}
    model = {"joint.model", "model.tflite", "translator.json"}
    assert files_of(site) == PAGE | model | litert
    core = (site / "litert/core.js").read_text()
    assert core == 'import { a } from "./wasm-utils.js";\n'
    assert (site / "LICENSE").read_bytes() == (HERE.parents[1] / "LICENSE").read_bytes()


def test_the_description_tells_the_page_what_it_needs(site, tmp_path):
    description = json.loads((site / "translator.json").read_text("utf-8"))
    files, sizes = description.pop("files"), description.pop("sizes")
    assert len(description.pop("version")) == 16
    # What a LiteRT export says, and what is the page's own.
    expected = litert.describe(tiny_run.translator(), tmp_path, "none", ("en", "de"))
    expected = json.loads(json.dumps(expected))
    assert description == expected | {
        "format": "keras_transformer.web",
        "examples": ["a big bear", "a dog"],
        "lengths": [16, 32],
        "litert": "2.5.3",
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
    assert "{version}" not in text and "{files}" not in text


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js")
def test_the_service_worker_answers_for_the_files_of_the_export_alone(site):
    """Also on a host's root, where other pages lie below it."""
    base = "https://host.example/"
    own = files_of(site) - {"sw.js", "LICENSE"}
    own = [base, *(base + name for name in sorted(own)), f"{base}app.js#part"]
    others = [
        f"{base}other.html", f"{base}sub/", f"{base}sub/app.js", f"{base}?page=2",
        f"{base}app.js?v=2", f"{base}translator.json?", f"{base}api/state",
        "https://elsewhere.example/app.js",
    ]  # fmt: skip
    done = subprocess.run(
        ["node", str(HERE / "answered.mjs")],
        input=json.dumps({"file": str(site / "sw.js"), "urls": [*own, *others]}),
        capture_output=True,
        check=True,
        text=True,
    )
    assert json.loads(done.stdout) == own


def test_the_page_loads_nothing_from_another_host(site):
    for name in files_of(site):
        if name.endswith((".js", ".html", ".css", ".json")):
            text = (site / name).read_text("utf-8")
            assert not re.search(r"""["'(]\s*https?:|\bimport\b.*https?:""", text), name


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js")
def test_the_page_takes_the_first_hypothesis_that_is_not_empty_and_does_not_loop():
    """And lists no text twice."""
    facts = {
        "module": str(web.PAGE / "translator.js"),
        "rules": {"sentence_rules": sentence_rules(), "span_rules": span_rules()},
        "texts": ["a b", "A b. C d.", " "],
        "hypotheses": ["x x x x", "", "y", "y"],
    }
    done = subprocess.run(
        ["node", str(HERE / "hypotheses.mjs")],
        input=json.dumps(facts),
        capture_output=True,
        check=True,
        text=True,
    )
    none = {"lost": []}
    loop = none | {"text": "x x x x", "score": -1, "doubt": 0.25, "doubts": ["loop"]}
    taken = none | {"text": "y", "score": -3, "doubt": 0.75, "doubts": ["score"]}
    empty = none | {"text": "", "score": -2, "doubt": 0.25, "doubts": ["empty"]}
    assert json.loads(done.stdout) == [
        [taken, loop, empty],
        [taken | {"text": "y y"}],
        [none | {"text": " ", "score": 0, "doubt": 0, "doubts": []}],
    ]


def test_another_export_is_another_version(tmp_path, site, node_modules, monkeypatch):
    """It has no sentences of the run, and LiteRT.js of the folder that it lies in."""
    monkeypatch.setattr(web, "convert", lambda *_: b"another model")
    monkeypatch.chdir(node_modules.parent)
    (tmp_path / "summary.json").write_text('{"examples": [["a dog", "ein Hund"]]}')
    version = tiny_run.translator().export(
        tmp_path / "site", "web", run=tmp_path, no_examples=True
    )
    read = json.loads((version / "translator.json").read_text("utf-8"))
    old = json.loads((site / "translator.json").read_text("utf-8"))
    assert read["version"] != old["version"]
    assert (read["quantize"], read["examples"]) == ("int8", [])


def test_lengths_double_up_to_the_longest_source():
    for longest, lengths in (
        (2, [2]),
        (16, [16]),
        (17, [16, 17]),
        (256, [16, 32, 64, 128, 256]),
    ):
        assert litert.source_lengths(longest) == lengths


def test_every_length_of_source_gives_what_the_live_model_gives(site):
    live = tiny_run.translator()
    interpreter = Interpreter(str(site / "model.tflite"))
    tokenizer = sentencepiece.SentencePieceProcessor(
        model_file=str(site / "joint.model")
    )
    assert set(interpreter.get_signature_list()) == {"translate_16", "translate_32"}
    expected = live.nbest([*TEXTS, LONG], n_best=3)
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


def test_no_shape_is_left_open_and_signatures_share_the_weights(site):
    """LiteRT.js refuses a shape that is; Python's LiteRT does not."""
    interpreter = Interpreter(str(site / "model.tflite"))
    for name in interpreter.get_signature_list():
        runner = interpreter.get_signature_runner(name)
        for tensors in (runner.get_input_details(), runner.get_output_details()):
            for tensor in tensors.values():
                assert -1 not in tensor["shape_signature"], tensor
                assert list(tensor["shape"]) == list(tensor["shape_signature"])
    parameters = tiny_run.model().count_params() * 4  # bytes
    size = (site / "model.tflite").stat().st_size
    assert parameters < size < parameters + 2 * 150_000


@pytest.mark.slow
def test_empty_caches_are_not_in_the_file():
    config = DecodingConfig(beam_size=8, max_extra_length=1000, max_source_length=16)
    model = tiny_run.model()
    content = litert.convert(model, litert.fixed_signatures(model, config, None))
    # Keys and values of one decoder layer: 1016 positions of 8 hypotheses.
    assert 2 * 1016 * 8 * model.config.d_model * 4 > 1_000_000  # bytes
    assert len(content) < model.count_params() * 4 + 300_000


def test_another_litert_js_is_refused_and_leaves_nothing(
    tmp_path, node_modules, monkeypatch
):
    live = tiny_run.translator()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="npm install @litertjs/core@2.5.3"):
        live.export(tmp_path / "new", "web")
    other = shutil.copytree(node_modules, tmp_path / "npm")
    (other / "@litertjs/core/dist/index.js").write_text("import nothing;")
    for modules, error, message in (
        (tmp_path, FileNotFoundError, "core@2.5.3. It lacks .*json"),
        (other, ValueError, "`litert_js` must have @litertjs/core 2.5.3"),
    ):
        with pytest.raises(error, match=message):
            live.export(tmp_path / "new", "web", litert_js=modules)
    assert [path.name for path in tmp_path.iterdir()] == ["npm"]


@pytest.fixture(scope="module")
def real_site(tmp_path_factory, site):
    """An export with LiteRT.js itself."""
    modules = os.environ.get("LITERT_JS")
    if not modules:
        pytest.skip(
            "no LiteRT.js: LITERT_JS must name the node_modules of "
            "`npm install @litertjs/core@2.5.3`"
        )
    content = (site / "model.tflite").read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(web, "convert", lambda *_: content)
        return export(tmp_path_factory, modules)


@pytest.fixture(scope="module")
def browser(real_site):
    with chromium() as one:
        yield one


@pytest.fixture
def page(browser):
    page = browser.new_page()
    page.set_default_timeout(120_000)
    yield page
    page.close()


@pytest.fixture
def served(real_site, page):
    """The page, loaded, and its server, which a test may break."""
    with Site(real_site) as site:
        page.goto(site.url)
        wait(page, READY)
        yield page, site


READY = "document.body.dataset.ready"
QUIET = "document.querySelector('#target').getAttribute('aria-busy') === 'false'"


def wait(page, expression):
    """Waits until it is true; playwright's own way needs `eval`, which pages forbid."""
    end = time.monotonic() + 120
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"{expression}: {page.inner_text('body')}"
        page.wait_for_timeout(20)


def enter(page, text):
    """Puts a text into the field as if typed, and waits for its translation."""
    page.evaluate("document.querySelector('#target').setAttribute('aria-busy', 'true')")
    page.fill("#source", text)
    wait(page, QUIET)
    assert page.locator("#target .pending").count() == 0
    return [line.rstrip("\n") for line in lines_of(page, "#target p")]


def lines_of(page, selector):
    return page.locator(selector).all_text_contents()


def test_a_browser_translates_what_is_typed_and_goes_on_offline(real_site, page):
    live, errors = tiny_run.translator(), []
    page.on("console", lambda told: told.type == "error" and errors.append(told.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    best = live([*TEXTS, TOO_LONG])
    with Site(real_site) as site:
        page.goto(site.url)
        wait(page, READY)
        page.locator("#source").press_sequentially(TEXTS[0])
        shown = "document.querySelector('#target').innerText"
        wait(page, f"{QUIET} && {shown} == {best[0]!r}")
        others = lines_of(page, "#others-list span")
        assert others == [t.text for t in live.nbest(TEXTS[:1], n_best=3)[0]]
        page.click("#examples button:nth-of-type(2)")
        assert page.input_value("#source") == "a dog"
        wait(page, QUIET)
        found = enter(page, "\n".join([*TEXTS, "", TOO_LONG]))
        assert found == [*best[:3], "", best[3]]
        # Nothing but files of the folder was asked for, and nothing was sent.
        names = {f"/translator/{name}" for name in files_of(real_site)}
        assert {method for method, _ in site.requests} == {"GET"}
        assert {path for _, path in site.requests} <= names | {"/translator/"}
        wait(page, "document.body.dataset.offline == 'true'")
    page.goto(site.url)  # Which now answers nobody.
    wait(page, READY)
    page.fill("#source", TEXTS[2])
    wait(page, f"{shown} == {best[2]!r}")
    assert not errors


@pytest.mark.slow
def test_every_failure_is_told_and_can_be_tried_again(real_site, page):
    failed = "!document.querySelector('#failure').hidden"
    wasm, damaged = "litert_wasm_internal.wasm", "is damaged or of another export"
    faults = {
        "model.tflite": (None, "model.tflite did not come: the server answered with"),
        "joint.model": (b"x" * 9, f"joint.model {damaged}: 9 bytes"),
        f"litert/{wasm}": (b"x", f"{wasm} {damaged}"),
    }
    with Site(real_site) as site:
        for i, (name, (content, message)) in enumerate(faults.items()):
            site.faults = {name: content}
            if i == 0:
                page.goto(site.url)
                page.fill("#source", TEXTS[0])  # It waits for the model.
            else:
                page.click("#again")
            told = f"document.body.innerText.includes({message!r})"
            wait(page, f"{failed} && {told}")
        site.faults, site.pause = {}, 0.01
        page.click("#again")
        wait(page, "document.querySelector('#download-bar').value > 1e6")
        assert page.inner_text("#download-text").startswith("Downloading: ")
        site.pause = 0.0
        wait(page, READY)
        expected = tiny_run.translator()(TEXTS[:1])[0]
        wait(page, f"document.querySelector('#target').innerText == {expected!r}")
        assert not page.evaluate(failed)


@pytest.mark.slow
def test_long_and_foreign_texts_and_small_windows(served):
    page, _ = served
    assert enter(page, " \n\t") == ["", ""]
    enter(page, "مرحبا")
    source = "getComputedStyle(document.querySelector('#source')).direction"
    assert page.evaluate(source) == "rtl"
    for width in (360, 1000):
        page.set_viewport_size({"width": width, "height": 740})
        enter(page, "x" * 400)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width


@pytest.mark.slow
def test_a_newer_text_takes_the_place_of_an_unfinished_one(served):
    page, _ = served
    lines = [f"{text} {i}" for i in range(300) for text in TEXTS]
    page.fill("#source", "\n".join(lines))
    wait(page, "document.querySelectorAll('#target p').length > 500")
    assert enter(page, TEXTS[1]) == tiny_run.translator()(TEXTS[1:2])
    assert page.locator("#target p").count() == 1
