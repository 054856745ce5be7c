"""Tools that a model may call: functions, and custom tools, which are functions of one text.

A function is called with a JSON object that fits its schema, a custom tool with a text. The model
is shown both as functions; `output/custom_input.py` reads the text out of the object again.

    format of the text   where this tool must be called     elsewhere
    text                 any text                           any text
    grammar, regex       the output is the text itself      a pattern in the schema
    grammar, lark        the output is the text itself      in the description; not enforced
"""

from __future__ import annotations

from typing import Any

import msgspec

from baton.core.errors import InvalidRequest
from baton.core.sampling import Grammar, GrammarKind
from baton.gateway.grammars.structured_output import OutputRule

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
TEXT = "input"
"""The one argument of a custom tool."""
KIND_BY_SYNTAX = {"lark": GrammarKind.LARK, "regex": GrammarKind.REGEX}


class Function(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema."""
    strict: bool | None = None
    """True: a schema that cannot be enforced is reported, or refused. False for all tools: optional
    calls are not constrained. A forced call is always constrained by its schema."""

    def for_template(self) -> dict[str, Any]:
        """The function as chat templates want it."""
        given = {"name": self.name, "description": self.description, "parameters": self.parameters}
        function = {name: value for name, value in given.items() if value is not None}
        return {"type": "function", "function": function}


class TextFunction(Function, kw_only=True, forbid_unknown_fields=True):
    """A custom tool."""

    rule: OutputRule | None = None
    """The rule for its text; None: any text."""


class InputGrammar(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    syntax: str | None = None
    """lark or regex."""
    definition: str | None = None


class InputFormat(InputGrammar, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The format of a custom tool's text. Chats nest the grammar in an object, /v1/responses does
    not."""

    type: str
    """text or grammar."""
    grammar: InputGrammar | None = None


class CustomTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    format: InputFormat | None = None
    """What the text must be. Any text by default."""

    def function(self, path: str) -> TextFunction:
        """`path` is where the tool stands. Raises InvalidRequest."""
        rule = None if self.format is None else _rule(self.format, f"{path}.format")
        text: dict[str, Any] = {"type": "string"}
        description = self.description
        if rule is not None and rule.grammar.kind is GrammarKind.REGEX:
            text["pattern"] = f"^(?:{rule.grammar.source})$"
        elif rule is not None:
            words = f"Its {TEXT} must fit this grammar, in Lark's notation:\n{rule.grammar.source}"
            description = f"{description}\n\n{words}" if description else words
        return TextFunction(
            name=self.name,
            description=description,
            parameters={
                "type": "object",
                "properties": {TEXT: text},
                "required": [TEXT],
                "additionalProperties": False,
            },
            strict="pattern" in text or None,
            rule=rule,
        )


def _rule(wanted: InputFormat, path: str) -> OutputRule | None:
    """Raises InvalidRequest."""
    if wanted.type == "text":
        return None
    if wanted.type != "grammar":
        raise InvalidRequest(
            f"{path}.type is {wanted.type!r}; known are text and grammar", field=f"{path}.type"
        )
    grammar: InputGrammar = wanted
    if wanted.grammar is not None:
        grammar, path = wanted.grammar, f"{path}.grammar"
    kind = KIND_BY_SYNTAX.get(grammar.syntax or "")
    if kind is None:
        raise InvalidRequest(
            f"{path}.syntax is {grammar.syntax!r}; known are lark and regex",
            field=f"{path}.syntax",
        )
    if not grammar.definition:
        raise InvalidRequest(f"{path}.definition is missing", field=f"{path}.definition")
    return OutputRule(Grammar(kind, grammar.definition), f"{path}.definition")
