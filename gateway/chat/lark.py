"""Lark's notation, in which llguidance takes grammars.

A lexeme is the longest match of those that may come next, so that one of any text swallows what
stands behind it: it has a suffix that ends it, ends before a special token, or says by its
complement what it does not have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from baton.gateway.grammars.answer_grammar import json_body

ANY = "/(?s:.*)/"
"""Any text. Special tokens are none."""
BREAK = r"/\n?/"
COMMA = r"/, ?/"

_NOTES = frozenset({"description", "title", "examples", "default", "$comment"})
"""What schemas tell a reader, and no grammar."""
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions"})


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def json_of(schema: Any) -> str:
    """A value that fits `schema`. Tools come with pages of words, and a grammar has a limit."""
    return json_body(_without_notes(schema))


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


def members(rule: str, items: Sequence[tuple[str, bool]], separator: str) -> list[str]:
    """Rules of a list of items in their order, each of which may be required. `rule` is all."""
    lines = [f'{rule}_first{len(items)}: ""', f'{rule}_more{len(items)}: ""']
    for index, (item, is_required) in enumerate(items):
        rest = f"{rule}_more{index + 1}"
        first = f"{item} {rest}" + ("" if is_required else f" | {rule}_first{index + 1}")
        more = f"{separator} {item} {rest}" + ("" if is_required else f" | {rest}")
        lines += [f"{rule}_first{index}: {first}", f"{rule}_more{index}: {more}"]
    return [f"{rule}: {rule}_first0", *lines]


def _without_notes(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_notes(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    bare: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NOTES:
            continue
        if key in _BY_NAME and isinstance(value, Mapping):
            bare[key] = {name: _without_notes(inner) for name, inner in value.items()}
        elif key in ("enum", "const"):
            bare[key] = value
        else:
            bare[key] = _without_notes(value)
    return bare
