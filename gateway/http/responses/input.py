"""Converts the items of a request to /v1/responses to messages for chat templates.

message                 {"role": ..., "content": ...}
function_call           joins the assistant's message before it, or begins one
function_call_output    {"role": "tool", ...}
custom_tool_call        as a function_call of one text, and custom_tool_call_output likewise
reasoning               is a field of the assistant's message that it is part of; templates leave
                        that of earlier turns out
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from baton.core.errors import InvalidRequest
from baton.gateway.chat.messages import (
    MAX_MESSAGES,
    PART_BREAK,
    ROLE_BY_NAME,
    call_arguments,
    reasoning_fields,
    text_call,
)
from baton.gateway.requests.cache_control import MarkedMessage, marked, read_control
from baton.gateway.requests.unsupported import unsupported_part

TEXT_TYPES = ("input_text", "output_text", "text")
InputItem = dict[str, Any]


def input_messages(
    given: str | Sequence[InputItem],
    instructions: str | None,
    *,
    earlier: Sequence[InputItem] = (),
    has_text_arguments: bool = False,
) -> tuple[list[dict[str, Any]], list[MarkedMessage]]:
    """The messages of `earlier`, then of `given`, with the cache points of `given`. Raises
    InvalidRequest, naming the item."""
    reading = _Reading(has_text_arguments)
    if instructions is not None:
        reading.messages.append({"role": "system", "content": instructions})
    for item in earlier:
        reading.add(item, "previous_response_id")
    if isinstance(given, str):
        reading.messages.append({"role": "user", "content": given})
        return reading.messages, []
    if not 1 <= len(given) <= MAX_MESSAGES - len(earlier):
        room = f", {len(earlier)} of which are those of previous_response_id" if earlier else ""
        raise InvalidRequest(f"input needs 1 to {MAX_MESSAGES} items{room}", field="input")
    marks: list[MarkedMessage] = []
    for index, item in enumerate(given):
        reading.add(item, f"input[{index}]")
        if reading.messages:
            marks.extend(_marks(item, len(reading.messages) - 1, f"input[{index}]"))
    return reading.messages, marks


def _marks(item: InputItem, message: int, path: str) -> Iterator[MarkedMessage]:
    """The cache points of a valid item: after its parts, and after itself."""
    name = "output" if str(item.get("type")).endswith("_output") else "content"
    parts = item.get(name)
    texts: list[str] = []
    for number, part in enumerate(parts if isinstance(parts, list) else ()):
        texts.append(part.get("text", ""))
        field = f"{path}.{name}[{number}].cache_control"
        if (control := read_control(part.get("cache_control"), field)) is not None:
            yield marked(control, field, message, part_end=len(PART_BREAK.join(texts)))
    field = f"{path}.cache_control"
    if (control := read_control(item.get("cache_control"), field)) is not None:
        yield marked(control, field, message)


class _Reading:
    def __init__(self, has_text_arguments: bool) -> None:
        self.messages: list[dict[str, Any]] = []
        self._has_text_arguments = has_text_arguments
        self._reasoning = ""
        """The reasoning of the assistant's message that follows."""

    def add(self, item: InputItem, path: str) -> None:
        match item.get("type", "message"):
            case "message":
                self._add_message(_message(item, path))
            case "function_call" | "custom_tool_call" as kind:
                read = _call if kind == "function_call" else _custom_call
                call = read(item, path, self._has_text_arguments)
                if not self._goes_on:
                    self._add_message({"role": "assistant", "content": None})
                self.messages[-1].setdefault("tool_calls", []).append(call)
            case "function_call_output" | "custom_tool_call_output":
                text = _text(item.get("output"), f"{path}.output")
                call_id = _string(item, "call_id", path)
                self._add_message({"role": "tool", "content": text, "tool_call_id": call_id})
            case "reasoning":
                self._add_reasoning(item)
            case kind:
                raise InvalidRequest(
                    f"{path}.type is {kind!r}; known are message, function_call, "
                    "function_call_output, custom_tool_call, custom_tool_call_output, reasoning "
                    "and item_reference",
                    field=f"{path}.type",
                )

    @property
    def _goes_on(self) -> bool:
        return bool(self.messages) and self.messages[-1]["role"] == "assistant"

    def _add_message(self, message: dict[str, Any]) -> None:
        if self._reasoning and message["role"] == "assistant":
            message |= reasoning_fields(self._reasoning)
        self._reasoning = ""
        self.messages.append(message)

    def _add_reasoning(self, item: InputItem) -> None:
        """Add the text of a reasoning item; one without text, such as an encrypted one, is left
        out."""
        parts = item.get("content")
        texts = [
            part.get("text")
            for part in (parts if isinstance(parts, list) else ())
            if isinstance(part, dict)
        ]
        text = PART_BREAK.join(text for text in texts if isinstance(text, str))
        if not self._goes_on:
            self._reasoning += text
        elif text:
            before = self.messages[-1].get("reasoning_content")
            whole = f"{before}{PART_BREAK}{text}" if before else text
            self.messages[-1] |= reasoning_fields(whole)


def _message(item: Mapping[str, Any], path: str) -> dict[str, Any]:
    name = _string(item, "role", path)
    role = ROLE_BY_NAME.get(name)
    if role is None or role == "tool":
        known = "system, developer, user, assistant"
        raise InvalidRequest(f"{path}.role is {name!r}; known are {known}", field=f"{path}.role")
    return {"role": role, "content": _text(item.get("content"), f"{path}.content")}


def _call(item: Mapping[str, Any], path: str, has_text_arguments: bool) -> dict[str, Any]:
    text = _string(item, "arguments", path) or "{}"  # as in chats
    arguments = text if has_text_arguments else call_arguments(text, f"{path}.arguments")
    return {
        "id": _string(item, "call_id", path),
        "type": "function",
        "function": {"name": _string(item, "name", path), "arguments": arguments},
    }


def _custom_call(item: Mapping[str, Any], path: str, has_text_arguments: bool) -> dict[str, Any]:
    call_id, name, text = (_string(item, key, path) for key in ("call_id", "name", "input"))
    return text_call(call_id, name, text, has_text_arguments)


def _text(content: object, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"{path} must be a string or a list of parts", field=path)
    return PART_BREAK.join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: object, path: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind not in TEXT_TYPES:
        raise unsupported_part(kind, path)
    return _string(part, "text", path)


def _string(item: Mapping[str, Any], name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{path}.{name} must be a string", field=f"{path}.{name}")
    return value
