"""Unknown fields of a body: ignored, unless that would change the request's meaning.

    a field that other servers act on (remedies.py)   refused, with what to use instead
    similar to a known name                           refused: "did you mean ...?"
    anything else                                     ignored; the header `x-baton-ignored` names it

Clients often send fields of other servers without relying on them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from baton.core.errors import InvalidRequest
from baton.gateway.access.config import GatewayConfig
from baton.gateway.http.remedies import OF_MESSAGES, remedy_for
from baton.gateway.http.request_body import (
    UnknownField,
    decode_body,
    decode_json,
    read_body,
)
from baton.gateway.requests.unsupported import has_no_effect, ignored_fields, labels

B = TypeVar("B", bound=msgspec.Struct)

MAX_UNKNOWN = 32
"""Unknown fields of one body; more are refused, since each takes another pass over the body."""
MAX_READ_BYTES = 32 << 20
"""The most bytes that all these passes together read; two passes are always made."""
MAX_SHOWN = 64
"""Characters of a name; a longer one is similar to no field."""
LIKENESS = 0.85
"""`difflib` ratio from which a name counts as a typing error; 1 is equality."""
MIN_LETTERS = 3
STEP = re.compile(r"\[[^\]]*\]|[^.\[\]]+")
MEANT_WHOLE = ("response_format", "structured_outputs", "text", "output_config", "output_format")
"""Fields within which every unknown field is refused."""


async def read_known(request: Request, config: GatewayConfig, kind: type[B]) -> B:
    """Raises InvalidRequest."""
    return known(request, config, await read_body(request, config), kind)


def known(request: Request, config: GatewayConfig, data: bytes, kind: type[B]) -> B:
    """Decode the body. Ignored fields are noted for the answer's header. Raises InvalidRequest."""
    if config.unknown_fields == "refuse":
        body = decode_body(data, kind)
    else:
        body, ignored = decode_known(data, kind)
        request.state.ignored_fields.extend(ignored)
    note_without_effect(request, config, tuple(ignored_fields(body)))
    request.state.ignored_fields.extend(labels(body))
    return body


def note_without_effect(request: Request, config: GatewayConfig, fields: Sequence[str]) -> None:
    """Note known fields without effect for the answer's header. Raises InvalidRequest where
    gateway.unknown_fields is refuse."""
    if fields and config.unknown_fields == "refuse":
        raise InvalidRequest(
            f"{fields[0]} has no effect on this model, and gateway.unknown_fields is refuse; leave "
            "it out",
            field=fields[0],
        )
    request.state.ignored_fields.extend(fields)


def decode_known(data: bytes, kind: type[B]) -> tuple[B, tuple[str, ...]]:
    """The body without unknown fields, and the names of those that were not null. Raises
    InvalidRequest."""
    tree: Any = None
    ignored: list[str] = []
    left = max(MAX_READ_BYTES, 2 * len(data))
    for _ in range(MAX_UNKNOWN):
        left -= len(data)
        if left < 0:
            break
        try:
            return decode_body(data, kind), tuple(ignored)
        except UnknownField as error:
            if tree is None:
                tree = decode_json(data, Any)
            if not error.path:
                ignored += _drop_all(tree, kind)
            else:
                _refuse_meant(error, kind)
                if _drop(tree, STEP.findall(error.path), error.name):
                    ignored.append(_shown(error))
            data = msgspec.json.encode(tree)
    raise InvalidRequest("the body has too many unknown fields; leave them out")


def _drop_all(body: dict[str, Any], kind: type[msgspec.Struct]) -> Iterator[str]:
    """Drop all unknown top-level fields in one pass, since the body may be large."""
    for name in [name for name in body if name not in kind.__struct_fields__]:
        value = body.pop(name)
        if value is None:
            continue
        if (remedy := remedy_for(kind, name)) is not None:
            if has_no_effect(name, value):
                continue
            raise InvalidRequest(f"{name} is not supported; {remedy}", field=name)
        error = UnknownField("", name)
        _refuse_slip(error, kind)
        yield _shown(error)


def _refuse_meant(error: UnknownField, kind: type[msgspec.Struct]) -> None:
    """Refuse a nested unknown field, if it changes the request's meaning. Raises InvalidRequest."""
    if error.path.startswith("messages") and (remedy := OF_MESSAGES.get(error.name)):
        raise InvalidRequest(f"{error.field} is not supported; {remedy}", field=error.field)
    _refuse_slip(error, kind)
    if error.path.startswith(MEANT_WHOLE):
        raise error


def _refuse_slip(error: UnknownField, kind: type[msgspec.Struct]) -> None:
    """Raises InvalidRequest."""
    names = _names(kind)
    if error.name in names or len(error.name) > MAX_SHOWN:
        near = []  # not similar to a known name: no typing error
    else:
        near = get_close_matches(error.name, names, n=1, cutoff=LIKENESS)
        near += [name for name in names if differs_in_one_letter(name, error.name)]
    if near:
        raise InvalidRequest(
            f"{error.field} is not a field Baton knows; did you mean {near[0]}?", field=error.field
        )


def differs_in_one_letter(name: str, other: str) -> bool:
    """Whether two names of at least three letters differ in exactly one."""
    num_other = sum(one != another for one, another in zip(name, other, strict=False))
    return len(name) == len(other) >= MIN_LETTERS and num_other == 1


def _drop(node: Any, steps: list[str], name: str) -> bool:
    """Drop the field from all items of a list, since other messages probably have it, too. Return
    whether any had a value."""
    if isinstance(node, list):
        return any([_drop(item, steps, name) for item in node])
    if not isinstance(node, dict):
        return False
    while steps and steps[0].startswith("["):
        steps = steps[1:]
    if steps:
        return _drop(node.get(steps[0]), steps[1:], name)
    return node.pop(name, None) is not None


def _shown(error: UnknownField) -> str:
    """The field's path for a header: `messages[].name`."""
    path = f"{error.path[:MAX_SHOWN]}.{error.name[:MAX_SHOWN]}".lstrip(".")
    path = re.sub(r"\[[^\]]*\]", "[]", path)
    return printable(path)


def printable(text: str) -> str:
    """The text as a header may carry it."""
    return re.sub(r"[^\w.\[\]-]", "?", text[:MAX_SHOWN], flags=re.ASCII)


@cache
def _names(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Names of the fields of a body and of its nested structs."""
    _, components = msgspec.json.schema_components([kind])
    found = {name for one in components.values() for name in one.get("properties", ())}
    return tuple(sorted(found))
