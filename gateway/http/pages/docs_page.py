"""GET /openapi.json and GET /docs: the API documentation of a port."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from baton.gateway.http.openapi.document import openapi_document
from baton.gateway.http.openapi.endpoint import Endpoint
from baton.gateway.http.pages.page_security import WITHOUT_SCRIPTS
from baton.gateway.requests.gateway import Gateway

TEMPLATE = Path(__file__).with_name("docs_page.html")
JSON_TYPE = "application/json"


class Docs(NamedTuple):
    document: bytes
    page: str


class DocsApi:
    """Both are generated at the first request, on another thread, since that is slow."""

    def __init__(self, gateway: Gateway, endpoints: Sequence[Endpoint]) -> None:
        self._gateway = gateway
        self._endpoints = endpoints
        self._making: asyncio.Task[Docs] | None = None

    async def document(self, request: Request) -> Response:
        return Response((await self._docs()).document, media_type=JSON_TYPE)

    async def page(self, request: Request) -> Response:
        page = (await self._docs()).page
        return HTMLResponse(page, headers=WITHOUT_SCRIPTS)

    async def _docs(self) -> Docs:
        if self._making is None:
            self._making = asyncio.create_task(asyncio.to_thread(self._make))
        return await asyncio.shield(self._making)

    def _make(self) -> Docs:
        document = openapi_document(
            self._endpoints, version=version("baton-llm"), needs_key=bool(self._gateway.keys)
        )
        return Docs(msgspec.json.encode(document), render(document))


def render(document: dict[str, Any]) -> str:
    """A self-contained page: no scripts, no fonts, no other hosts."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["type"] = type_name
    environment.filters["described"] = described
    environment.filters["prose"] = prose
    environment.filters["json"] = lambda value: msgspec.json.format(
        msgspec.json.encode(value).decode(), indent=2
    )
    template = environment.from_string(TEMPLATE.read_text())
    return template.render(document=document, schemas=document["components"]["schemas"])


class DescribedFields(NamedTuple):
    fields: dict[str, Any]
    names_of_others: dict[str, list[str]]
    """Names of the other fields, whose type is `any`, by the description they share."""


def described(schema: dict[str, Any], example: Mapping[str, Any]) -> DescribedFields:
    """The properties of a body, the most important first."""
    fields: dict[str, Any] = {}
    names_of_others: dict[str, list[str]] = {}
    for name, field in schema["properties"].items():
        if "description" in field and type_name(field) == "any":
            names_of_others.setdefault(field["description"], []).append(name)
        else:
            fields[name] = field
    first = [name for name in (*schema.get("required", ()), *example) if name in fields]
    return DescribedFields({name: fields[name] for name in (*first, *fields)}, names_of_others)


def prose(text: str) -> Markup:
    """The text as HTML, with `code` between backticks."""
    pieces = text.split("`")
    return Markup().join(
        Markup("<code>{}</code>").format(piece) if index % 2 else piece
        for index, piece in enumerate(pieces)
    )


def type_name(schema: dict[str, Any]) -> str:
    """A schema in a few words: `array of integer or string`."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if "anyOf" in schema:
        kinds = [type_name(kind) for kind in schema["anyOf"] if kind != {"type": "null"}]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"] if value is not None)
    if schema.get("type") == "array":
        return f"array of {type_name(schema.get('items') or {})}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {type_name(schema['additionalProperties'])}"
    return str(schema.get("type", "any"))
