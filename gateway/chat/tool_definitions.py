"""The tools a caller offers to the model, and whether one must be used.

A forced call is enforced by a grammar: the output is then JSON, whatever the model's own call
format, and its arguments fit the tool's schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from baton.core.errors import InvalidRequest
from baton.gateway.chat.functions import NO_PARAMETERS, CustomTool, Function, TextFunction
from baton.gateway.grammars.structured_output import OutputRule, json_rule

MAX_TOOLS = 128
NAME = re.compile(r"[\w.:/-]{1,128}", re.ASCII)
ALLOWED = "allowed_tools"


class Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    function: Function | None = None
    custom: CustomTool | None = None


class ToolMode(Enum):
    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools of one request."""

    functions: tuple[Function, ...] = ()
    mode: ToolMode = ToolMode.NONE
    forced_name: str | None = None
    """The name of the tool that must be called, if one is named."""
    is_parallel: bool = True
    """Whether an answer may have several calls."""
    schema_field: str = "function.parameters"
    """The path of a tool's schema below the tool, for error messages."""
    field: str = "tools"
    listed_names: tuple[str, ...] = ()
    """Names of all tools of the request, in its order; it may allow only some of them."""

    def rule(self) -> OutputRule | None:
        """The rule of the output if a tool must be called."""
        if self.mode is not ToolMode.REQUIRED:
            return None
        if self.text_rule is not None:
            return self.text_rule
        if self.forced_name is not None:
            (forced,) = (f for f in self.functions if f.name == self.forced_name)
            return json_rule(forced.parameters or NO_PARAMETERS, field=self.schema_path(forced))
        items = self.call_schema("parameters", place="#/items")
        calls: dict[str, Any] = {"type": "array", "items": items, "minItems": 1}
        if not self.is_parallel:
            calls["maxItems"] = 1
        return json_rule(calls, field=self.field)

    def path(self, function: Function) -> str:
        """Where the request has this tool, for error messages."""
        return f"{self.field}[{self.listed_names.index(function.name)}]"

    def schema_path(self, function: Function) -> str:
        """Where the request has what the arguments of a call must be."""
        if isinstance(function, TextFunction) and function.rule is not None:
            return function.rule.field
        return f"{self.path(function)}.{self.schema_field}"

    @property
    def custom_names(self) -> frozenset[str]:
        return frozenset(f.name for f in self.functions if isinstance(f, TextFunction))

    @property
    def text_rule(self) -> OutputRule | None:
        """The rule of the output if the forced tool is a custom one: the output is its text."""
        for function in self.functions:
            if function.name == self.forced_name and isinstance(function, TextFunction):
                return function.rule
        return None

    def call_schema(self, arguments_key: str, *, place: str = "#") -> dict[str, Any]:
        """The schema of one call: any tool's name and arguments. `place` is where it will stand.

        Raises InvalidRequest.
        """
        calls = []
        for index, function in enumerate(self.functions):
            try:
                calls.append(_call(function, arguments_key, f"{place}/anyOf/{index}"))
            except RecursionError:
                path = self.schema_path(function)
                raise InvalidRequest(f"{path} is nested too deeply", field=path) from None
        return {"anyOf": calls}


def tool_use(
    tools: Sequence[Tool] | None, choice: object = None, *, is_parallel: bool | None = None
) -> ToolUse:
    """Raises InvalidRequest."""
    functions = tuple(_function(tool, f"tools[{i}]") for i, tool in enumerate(tools or ()))
    return use_of(functions, choice, is_parallel=is_parallel)


