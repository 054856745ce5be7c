"""The OpenAPI 3.1 document of an HTTP port, generated from the structs that read and write its
bodies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from baton.core.attribute_docs import attribute_docs
from baton.gateway.http.edge import GUARDED, OPERATED
from baton.gateway.http.errors import ErrorShape, error_shape
from baton.gateway.http.openapi.endpoint import QUERIES, Endpoint
from baton.gateway.http.openapi.endpoints import HEADERS

REF = "#/components/schemas/{name}"
PARAMETER = re.compile(r"{(\w+)}")
NO_CONTENT = 204
TEXT = {"type": "string"}
EVENTS = "text/event-stream"
EVENT = {
    "type": "object",
    "description": "One event; `data` is JSON, or `[DONE]`.",
    "properties": {"id": TEXT, "event": TEXT, "data": TEXT},
    "required": ["data"],
}
DESCRIPTION = """\
Large language models with prefill and decode on separate pools. What OpenAI's API and vLLM's have \
in common works here unchanged, and so do Anthropic's messages; what Baton adds is marked.

Every answer carries `x-request-id`: your own, if the request had one. Errors are OpenAI's: an \
`error` with `message`, `type`, `param` (the path of the field at fault) and `code`; those of \
`/v1/messages` are Anthropic's.
"""


def openapi_document(
    endpoints: Sequence[Endpoint], *, version: str, needs_key: bool
) -> dict[str, Any]:
    """`needs_key`: whether guarded paths need an API key."""
    kinds = [kind for endpoint in endpoints for kind in (endpoint.body, endpoint.answer) if kind]
    kinds += [error_shape(endpoint.path).body for endpoint in endpoints]
    kinds = list(dict.fromkeys(kinds))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REF)
    _add_attribute_docs(components, kinds)
    schema_by_kind = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, schema_by_kind)
        if endpoint.path.startswith((*GUARDED, *OPERATED)):
            ways: list[dict[str, list[str]]] = [{"key": []}, {"anthropics_key": []}]
            operation["security"] = ways if needs_key else [{}, *ways]
        paths.setdefault(endpoint.path, {})[endpoint.method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Baton", "version": version, "description": DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "anthropics_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(endpoint: Endpoint, schema_by_kind: Mapping[type, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method} {endpoint.path}").strip("_"),
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        "parameters": list(_parameters(endpoint)),
        "responses": _responses(endpoint, schema_by_kind),
    }
    if endpoint.details:
        operation["description"] = endpoint.details
    if endpoint.body is not None:
        content = {"schema": schema_by_kind[endpoint.body], "example": endpoint.example or {}}
        operation["requestBody"] = {"required": True, "content": {endpoint.body_media: content}}
    return operation


def _parameters(endpoint: Endpoint) -> Iterable[dict[str, Any]]:
    for name in PARAMETER.findall(endpoint.path):
        yield {"name": name, "in": "path", "required": True, "schema": TEXT}
    for name in endpoint.queries:
        schema, description = QUERIES[name]
        yield {"name": name, "in": "query", "description": description, "schema": schema}
    printable = {**TEXT, "pattern": "^[!-~]{1,128}$"}
    for name in ("x-request-id", *endpoint.headers):
        yield {
            "name": name,
            "in": "header",
            "description": HEADERS[name],
            "schema": printable if name == "x-request-id" else TEXT,
        }


def _responses(endpoint: Endpoint, schema_by_kind: Mapping[type, Any]) -> dict[str, Any]:
    request_id = {"x-request-id": {"schema": {"type": "string"}}}
    good: dict[str, Any] = {"description": endpoint.summary, "headers": request_id}
    if endpoint.answer is not None:
        good["content"] = {endpoint.media: {"schema": schema_by_kind[endpoint.answer]}}
    elif endpoint.status != NO_CONTENT:
        schema = EVENT if endpoint.media == EVENTS else TEXT
        good["content"] = {endpoint.media: {"schema": schema}}
    if endpoint.is_streamed:
        good["content"][EVENTS] = {"schema": EVENT}
    responses = {str(endpoint.status): good}
    if "last-event-id" in endpoint.headers:
        responses[str(NO_CONTENT)] = {"description": "All of the stream has been received"}
    shape = error_shape(endpoint.path)
    responses |= _failures(shape, schema_by_kind[shape.body])
    for status, kind in endpoint.others.items():
        media = "text/plain" if kind is str else "application/json"
        content = {media: {"schema": schema_by_kind.get(kind, TEXT)}}
        responses[str(status)] = {"description": "Not now", "content": content}
    return responses


def _failures(shape: ErrorShape, error_schema: Any) -> dict[str, Any]:
    """The error responses by status, with the codes that tell them apart."""
    content = {"application/json": {"schema": error_schema}}
    return {
        str(status): {"description": ", ".join(dict.fromkeys(names)), "content": content}
        for status, names in sorted(shape.names_by_status().items())
    }


def _add_attribute_docs(components: dict[str, Any], kinds: Iterable[type]) -> None:
    for name, cls in _classes(msgspec.inspect.multi_type_info(kinds)).items():
        properties = components[name]["properties"]
        for attribute, text in attribute_docs(cls).items():
            if attribute in properties:
                properties[attribute].setdefault("description", text)


def _classes(found: Iterable[Any]) -> dict[str, type]:
    """All structs and dataclasses within these types, by name."""
    classes: dict[str, type] = {}
    waiting = list(found)
    while waiting:
        info = waiting.pop()
        if isinstance(info, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
            if info.cls.__name__ not in classes:
                classes[info.cls.__name__] = info.cls
                waiting.extend(field.type for field in info.fields)
        elif isinstance(info, msgspec.inspect.UnionType):
            waiting.extend(info.types)
        elif isinstance(info, msgspec.inspect.Metadata):
            waiting.append(info.type)
        elif isinstance(info, msgspec.inspect.CollectionType):
            waiting.append(info.item_type)
        elif isinstance(info, msgspec.inspect.DictType):
            waiting.append(info.value_type)
    return classes
