"""Lark's notation, in which llguidance takes grammars.

A lexeme is the longest match of those that may come next, so that one of any text swallows what
stands behind it: it has a suffix that ends it, ends before a special token, or says by its
complement what it does not have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from baton.gateway.grammars.answer_grammar import json_body

ANY = "/(?s:.*)/"
"""Any text. Special tokens are none."""
BREAK = r"/\n?/"
COMMA = r"/, ?/"
MAX_OPTIONAL = 128
"""Properties that may come next. Grammars have a limit of ways to go on (`grammar_check.py`), at
which an output would fail in the middle of a call."""

_NOTES = frozenset({"description", "title", "examples", "default", "$comment"})
"""What schemas tell a reader, and no grammar."""
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions"})


class NotHeld(Exception):
    """The schema says what the rules of a format cannot, or too much for them."""


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("&", r"\u0026")


def json_of(schema: Any) -> str:
    """A value that fits `schema`. Tools come with pages of words, and a grammar has a limit.

    Raises NotHeld, RecursionError.
    """
    return json_body(without_notes(schema))


def without(marks: Sequence[str]) -> str:
    """Any text that has none of `marks`."""
    if not marks:
        return ANY
    # A complement alone has special tokens, too.
    return f"{ANY} & ~/(?s:.*)({'|'.join(map(in_regex, marks))})(?s:.*)/"


def not_begun(pattern: str) -> str:
    """Any text that does not begin as the regex `pattern` has it."""
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
    """Properties of an object, with those of the schemas that it is a choice of."""
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