def use_of(
    functions: Sequence[Function],
    choice: object,
    *,
    is_parallel: bool | None = None,
    schema_field: str = "function.parameters",
) -> ToolUse:
    """`choice` is OpenAI's `tool_choice`. Raises InvalidRequest."""
    _check_names(functions)
    listed_names = tuple(function.name for function in functions)
    if isinstance(choice, Mapping) and choice.get("type") == ALLOWED:
        functions, choice = _allowed(functions, choice)
    forced_name = None if choice is None or isinstance(choice, str) else _named(choice)
    if forced_name is not None:
        mode = ToolMode.REQUIRED
    elif choice in (None, "auto"):
        mode = ToolMode.AUTO if functions else ToolMode.NONE
    elif choice in ("none", "required"):
        mode = ToolMode(choice)
    else:
        raise _bad_choice(f"is {choice!r}; known are none, auto, required and a tool")
    if mode is ToolMode.REQUIRED and not functions:
        raise _bad_choice("asks for a call, but there are no tools")
    if forced_name is not None and all(f.name != forced_name for f in functions):
        raise _bad_choice(f"names {forced_name!r}, which is not one of tools")
    if mode is ToolMode.REQUIRED and len(functions) == 1 and isinstance(functions[0], TextFunction):
        forced_name = functions[0].name
    return ToolUse(
        functions=tuple(functions),
        mode=mode,
        forced_name=forced_name,
        is_parallel=is_parallel is not False,
        schema_field=schema_field,
        listed_names=listed_names,
    )


def _function(tool: Tool, path: str) -> Function:
    if tool.type == "custom" and tool.custom is not None:
        return tool.custom.function(f"{path}.custom")
    if tool.type == "custom":
        raise InvalidRequest(f"{path}.custom is missing", field=f"{path}.custom")
    if tool.type != "function":
        raise InvalidRequest(
            f"{path}.type is {tool.type!r}; known are function and custom. Tools that run at "
            "OpenAI's servers can be left out of what is read (gateway.hosted_tools)",
            field=f"{path}.type",
        )
    if tool.function is None:
        raise InvalidRequest(f"{path}.function is missing", field=f"{path}.function")
    return tool.function


def _check_names(functions: Sequence[Function]) -> None:
    if len(functions) > MAX_TOOLS:
        raise InvalidRequest(
            f"tools has {len(functions)} tools; at most {MAX_TOOLS} can be", field="tools"
        )
    seen: set[str] = set()
    for index, function in enumerate(functions):
        path = f"tools[{index}]"
        if not NAME.fullmatch(function.name):
            raise InvalidRequest(
                f"{path}: a name has 1 to 128 letters, digits and _ . : / -", field=path
            )
        if function.name in seen:
            raise InvalidRequest(f"{path}: {function.name!r} is there twice", field=path)
        seen.add(function.name)


def _named(choice: object) -> str:
    """The name in {"type": "function", "function": {"name": ...}} or in {"type": "function",
    "name": ...}; the same for a custom tool."""
    if isinstance(choice, Mapping) and (kind := choice.get("type")) in ("function", "custom"):
        inner = choice.get(kind, choice)
        name = inner.get("name") if isinstance(inner, Mapping) else None
        if isinstance(name, str):
            return name
    raise _bad_choice("must be none, auto, required, or an object that names a tool")


def _allowed(
    functions: Sequence[Function], choice: Mapping[Any, Any]
) -> tuple[list[Function], Any]:
    """The tools that an `allowed_tools` choice leaves, and its mode. Chats nest it, /v1/responses
    does not."""
    inner = choice.get(ALLOWED, choice)
    listed = inner.get("tools") if isinstance(inner, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(listed, list) or not listed:
        raise _bad_choice(f"of type {ALLOWED} needs a list of tools")
    if inner.get("mode") not in ("auto", "required"):
        raise _bad_choice(f"of type {ALLOWED} has mode {inner.get('mode')!r}; use auto or required")
    names = {_named(tool) for tool in listed}
    if unknown := names.difference(function.name for function in functions):
        raise _bad_choice(f"allows {min(unknown)!r}, which is not one of tools")
    return [function for function in functions if function.name in names], inner["mode"]


def _bad_choice(remedy: str) -> InvalidRequest:
    return InvalidRequest(f"tool_choice {remedy}", field="tool_choice")


def _call(function: Function, arguments_key: str, place: str) -> dict[str, Any]:
    arguments = function.parameters or NO_PARAMETERS
    return {
        "type": "object",
        "properties": {
            "name": {"const": function.name},
            arguments_key: _moved(arguments, f"{place}/properties/{arguments_key}"),
        },
        "required": ["name", arguments_key],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """The schema with its internal references rewritten for its position `place` in another
    schema."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, place) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved
