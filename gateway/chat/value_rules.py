"""Grammar rules, one for each part of a schema, for values whose strings are not quite JSON's.

Members come in the order of their schema. A schema that the rules cannot express is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from baton.gateway.chat.lark import COMMA, NotHeld, json_of, members
from baton.gateway.output.typed_arguments import TEXT, types_of

MAX_DEPTH = 8
PLAIN_WORDS = frozenset({"type", "description", "title", "default", "enum", "examples"})
"""Schema keys of a string that can be enforced although it is not written as JSON."""
OBJECT_WORDS = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "description", "title"),
        *("$schema", "$id", "$defs", "definitions", "default", "examples"),
    }
)
LIST_WORDS = PLAIN_WORDS | {"items"}
OF_ANY_PART = frozenset({"string", "object", "array"})
"""Types whose values can contain strings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRules:
    root: Mapping[str, Any]
    """The schema that all others are part of."""
    text: str
    """Any string, in Lark's notation."""
    word: Callable[[str], str]
    """This string."""
    key: Callable[[str], str]
    """A member's name with the text up to its value. May raise NotHeld."""
    lines: list[str] = field(default_factory=list)

    def value(self, rule: str, schema: Any, depth: int = 0) -> None:
        """Raises NotHeld."""
        types = types_of(schema, self.root)
        if words := words_of(schema, types):
            self.lines.append(f"{rule}: {' | '.join(map(self.word, words))}")
        elif types in (TEXT, TEXT | {"null"}) and any_text_fits(schema):
            null = ' | "null"' if "null" in types else ""
            self.lines.append(f"{rule}: {self.text}{null}")
        elif types == {"object"}:
            self.object(rule, schema, depth)
        elif types == {"array"}:
            self._list(rule, schema, depth)
        elif types and types.isdisjoint(OF_ANY_PART):
            self.lines.append(f"{rule}: {json_of(schema)}")
        else:
            raise NotHeld

    def object(self, rule: str, schema: Any, depth: int = 0) -> None:
        """Raises NotHeld."""
        required = required_of(schema) if isinstance(schema, Mapping) else None
        if required is None or depth > MAX_DEPTH:
            raise NotHeld
        items = []
        for number, (key, value) in enumerate(schema["properties"].items()):
            self.value(f"{rule}_{number}", value, depth + 1)
            items.append((f"{self.key(key)} {rule}_{number}", key in required))
        self.lines.extend(members(f"{rule}_all", items, COMMA))
        self.lines.append(f'{rule}: "{{" {rule}_all "}}"')

    def _list(self, rule: str, schema: Any, depth: int) -> None:
        if not LIST_WORDS.issuperset(schema) or "enum" in schema or depth > MAX_DEPTH:
            raise NotHeld
        self.value(f"{rule}_i", schema.get("items"), depth + 1)
        self.lines.append(f'{rule}: "[" ({rule}_i ({COMMA} {rule}_i)*)? "]"')


def required_of(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """The required members of an object schema that constrains only its members; else None."""
    required = schema.get("required") or ()
    is_plain = OBJECT_WORDS.issuperset(schema) and not schema.get("additionalProperties")
    if not is_plain or not isinstance(schema.get("properties"), dict):
        return None
    return frozenset(required) if isinstance(required, list | tuple) else None


def any_text_fits(schema: Any) -> bool:
    """Whether the schema allows any string (and null, if that is one of its types)."""
    if not isinstance(schema, Mapping) or "enum" in schema:
        return False
    for several in ("anyOf", "oneOf"):
        if several in schema:
            others = schema.keys() - PLAIN_WORDS - {several}
            options = schema[several]
            return not others and isinstance(options, list) and all(map(any_text_fits, options))
    return PLAIN_WORDS.issuperset(schema)


def words_of(schema: Any, types: frozenset[str]) -> list[str]:
    """All strings that the schema allows, if it is an enumeration of strings and nothing more; else
    none."""
    if not isinstance(schema, Mapping) or not PLAIN_WORDS.issuperset(schema) or types != TEXT:
        return []
    values = schema.get("enum")
    return [word for word in values if isinstance(word, str)] if isinstance(values, list) else []
