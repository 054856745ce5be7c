"""Converts arguments written as bare text to JSON, by their schema.

city   "string"    New York   ->  "New York"
days   "integer"   3          ->  3
when   no type     soon       ->  "soon", as it is not JSON
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NoReturn

from baton.gateway.output.pieces import PieceWriter

Schemas = Mapping[str, Mapping[str, Any] | None]
"""The schema of each tool's arguments, by the tool's name."""
TEXT = frozenset({"string"})
WORDS = {"True": "true", "False": "false", "None": "null"}
"""Python's words, as templates may show them, and JSON's."""
MAX_SCHEMAS = 256
"""The most schemas and enum values examined for the types of one argument."""


class TypedArguments:
    """Writes the arguments of the last started call, one after another."""

    def __init__(self, out: PieceWriter, schema: Mapping[str, Any] | None = None) -> None:
        self._out = out
        self._schema = schema or {}
        self._has_any = False

    def nested(self) -> TypedArguments:
        """A writer for an object nested in the current value."""
        return TypedArguments(self._out)

    def types(self, key: str) -> frozenset[str]:
        """The types that `key` may have; empty if unknown."""
        schema = resolved(self._schema)
        properties = schema.get("properties")
        other = schema.get("additionalProperties")
        property_ = properties.get(key, other) if isinstance(properties, Mapping) else other
        return types_of(property_, self._schema)

    def begin(self, key: str) -> None:
        self._out.arguments(f"{', ' if self._has_any else '{'}{_quoted(key)}: ")
        self._has_any = True

    def write(self, text: str) -> None:
        """A part of the value, as JSON."""
        self._out.arguments(text)

    def end(self) -> None:
        self._out.arguments("}" if self._has_any else "{}")


class TextValue:
    """Writes a string that comes in pieces as JSON."""

    def __init__(self, arguments: TypedArguments) -> None:
        self._arguments = arguments
        arguments.write('"')

    def feed(self, text: str) -> None:
        self._arguments.write(_quoted(text)[1:-1])

    def end(self) -> None:
        self._arguments.write('"')


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that fit `schema`, which is part of `root`. Each part is examined once,
    however often it is referenced.
    """
    found: set[str] = set()
    parts, seen = [schema], {id(schema)}
    for part in parts:  # grows
        if not isinstance(part, Mapping):
            continue
        found.update(_own_types(part))
        for inner in islice(_parts(part, root), MAX_SCHEMAS):
            if id(inner) not in seen and len(seen) < MAX_SCHEMAS:
                seen.add(id(inner))
                parts.append(inner)
    return frozenset(found)


def resolved(root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The definition that `root` refers to, if it is only a reference; else `root`."""
    if not isinstance(reference := root.get("$ref"), str) or "properties" in root:
        return root
    found = _referred(reference, root)
    return found if isinstance(found, Mapping) else root


def value_of(text: str, types: frozenset[str]) -> str:
    """The JSON of a value of one of `types` that is written as `text`."""
    word = text.strip()
    word = WORDS.get(word, word)
    try:
        value = json.loads(word, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _quoted(text)
    is_other = types and types.isdisjoint(_types_of(value))
    if "string" in types and (isinstance(value, str) or is_other):
        return _quoted(text)
    return word


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)  # NaN is no JSON


def _own_types(schema: Mapping[str, Any]) -> Iterator[str]:
    named = schema.get("type")
    if isinstance(named, str | list):
        yield from [named] if isinstance(named, str) else filter(_is_text, named)
    elif "const" in schema:
        yield from _types_of(schema["const"])
    elif isinstance(values := schema.get("enum"), list):
        yield from (name for value in values[:MAX_SCHEMAS] for name in _types_of(value))


def _parts(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Any]:
    """Subschemas that a value of `schema` fits, or may fit."""
    for several in ("anyOf", "oneOf", "allOf"):
        if isinstance(schemas := schema.get(several), list):
            yield from schemas
    if isinstance(reference := schema.get("$ref"), str):
        yield _referred(reference, root)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for name in reference.removeprefix("#").split("/")[1:]:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _types_of(value: Any) -> tuple[str, ...]:
    match value:
        case None:
            return ("null",)
        case bool():
            return ("boolean",)
        case int():
            return ("integer", "number")
        case float():
            return ("number",)
        case str():
            return ("string",)
        case list():
            return ("array",)
    return ("object",)
