"""The items of a request to /v1/responses, as the messages that chat templates want.

message                 {"role": ..., "content": ...}
function_call           joins the assistant's message before it, or begins one
function_call_output    {"role": "tool", ...}
reasoning               left out: models see only their own, of the turn under way
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from baton.core.errors import InvalidRequest
from baton.gateway.chat.messages import (
    MAX_MESSAGES,
    PART_BREAK,
    ROLE_BY_NAME,
    call_arguments,
)
from baton.gateway.requests.cache_control import MarkedMessage, marked, read_control

TEXT_TYPES = ("input_text", "output_text", "text")


def input_messages(
    given: str | list[dict[str, Any]], instructions: str | None, *, has_text_arguments: bool = False
) -> tuple[list[dict[str, Any]], list[MarkedMessage]]:
    """With their cache points. Raises InvalidRequest, naming the item."""
    messages: list[dict[str, Any]] = []
    marks: list[MarkedMessage] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}], marks
    if not 1 <= len(given) <= MAX_MESSAGES:
        raise InvalidRequest(f"input needs 1 to {MAX_MESSAGES} items", field="input")
    for index, item in enumerate(given):
        _add(messages, item, f"input[{index}]", has_text_arguments)
        if messages:
            marks.extend(_marks(item, len(messages) - 1, f"input[{index}]"))
    return messages, marks


def _marks(item: Mapping[str, Any], message: int, path: str) -> Iterator[MarkedMessage]:
    """The marks of the item, which was read without complaint: behind its parts, and behind it."""
    name = "output" if item.get("type") == "function_call_output" else "content"
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


def _add(
    messages: list[dict[str, Any]], item: Mapping[str, Any], path: str, has_text_arguments: bool
) -> None:
    match item.get("type", "message"):
        case "message":
            messages.append(_message(item, path))
        case "function_call":
            call = _call(item, path, has_text_arguments)
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(call)
        case "function_call_output":
            messages.append(
                {
                    "role": "tool",
                    "content": _text(item.get("output"), f"{path}.output"),
                    "tool_call_id": _string(item, "call_id", path),
                }
            )
        case "reasoning":
            return
        case "item_reference":
            raise InvalidRequest(
                f"{path} refers to an item that is not kept here; send the item itself", field=path
            )
        case kind:
            raise InvalidRequest(
                f"{path}.type is {kind!r}; known are message, function_call, "
                "function_call_output and reasoning",
                field=f"{path}.type",
            )


def _message(item: Mapping[str, Any], path: str) -> dict[str, Any]:
    name = _string(item, "role", path)
    role = ROLE_BY_NAME.get(name)
    if role is None or role == "tool":
        known = "system, developer, user, assistant"
        raise InvalidRequest(f"{path}.role is {name!r}; known are {known}", field=f"{path}.role")
    return {"role": role, "content": _text(item.get("content"), f"{path}.content")}


def _call(item: Mapping[str, Any], path: str, has_text_arguments: bool) -> dict[str, Any]:
    text = _string(item, "arguments", path)
    arguments = text if has_text_arguments else call_arguments(text, f"{path}.arguments")
    return {
        "id": _string(item, "call_id", path),
        "type": "function",
        "function": {"name": _string(item, "name", path), "arguments": arguments},
    }


def _text(content: object, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"{path} must be a string or a list of parts", field=path)
    return PART_BREAK.join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: object, path: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind not in TEXT_TYPES:
        raise InvalidRequest(
            f"{path}.type {kind!r} is not supported yet; send text", field=f"{path}.type"
        )
    return _string(part, "text", path)


def _string(item: Mapping[str, Any], name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{path}.{name} must be a string", field=f"{path}.{name}")
    return value
