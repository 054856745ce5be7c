"""GET /console: a page to try the model and to see where a request ran, and why.

The page needs no key, like /docs; it fetches its data with the key that its user enters. It
consists of the HTML, CSS and ES modules in the folder `console`, without a build step or other
hosts. Model output is inserted as text only, and its headers let no other script run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from baton.gateway.http.pages.page_security import WITH_OWN_SCRIPTS
from baton.gateway.requests.gateway import Gateway

FOLDER = Path(__file__).with_name("console")
PAGE = "index.html"
MEDIA_BY_SUFFIX = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


class StaticFile(NamedTuple):
    content: bytes
    media: str
    tag: str
    """The ETag, which changes with the content."""


class ConsoleApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def page(self, request: Request) -> Response:
        return self._answer(request, PAGE)

    async def part(self, request: Request) -> Response:
        """A file of the page, by name: no path can leave the folder."""
        return self._answer(request, request.path_params["name"])

    def _answer(self, request: Request, name: str) -> Response:
        file = _file_by_name().get(name)
        if file is None or not self._gateway.config.console:
            raise HTTPException(404)
        # Revalidated each time, since a gateway of another version may answer.
        headers = {**WITH_OWN_SCRIPTS, "etag": file.tag, "cache-control": "no-cache"}
        if file.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.media)


@cache
def _file_by_name() -> Mapping[str, StaticFile]:
    """The page's files, read once for both ports."""
    return {path.name: _read(path) for path in FOLDER.iterdir() if path.suffix in MEDIA_BY_SUFFIX}


def _read(path: Path) -> StaticFile:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:32]
    return StaticFile(content, MEDIA_BY_SUFFIX[path.suffix], f'"{digest}"')
