"""The site: `sphinx-build -W docs build/site` writes it, with the extra `docs`."""

from __future__ import annotations

import configparser
import inspect
import json
import os
import re
import shutil
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util.inspect import stringify_signature
from sphinx.util.nodes import make_refnode

# Text that the repository keeps outside this folder, as pages of the site.
ROOT = Path(__file__).parents[1]
ELSEWHERE = {
    "../README.md": "index.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../CHANGELOG.md": "changes.md",
}
NOTEBOOKS = "examples/notebooks"

setup_file = configparser.ConfigParser()
setup_file.read(ROOT / "setup.cfg", encoding="utf-8")

project = "keras_transformer"
release = setup_file["metadata"]["version"]
copyright = "the keras_transformer maintainers. Licence: Apache 2.0"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
extensions += ["sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
templates_path = ["_templates"]

html_theme = "furo"
html_title = f"keras_transformer {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
copybutton_exclude = ".linenos, .gp, .go"

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3

# The notebooks are shown as they are kept; tests run them.
nb_execution_mode = "off"

# Docstrings: Markdown's single backticks, shapes and units in words, no types.
default_role = "py:obj"
autodoc_typehints = "none"
autodoc_inherit_docstrings = False
# What a class inherits stands on its page too, unless the base class has a page.
WITH_A_PAGE = "MultiHeadAttention, TransformerLayer, ComposedLayer, ExactTraining"
autodoc_default_options = {
    "members": True,
    "inherited-members": f"{WITH_A_PAGE}, Subwords, object, tuple",
}
autodoc_member_order = "alphabetical"
napoleon_custom_sections = [("Call arguments", "params_style")]
napoleon_numpy_docstring = False
maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"


def repository_links(text, folder="docs", shown="."):
    """Makes links for readers of the repository links of the site.

    A path that has a page leads to it. Other files of the repository, which a built
    page cannot point to, become their name alone.

    Args:
        text: Markdown.
        folder: Where it lies in the repository.
        shown: Folder of its page in the site.
    """

    def link(match):
        words, path, anchor = match.groups(default="")
        path = os.path.relpath(Path("/", folder, path), "/docs")
        path = ELSEWHERE.get(path, path).replace(f"../{NOTEBOOKS}/", "notebooks/")
        if path.startswith("../"):
            return f"{words} (`{path.removeprefix('../')}`)"
        return f"[{words}]({os.path.relpath(path, shown)}{anchor})"

    return re.sub(r"\[([^]]*)\]\((?!https?:|#)([^)#\s]*)(#[^)]*)?\)", link, text)


def restructured(lines):
    """Makes a docstring of ours reStructuredText.

    Formulas, tables and programs, which are indented or begin with a bar, become
    literal blocks; what stands between single backticks may have letters behind it,
    and a word may end with an underscore.
    """
    found, inside = [], False
    for line in lines:
        shown = line.startswith(("    ", "|")) and (
            inside or not found or not found[-1].strip()
        )
        if shown and not inside:
            found += ["::", ""]
        if not shown and line.strip():
            line = re.sub(r"(`[^`]+`)(?=\w)", r"\1\\ ", line)
            line = re.sub(r"(?<=\w)_(?![\w`])", r"\\_", line)
        inside = shown or (inside and not line.strip())
        found.append("    " + line if shown else line)
    return found


def visit_math(self, node):
    """Writes an equation as MathML: nothing is fetched from anybody's server."""
    block = isinstance(node, nodes.math_block)
    mathml = tex2mathml(node.astext(), as_block=block)
    # Without the lines' ends, a comma stays at the formula before it.
    mathml = "".join(line.strip() for line in mathml.splitlines())
    self.body.append(f'<div class="math">{mathml}</div>' if block else mathml)
    raise nodes.SkipNode


def copy_notebooks(app, config):
    """Brings the notebooks, which lie among the examples, to the pages' folder."""
    folder = Path(app.srcdir, "notebooks")
    shutil.rmtree(folder, ignore_errors=True)  # One may have had another name.
    folder.mkdir()
    for notebook in sorted((ROOT / NOTEBOOKS).glob("*.ipynb")):
        shutil.copy2(notebook, folder)


def setup(app):
    app.connect("config-inited", copy_notebooks)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.connect("autodoc-process-signature", replace_signature)
    app.connect("autodoc-skip-member", skip_what_is_keras)
    app.connect("source-read", replace_links)
    app.connect("include-read", replace_included_links)
    app.connect("missing-reference", find_by_end)
    # After the theme, which makes the menu at 500.
    app.connect("html-page-context", group_menu, priority=900)
    app.connect("html-page-context", remove_links_back)
    # Before Napoleon, which comes at 500.
    app.connect("autodoc-process-docstring", rewrite_docstring, priority=400)


def replace_links(app, docname, source):
    if not docname.startswith("notebooks/"):
        source[0] = repository_links(source[0])
        return
    notebook = json.loads(source[0])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            text = "".join(cell["source"])
            cell["source"] = repository_links(text, NOTEBOOKS, "notebooks")
    source[0] = json.dumps(notebook)


def replace_included_links(app, path, parent, source):
    folder = os.path.relpath(app.srcdir / path.parent, ROOT)
    source[0] = repository_links(source[0], folder)


def replace_signature(app, what, name, obj, options, signature, returns):
    """The arguments of `__init__`, where Keras' classes show those of `__new__`."""
    if what == "class" and signature == "(*args, **kwargs)":
        arguments = remove_self(inspect.signature(obj.__init__))
        return stringify_signature(arguments, show_annotation=False), returns


def skip_what_is_keras(app, what, name, obj, skip, options):
    """Leaves what a class inherits from Keras to Keras' own reference."""
    function = getattr(obj, "fget", getattr(obj, "__func__", obj))
    module = getattr(function, "__module__", None) or ""
    return True if module.startswith("keras.") else None


def group_menu(app, pagename, templatename, context, doctree):
    """Puts the headings of api.md between the names of the API in the menu."""
    text = Path(app.srcdir, "api.md").read_text("utf-8")
    menu = context.get("furo_navigation_tree", "")
    for heading, name in re.findall(r"^## (.*)$(?s:.*?)^   ([A-Za-z]\S*)$", text, re.M):
        name = f"keras_transformer.{name}"
        link = "#" if pagename == f"api/{name}" else f"{name}.html"
        first = (
            rf'<li class="toctree-l2[^>]*>\s*<a [^>]*href="([^"]*/)?{re.escape(link)}"'
        )
        menu = re.sub(first, rf'<li class="group">{heading}</li>\g<0>', menu, count=1)
    context["furo_navigation_tree"] = menu


def remove_links_back(app, pagename, templatename, context, doctree):
    """Leaves out links of source pages, which miss names imported higher up."""
    if pagename.startswith("_modules/"):
        back = r'<a class="viewcode-back".*?</a>'
        context["body"] = re.sub(back, "", context["body"])


def find_by_end(app, env, node, content):
    """Links `Translator.load` to the one class, or method of it, whose name ends so.

    Sphinx looks in the module of a page only, and a docstring names no modules.
    """
    name = node.get("reftarget", "")
    if not name[:1].isupper():  # A word such as `score` is often an argument.
        return None
    domain = env.get_domain("py")
    found = domain.find_obj(env, None, None, name, None, searchmode=1)
    places = {(place.docname, place.node_id) for _, place in found}
    if len(places) != 1:
        return None
    ((page, anchor),) = places
    return make_refnode(app.builder, node["refdoc"], page, anchor, content, name)


def remove_self(signature):
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def rewrite_docstring(app, what, name, obj, options, lines):
    is_alias = lines[0].startswith("Alias for field number")  # Of a named tuple.
    lines[:] = [] if is_alias else restructured(lines)
