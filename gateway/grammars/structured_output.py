"""Structured output: a caller's format as a grammar.

    response_format      OpenAI's: text, json_object, json_schema      --+
    structured_outputs   vLLM's: json, json_object, regex, choice, ...   +--> OutputRule: Grammar
    StructuredOutput     protobuf                                      --+

`answer_grammar.py` adds reasoning and tool calls around it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from llguidance.gbnf_to_lark import gbnf_to_lark

from baton.core.errors import InvalidRequest
from baton.core.sampling import Grammar, GrammarKind

ANY_OBJECT: dict[str, Any] = {"type": "object"}
MAX_CHOICES = 1024
MAX_GBNF_CHARS = 8192
"""Translation blocks the event loop, with this limit for 30 ms at most."""
IS_GBNF = re.compile(r"^[ \t]*root[ \t]*::=", re.MULTILINE)
r"""Only spaces and tabs: `\s` would take quadratic time on a text of blank lines."""
REGEX_SIGNS = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")


class JsonSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    """Accepted: the schema always holds."""


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of these."""

    json: dict[str, Any] | str | bool | None = None
    """A JSON schema, or the text of one."""
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    """A grammar in Lark's notation, or in GBNF (`root ::= ...`)."""


@dataclass(frozen=True, slots=True)
class OutputRule:
    grammar: Grammar
    field: str
    """The field in which the caller wrote it, for error messages."""


def output_rule(
    response_format: ResponseFormat | None, structured_outputs: StructuredOutputs | None
) -> OutputRule | None:
    """Raises InvalidRequest."""
    rule = None
    if response_format is not None:
        wanted = response_format.json_schema
        rule = format_rule(
            response_format.type,
            None if wanted is None else wanted.schema,
            field="response_format",
            schema_field="response_format.json_schema.schema",
        )
    if structured_outputs is None:
        return rule
    if rule is not None:
        raise InvalidRequest(
            "structured_outputs and response_format exclude each other; leave one out",
            field="structured_outputs",
        )
    return rule_of_kinds(structured_outputs, field="structured_outputs")


def format_rule(
    kind: str, schema: dict[str, Any] | bool | None, *, field: str, schema_field: str
) -> OutputRule | None:
    """OpenAI's three kinds of format. Raises InvalidRequest."""
    match kind:
        case "text":
            return None
        case "json_object":
            return json_rule(ANY_OBJECT, field=field)
        case "json_schema":
            return json_rule(schema, field=schema_field)
    raise InvalidRequest(
        f"{field}.type is {kind!r}; known are text, json_object and json_schema",
        field=f"{field}.type",
    )


def rule_of_kinds(
    wanted: StructuredOutputs, *, field: str, schema_name: str = "json"
) -> OutputRule:
    """Raises InvalidRequest."""
    names = [
        name for name in wanted.__struct_fields__ if getattr(wanted, name) not in (None, False)
    ]
    if wanted.json is False:
        names.append("json")
    if len(names) != 1:
        known = ", ".join(wanted.__struct_fields__).replace("json,", f"{schema_name},", 1)
        raise InvalidRequest(f"{field} needs exactly one of {known}", field=field)
    path = f"{field}.{schema_name if names[0] == 'json' else names[0]}"
    match names[0]:
        case "json":
            return json_rule(wanted.json, field=path)
        case "json_object":
            return json_rule(ANY_OBJECT, field=path)
        case "regex":
            grammar = Grammar(GrammarKind.REGEX, wanted.regex or "")
        case "choice":
            grammar = _one_of(wanted.choice or [], path)
        case _:
            grammar = Grammar(GrammarKind.LARK, _in_lark(wanted.grammar or "", path))
    return OutputRule(grammar, path)


def _in_lark(text: str, path: str) -> str:
    """Raises InvalidRequest for GBNF, as llama.cpp and XGrammar have it, that cannot be read."""
    if not IS_GBNF.search(text):
        return text
    if len(text) > MAX_GBNF_CHARS:
        raise InvalidRequest(
            f"{path} has {len(text)} characters of GBNF, of which {MAX_GBNF_CHARS} are read; write "
            "it in Lark's notation",
            field=path,
        )
    try:
        return gbnf_to_lark(text)
    except Exception as error:  # a bare Exception for undefined rules
        raise InvalidRequest(
            f"{path} is no GBNF that can be read ({error}); mend it, or write it in Lark's "
            "notation, which begins with start:",
            field=path,
        ) from None


def json_rule(schema: dict[str, Any] | str | bool | None, *, field: str) -> OutputRule:
    """`schema` may be the text of one. Raises InvalidRequest."""
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema, type=dict[str, Any] | bool)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequest(f"{field} is not a JSON schema: {error}", field=field) from error
    if schema is None:
        raise InvalidRequest(f"{field} is missing", field=field)
    try:
        return OutputRule(Grammar(GrammarKind.JSON_SCHEMA, _text(schema)), field)
    except RecursionError:
        raise InvalidRequest(f"{field} is nested too deeply", field=field) from None


def _one_of(choices: Sequence[str], path: str) -> Grammar:
    if not 1 <= len(choices) <= MAX_CHOICES or not all(choices):
        raise InvalidRequest(f"{path} needs 1 to {MAX_CHOICES} strings, none empty", field=path)
    return Grammar(GrammarKind.REGEX, "|".join(map(_literally, choices)))


def _literally(text: str) -> str:
    return REGEX_SIGNS.sub(lambda match: "\\" + match[0], text)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
