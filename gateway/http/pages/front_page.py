"""GET / and /version: the server's name, version and links."""

from __future__ import annotations

from collections.abc import Set
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import msgspec
from jinja2 import Environment, StrictUndefined, Template
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from baton.gateway.http.errors import json_response
from baton.gateway.http.pages.page_security import WITHOUT_SCRIPTS
from baton.gateway.requests.gateway import Gateway

TEMPLATE = Path(__file__).with_name("front_page.html")


class Link(NamedTuple):
    name: str
    path: str
    words: str


LINKS = (
    Link("console", "/console", "Try the model, see where a request ran and why"),
    Link("docs", "/docs", "The API, endpoint by endpoint"),
    Link("openapi", "/openapi.json", "The same for programs"),
    Link("models", "/v1/models", "The model served"),
    Link("ready", "/ready", "Whether requests are taken, and what is missing"),
    Link("status", "/debug/status", "Replicas, queues and transfers"),
    Link("metrics", "/metrics", "For Prometheus"),
    Link("version", "/version", "The version of Baton"),
)


class VersionAnswer(msgspec.Struct, kw_only=True):
    version: str


class FrontAnswer(msgspec.Struct, kw_only=True):
    name: str = "baton"
    version: str
    links: dict[str, str]
    """Paths of this port, by purpose."""
    admin_port: int | None = None
    """The port of the metrics, if not this one."""


class FrontPage:
    def __init__(self, gateway: Gateway, paths: Set[str]) -> None:
        """`paths`: the paths of its port."""
        self._gateway = gateway
        self._links = [link for link in LINKS if link.path in paths]
        self._version = _own_version()

    async def page(self, request: Request) -> Response:
        """HTML if the Accept header names it, as browsers do; else JSON."""
        has_console = self._gateway.config.console
        links = [link for link in self._links if has_console or link.name != "console"]
        has_metrics = any(link.name == "metrics" for link in links)
        admin_port = None if has_metrics else self._gateway.config.admin_port
        if "text/html" in request.headers.get("accept", ""):
            page = _template().render(version=self._version, links=links, admin_port=admin_port)
            return HTMLResponse(page, headers={**WITHOUT_SCRIPTS, "vary": "accept"})
        paths = {link.name: link.path for link in links}
        answer = FrontAnswer(version=self._version, links=paths, admin_port=admin_port)
        return json_response(answer, headers={"vary": "accept"})

    async def version(self, request: Request) -> Response:
        return json_response(VersionAnswer(version=self._version))


@cache
def _own_version() -> str:
    return version("baton-llm")


@cache
def _template() -> Template:
    """The page's template, compiled at the first request, once for both ports."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(TEMPLATE.read_text())
