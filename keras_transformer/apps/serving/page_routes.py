"""The page of the local server, which asks the signatures as any client does.

- `GET /`, and the files of the page;
- `GET /page.json`: the model's name, version and signatures, whether the page
  `corrects`, and its `page`.
"""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from keras_transformer.apps.serving.served_model import ServedModel

PAGE = Path(__file__).with_name("page")
# The page of `export --format web`, of which some files are this page's too.
SHARED = Path(__file__).parents[2] / "formats" / "web_page"
_ALL = *PAGE.iterdir(), SHARED / "style.css", SHARED / "page.js"
FILES = {f"/{path.name}": path for path in _ALL}
FILES["/"] = FILES.pop("/index.html")
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def page_routes(model: ServedModel, corrects: bool) -> list[Route]:
    """Returns the routes of a model's page; it `corrects` where that is kept."""
    facts = {
        "name": model.name,
        "version": model.version,
        "signatures": sorted(model.signatures),
        "corrects": corrects,
        **model.page,
    }

    async def describe(request: Request) -> Response:
        return JSONResponse(facts)

    return [*(Route(path, _file) for path in FILES), Route("/page.json", describe)]


async def _file(request):
    path = FILES[request.scope["path"]]
    return FileResponse(path, headers=HEADERS, media_type=_TYPES[path.suffix])
