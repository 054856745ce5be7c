"""Helpers for grammars in Lark's notation, as llguidance reads it.

The lexer takes the longest match, so a lexeme of any text would swallow what follows it. Such a
lexeme has a suffix that ends it, ends before a special token, or is a complement that excludes what
it must not contain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from baton.gateway.grammars.answer_grammar import json_body

ANY = "/(?s:.*)/"
"""Any text, without special tokens."""
BREAK = r"/\n?/"
COMMA = r"/, ?/"
MAX_OPTIONAL = 128
"""Optional properties of one object. Above this, an output could exceed the grammar's limit of
alternatives (`grammar_check.py`) and fail in the middle of a call."""

_NOTES = frozenset({"description", "title", "examples", "default", "$comment"})
"""Schema keys that are annotations and do not constrain values."""
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions"})


class NotHeld(Exception):
    """The schema cannot be expressed in the rules of a call format, or is too large for them."""


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("&", r"\u0026")


def json_of(schema: Any) -> str:
    """A rule for a value that fits `schema`, without its annotations, which could exceed the
    grammar's limit of size. Raises NotHeld, RecursionError.
    """
    return json_body(without_notes(schema))


def without(marks: Sequence[str]) -> str:
    """Any text that contains none of `marks`."""
    if not marks:
        return ANY
    # A complement alone would also match special tokens.
    return f"{ANY} & ~/(?s:.*)({'|'.join(map(in_regex, marks))})(?s:.*)/"


def not_begun(pattern: str) -> str:
    """Any text that does not begin with a match of the regex `pattern`."""
    return f"{ANY} & ~/({pattern})(?s:.*)/"


def in_regex(mark: str) -> str:
    return re.sub(r"([\[\]{}|()?*+./\\^$])", r"\\\1", mark)


def tokens(ids: Collection[int]) -> str:
    """Any one of these."""
    return f"<[{','.join(map(str, sorted(ids)))}]>"


def members(rule: str, items: Sequence[tuple[str, bool]], separator: str) -> list[str]:
    """Rules of a list of items in their order, each of which may be required. `rule` is all."""
    lines = [f'{rule}_first{len(items)}: ""', f'{rule}_more{len(items)}: ""']
    for index, (item, is_required) in enumerate(items):
        rest = f"{rule}_more{index + 1}"
        first = f"{item} {rest}" + ("" if is_required else f" | {rule}_first{index + 1}")
        more = f"{separator} {item} {rest}" + ("" if is_required else f" | {rest}")
        lines += [f"{rule}_first{index}: {first}", f"{rule}_more{index}: {more}"]
    return [f"{rule}: {rule}_first0", *lines]


def without_notes(schema: Any) -> Any:
    """Raises NotHeld, RecursionError."""
    if isinstance(schema, list):
        return [without_notes(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    if _num_optional(schema) > MAX_OPTIONAL:
        raise NotHeld
    bare: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NOTES:
            continue
        if key in _BY_NAME and isinstance(value, Mapping):
            bare[key] = {name: without_notes(inner) for name, inner in value.items()}
        elif key in ("enum", "const"):
            bare[key] = value
        else:
            bare[key] = without_notes(value)
    return bare


def _num_optional(schema: Any) -> int:
    """Optional properties of an object and of its alternatives (anyOf, oneOf, allOf)."""
    if not isinstance(schema, Mapping):
        return 0
    properties, required = schema.get("properties"), schema.get("required")
    num = 0
    if isinstance(properties, Mapping):
        named = required if isinstance(required, list | tuple) else ()
        num = len(properties.keys() - {name for name in named if isinstance(name, str)})
    for several in ("anyOf", "oneOf", "allOf"):
        options = schema.get(several)
        num += sum(map(_num_optional, options)) if isinstance(options, list | tuple) else 0
    return num
