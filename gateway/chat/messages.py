"""Chat messages as templates expect them: a role, a text, and tool calls and results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from baton.core.errors import InvalidRequest
from baton.gateway.chat.functions import TEXT
from baton.gateway.chat.message_schema import Message, MessageToolCall, TextPart
from baton.gateway.requests.cache_control import (
    CacheControl,
    MarkedMessage,
    checked_marks,
    marked,
)
from baton.gateway.requests.unsupported import refuse_unsupported, unsupported_part

ROLE_BY_NAME = {
    "system": "system",
    "developer": "system",  # OpenAI's newer word, which few templates know
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}

PART_BREAK = "\n"
"""Between the parts of a content: templates see one text."""
MAX_MESSAGES = 2048
"""OpenAI's limit. Many more would keep the template, and so the gateway, busy."""


def chat_messages(
    messages: Sequence[Message], *, field: str = "messages", has_text_arguments: bool = False
) -> list[dict[str, Any]]:
    """`has_text_arguments`: the template writes the arguments of calls as they are given to it.

    Raises InvalidRequest with the path, below `field`, of what is wrong.
    """
    if not messages:
        raise InvalidRequest(f"{field} is empty; it needs at least one message", field=field)
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(
            f"{field} has {len(messages)} messages; at most {MAX_MESSAGES} can be", field=field
        )
    return [
        _message(message, f"{field}[{i}]", has_text_arguments) for i, message in enumerate(messages)
    ]


def message_marks(
    messages: Sequence[Message], control: CacheControl | None, *, field: str = "messages"
) -> tuple[MarkedMessage, ...]:
    """The cache points of `messages`, which have been read without complaint.

    `control` is the request's own: of a point behind the last message. Raises InvalidRequest.
    """
    marks: list[MarkedMessage] = []
    for index, message in enumerate(messages):
        path = f"{field}[{index}]"
        if isinstance(message.content, list):
            marks.extend(_part_marks(message.content, index, f"{path}.content"))
        if message.cache_control is not None:
            marks.append(marked(message.cache_control, f"{path}.cache_control", index))
    if control is not None:
        marks.append(marked(control, "cache_control", len(messages) - 1))
    return checked_marks(marks)


def _part_marks(parts: Sequence[TextPart], message: int, path: str) -> Iterator[MarkedMessage]:
    for number, part in enumerate(parts):
        if part.cache_control is not None:
            end = len(PART_BREAK.join(part.text or "" for part in parts[: number + 1]))
            is_last = number == len(parts) - 1
            field = f"{path}[{number}].cache_control"
            yield marked(part.cache_control, field, message, part_end=None if is_last else end)


def _message(message: Message, path: str, has_text_arguments: bool) -> dict[str, Any]:
    role = ROLE_BY_NAME.get(message.role)
    if role is None:
        known = ", ".join(ROLE_BY_NAME)
        raise InvalidRequest(
            f"{path}.role is {message.role!r}; known are {known}", field=f"{path}.role"
        )
    refuse_unsupported(message, f"{path}.")
    _refuse_foreign(message, role, path)
    result: dict[str, Any] = {"role": role}
    if message.tool_calls and message.content is None:
        result["content"] = None
    elif role == "assistant" and message.content is None:
        result["content"] = ""  # an answer of reasoning alone
    else:
        result["content"] = _content(message.content, f"{path}.content")
    if message.name is not None:
        result["name"] = message.name
    if message.tool_call_id is not None:
        result["tool_call_id"] = message.tool_call_id
    if (reasoning := message.reasoning_content or message.reasoning) is not None:
        result |= reasoning_fields(reasoning)
    if message.tool_calls:
        result["tool_calls"] = [
            _call(call, f"{path}.tool_calls[{i}]", has_text_arguments)
            for i, call in enumerate(message.tool_calls)
        ]
    return result


def reasoning_fields(reasoning: str) -> dict[str, Any]:
    """An assistant's reasoning, under the names in Qwen's and in GPT-OSS's templates."""
    return {"reasoning_content": reasoning, "thinking": reasoning}


def _refuse_foreign(message: Message, role: str, path: str) -> None:
    """Fields that only messages of another role can have."""
    owners = {
        "tool_calls": "assistant",
        "reasoning_content": "assistant",
        "reasoning": "assistant",
        "tool_call_id": "tool",
    }
    for name, owner in owners.items():
        if getattr(message, name) and role != owner:
            raise InvalidRequest(
                f"{path}.{name} belongs to messages of role {owner}; leave it out",
                field=f"{path}.{name}",
            )


def _call(call: MessageToolCall, path: str, has_text_arguments: bool) -> dict[str, Any]:
    if call.type == "custom" and (custom := call.custom) is not None:
        return text_call(call.id, custom.name, custom.input, has_text_arguments)
    if call.type != "function" or call.function is None:
        raise InvalidRequest(f"{path} must be a call of a function or a custom tool", field=path)
    arguments: str | Mapping[str, Any] = call.function.arguments or "{}"
    if not has_text_arguments:
        arguments = call_arguments(call.function.arguments or "{}", f"{path}.function.arguments")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def text_call(
    call_id: str | None, name: str, text: str, has_text_arguments: bool
) -> dict[str, Any]:
    """A call of a custom tool, written as a call of the function that the model was shown."""
    arguments: str | dict[str, Any] = {TEXT: text}
    if has_text_arguments:
        arguments = msgspec.json.encode(arguments).decode()
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def call_arguments(text: str, path: str) -> dict[str, Any]:
    """Raises InvalidRequest."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"{path} is not a JSON object: {error}", field=path) from error


def _content(content: str | list[TextPart] | None, path: str) -> str:
    if content is None:
        raise InvalidRequest(f"{path} is missing; give a text, which may be empty", field=path)
    if isinstance(content, str):
        return content
    return PART_BREAK.join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: TextPart, path: str) -> str:
    if part.type != "text":
        raise unsupported_part(part.type, path)
    if part.text is None:
        raise InvalidRequest(f"{path}.text is missing", field=f"{path}.text")
    return part.text
