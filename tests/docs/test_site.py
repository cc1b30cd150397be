"""The site: it is built without a warning, its links lead somewhere, nothing lacks.

Sphinx takes long: `.ci/run` calls it, the README's test command does not.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

import keras_transformer
from tests.tiny_run import ROOT, in_a_process

DOCS = ROOT / "docs"
PACKAGE = "keras_transformer."


class Page(HTMLParser):
    """Where a page's links lead, what it loads and what may be linked to."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], {""}
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.add(attributes.get("id"))
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        elif tag in ("img", "script", "link"):
            self.loads.append(attributes.get("src") or attributes.get("href") or "")


def check_links(folder):
    """Every link inside leads to a page and a place in it; nothing is fetched."""
    pages = {path: Page(path) for path in folder.rglob("*.html")}
    for path, page in pages.items():
        for link in page.loads:
            assert not urlsplit(link).netloc, f"{path.name} loads {link}"
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme or not (parts.path or parts.fragment):
                continue
            target = (path.parent / unquote(parts.path)).resolve()
            target = path if not parts.path else target
            assert target.is_file(), f"{path.name} links to {link}"
            known = pages[target].anchors if target in pages else {parts.fragment}
            assert unquote(parts.fragment) in known, f"{path.name} links to {link}"
    return pages


def test_every_page_is_in_the_menu_and_links_have_its_title():
    trees = re.findall(
        r"```{toctree}\n(.*?)```", (DOCS / "index.md").read_text("utf-8"), re.DOTALL
    )
    menu = [name for tree in trees for name in tree.split("\n") if name[:1] not in ":"]
    titles = {
        path.stem: re.search("^# (.*)", path.read_text("utf-8"), re.M)
        for path in DOCS.glob("*.md")
    }
    # A notebook has a title of its own, because one is a page too.
    notebooks = [name for name in menu if "notebooks/" in name]
    found = re.findall(r"^Notebook: .* <notebooks/(\w+)>$", "\n".join(notebooks), re.M)
    kept = [path.stem for path in (ROOT / "examples" / "notebooks").glob("*.ipynb")]
    assert len(notebooks) == len(found) and sorted(found) == sorted(kept)
    pages = [name for name in menu if name not in notebooks]
    assert sorted(pages) == sorted(titles.keys() - {"index"})
    assert len(pages) <= 21  # With the API and two files of the repository.
    texts = [
        path.read_text("utf-8") for path in (*DOCS.glob("*.md"), ROOT / "README.md")
    ]
    links = re.findall(r"(?<!!)\[([^]`]+)\]\((?:docs/)?(\w+)\.md\)", "\n".join(texts))
    assert links
    wrong = [
        (words, page)
        for words, page in links
        if titles.get(page) and words != titles[page][1]
    ]
    assert not wrong


def test_the_readme_has_the_command_that_builds_the_site():
    readme, conf = (ROOT / "README.md", DOCS / "conf.py")
    command = "sphinx-build -W docs build/site"
    assert all(command in path.read_text("utf-8") for path in (readme, conf))


def reference():
    """The names of api.md and what each is, imported as Sphinx imports it."""
    text = (DOCS / "api.md").read_text("utf-8")
    for name in re.findall(r"^   ([A-Za-z]\S*)$", text, re.MULTILINE):
        path, _, last = f"keras_transformer.{name}".rpartition(".")
        yield name, getattr(importlib.import_module(path), last)


def test_every_name_of_the_reference_can_be_imported():
    names = [name for name, _ in reference()]
    assert len(names) > 100 and len(set(names)) == len(names)


def test_classes_named_in_the_reference_have_a_page():
    pages = dict(reference())
    texts = [inspect.getdoc(value) or "" for value in pages.values()]
    for kind in filter(inspect.isclass, pages.values()):
        texts += [inspect.getdoc(m) or "" for n, m in vars(kind).items() if n[0] != "_"]
    named = {name for text in texts for name in re.findall(r"`([A-Z]\w+)[`.]", text)}
    modules = [m for name, m in sys.modules.items() if name.startswith(PACKAGE)]
    ours = {
        name
        for module in modules
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__.startswith(PACKAGE)
    }
    assert sorted(named & ours - {name.rpartition(".")[2] for name in pages}) == []


@pytest.mark.slow
def test_the_site_is_built_links_lead_somewhere_and_every_public_name_is_there(
    tmp_path,
):
    """Warnings are errors."""
    pytest.importorskip("sphinx", reason="needs the extra `docs`")
    pytest.importorskip("furo", reason="needs the extra `docs`")
    from sphinx.util.inventory import InventoryFile

    site = tmp_path / "html"
    words = "-m", "sphinx", "-q", "-W", "--keep-going", DOCS, site
    done = in_a_process(*words)
    assert done.returncode == 0, done.stderr
    check_links(site)
    assert not list(site.rglob("*.ipynb"))
    with (site / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, path: path)
    names = set()
    for kind in ("class", "function", "exception", "data", "method"):
        names |= set(inventory.get(f"py:{kind}", ()))
    wanted = {
        f"keras_transformer.{name}"
        for name in keras_transformer.__all__
        if not inspect.ismodule(getattr(keras_transformer, name))
    }
    for door in ("nn.layers", "apps.plots", "apps.serving", "testing"):
        module = __import__(f"keras_transformer.{door}", fromlist=["__all__"])
        rest = set(module.__all__) - set(keras_transformer.__all__)
        wanted |= {f"keras_transformer.{door}.{name}" for name in rest}
    wanted |= {
        f"keras_transformer.{kind}.{method}"
        for kind in ("Translator", "ExportedTranslator", "LiteTranslator")
        for method in ("translate", "complete", "sample", "score", "align")
    }
    assert sorted(wanted - names) == []
