"""The OpenAPI document, its page, and who may read them from a web page."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from tests.gateway.scripted import ScriptedDispatcher, make_model, serving

from baton.gateway.access.config import GatewayConfig
from baton.gateway.http.app import build_admin_app, build_app
from baton.gateway.http.openapi.admin_endpoints import ADMIN_ENDPOINTS
from baton.gateway.http.openapi.document import openapi_document
from baton.gateway.http.openapi.endpoint import Endpoint
from baton.gateway.http.openapi.endpoints import ENDPOINTS
from baton.gateway.http.pages.docs_page import described, render, type_name
from baton.gateway.http.responses.background import BackgroundResponses
from baton.gateway.http.responses.kept import KeptResponses
from baton.gateway.requests.gateway import Gateway

ORIGIN = "https://app.example"


@functools.cache
def document(*, needs_key: bool = False) -> dict[str, Any]:
    return openapi_document(ENDPOINTS, version="1.2.3", needs_key=needs_key)


def public_app(gateway: Gateway) -> Starlette:
    return build_app(gateway, BackgroundResponses(KeptResponses(gateway)))


@pytest.mark.parametrize(
    ("build", "endpoints"),
    [
        pytest.param(public_app, ENDPOINTS, id="public"),
        pytest.param(build_admin_app, ADMIN_ENDPOINTS, id="admin"),
    ],
)
async def test_every_route_is_described(
    build: Callable[[Gateway], Starlette], endpoints: Sequence[Endpoint]
) -> None:
    gateway = Gateway(model=make_model(), dispatcher=ScriptedDispatcher(), config=GatewayConfig())
    routes = {
        (re.sub(r":\w+}", "}", route.path), method.lower())
        for route in build(gateway).routes
        if isinstance(route, Route)
        for method in set(route.methods or ()) - {"HEAD"}
    }
    paths = openapi_document(endpoints, version="1.2.3", needs_key=True)["paths"]
    described = {(path, method) for path, methods in paths.items() for method in methods}

    assert described == routes


def test_every_reference_leads_somewhere() -> None:
    text = str(document())
    names = set(re.findall(r"#/components/schemas/([\w.]+)", text))

    assert names <= set(document()["components"]["schemas"])


def test_options_come_with_their_limits_and_docs() -> None:
    body = document()["components"]["schemas"]["ChatBody"]["properties"]

    assert (body["top_p"]["exclusiveMinimum"], body["top_p"]["maximum"]) == (0, 1)
    assert body["priority"]["minimum"] == -(2**31)
    assert "Smaller comes first" in body["priority"]["description"]
    assert "chat template" in body["chat_template_kwargs"]["description"]


def test_a_key_is_asked_for_where_it_is_needed() -> None:
    closed, opened = document(needs_key=True)["paths"], document()["paths"]

    ways: list[dict[str, list[str]]] = [{"key": []}, {"anthropics_key": []}]
    assert closed["/v1/completions"]["post"]["security"] == ways
    assert opened["/v1/completions"]["post"]["security"] == [{}, *ways]
    assert "security" not in closed["/health"]["get"]


async def test_the_page_stands_alone() -> None:
    async with serving() as gateway:
        page = await gateway.http.get("/docs")
        read = (await gateway.http.get("/openapi.json")).json()

    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "<script" not in page.text
    assert not re.search(r"(src|href)=\"(https?:)?//", page.text)
    assert all(path in page.text for path in read["paths"])
    assert read["openapi"].startswith("3.1")


def test_the_page_escapes_what_it_shows() -> None:
    described = document()
    described["info"]["description"] = "<b>bold</b> and `<i>`"

    page = render(described)

    assert "&lt;b&gt;bold&lt;/b&gt; and <code>&lt;i&gt;</code>" in page


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer"),
        ({"type": "array", "items": {"$ref": "#/components/schemas/Tool"}}, "array of Tool"),
        ({"enum": ["mean", "last", None]}, "mean | last"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "object of number"),
        ({}, "any"),
    ],
)
def test_types_are_told_in_words(schema: dict[str, Any], words: str) -> None:
    assert type_name(schema) == words


def test_what_a_body_is_about_comes_first_and_what_it_ignores_last() -> None:
    body = document()["components"]["schemas"]["CompletionBody"]

    fields, names_of_others = described(body, {"prompt": "Hello", "max_tokens": 3})

    assert list(fields)[:2] == ["prompt", "max_tokens"]
    assert "store" in names_of_others["Accepted, and not acted upon."]
    assert "suffix" in names_of_others["Refused unless it asks for nothing."]
    assert {*fields, *(name for names in names_of_others.values() for name in names)} == set(
        body["properties"]
    )


def test_every_field_of_a_body_is_explained() -> None:
    schemas = document()["components"]["schemas"]
    chats = ("ChatBody", "ResponsesBody", "MessagesBody")
    bodies = ("CompletionBody", *chats, "EmbeddingBody", "TokenizeBody", "FileForm", "BatchBody")

    untold = [
        f"{body}.{name}"
        for body in bodies
        for name, field in schemas[body]["properties"].items()
        if "description" not in field and "$ref" not in str(field)
    ]

    assert untold == []


async def test_web_pages_of_other_origins_are_let_in_only_by_name() -> None:
    preflight = {"origin": ORIGIN, "access-control-request-method": "POST"}
    async with serving() as closed:
        without = await closed.http.get("/v1/models", headers={"origin": ORIGIN})
        asked = await closed.http.options("/v1/completions", headers=preflight)
    keys = frozenset({"key"})
    async with serving(cors_origins=(ORIGIN,), api_keys=keys) as opened:
        allowed = await opened.http.options("/v1/completions", headers=preflight)
        refused = await opened.http.get("/v1/models", headers={"origin": ORIGIN})
        other = await opened.http.get("/v1/models", headers={"origin": "https://evil.example"})

    name = "access-control-allow-origin"
    assert name not in without.headers and name not in asked.headers
    assert allowed.status_code == 200 and allowed.headers[name] == ORIGIN
    assert refused.status_code == 401 and refused.headers[name] == ORIGIN
    assert "x-request-id" in refused.headers["access-control-expose-headers"]
    assert name not in other.headers
