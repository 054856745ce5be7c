"""Adapts messages to what chat templates of some call formats expect.

mistral    ids of calls have nine letters and digits, or the template refuses them
kimi       ids are functions.NAME:NUMBER, as the model writes them; NUMBER counts all calls
gemma      a tool's result has the tool's name
phi        tools are part of the system message, and calls are text
glm, llama4   a message of calls alone has an empty text
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from baton.gateway.output.formats import PHI_CALLS, PHI_CALLS_END
from baton.gateway.output.pieces import CALL_ID_CHARS

Message = Mapping[str, Any]

MISTRAL_ID_LEN = 9
PHI_SYSTEM = "You are a helpful assistant with some tools."
PHI_TOOLS = "message['tools']"
"""Other templates of Phi write tools and calls themselves."""


def for_template(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    call_format: str,
    template: str,
) -> Sequence[Message]:
    """Return the conversation as the template expects it. A prefix of it becomes a prefix of the
    result."""
    match call_format:
        case "mistral":
            return [_with_ids(message, _short_id) for message in messages]
        case "kimi" | "gemma":
            return _with_names(messages, has_own_ids=call_format == "kimi")
        case "glm" | "llama4":
            return [{**message, "content": message.get("content") or ""} for message in messages]
        case "phi" if PHI_TOOLS in template:
            return _with_tools_in_system([_with_calls_as_text(m) for m in messages], tools)
    return messages


def _with_ids(message: Message, new_id: Callable[[Any], Any]) -> dict[str, Any]:
    written = {**message}
    if calls := message.get("tool_calls"):
        written["tool_calls"] = [{**call, "id": new_id(call.get("id"))} for call in calls]
    if "tool_call_id" in message:
        written["tool_call_id"] = new_id(message["tool_call_id"])
    return written


def _short_id(call_id: str | None) -> str:
    text = call_id or ""
    if len(text) == MISTRAL_ID_LEN and text.isascii() and text.isalnum():
        return text
    digest = hashlib.sha256(text.encode()).digest()
    return "".join(CALL_ID_CHARS[byte % len(CALL_ID_CHARS)] for byte in digest[:MISTRAL_ID_LEN])


def _with_names(messages: Sequence[Message], *, has_own_ids: bool) -> list[Message]:
    """Add the tool's name to each result. If a client reuses a call id, its last call counts."""
    own_ids: dict[Any, str] = {}
    names: dict[Any, str] = {}
    num_calls = 0
    written: list[Message] = []
    for message in messages:
        for call in message.get("tool_calls") or ():
            name = names[call.get("id")] = call["function"]["name"]
            own_ids[call.get("id")] = f"functions.{name}:{num_calls}"
            num_calls += 1
        given = message.get("tool_call_id")
        plain = {**message, "content": message.get("content") or ""}
        if message["role"] == "tool" and given in names:
            plain.setdefault("name", names[given])
        written.append(
            _with_ids(plain, lambda old: own_ids.get(old, old)) if has_own_ids else plain
        )
    return written


def _with_calls_as_text(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    written = msgspec.json.encode([call["function"] for call in calls]).decode()
    plain["content"] = f"{message.get('content') or ''}{PHI_CALLS}{written}{PHI_CALLS_END}"
    return plain


def _with_tools_in_system(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None
) -> Sequence[Message]:
    if not tools:
        return messages
    listed = msgspec.json.encode([tool["function"] for tool in tools]).decode()
    system: Message = {"role": "system", "content": PHI_SYSTEM}
    if messages and messages[0]["role"] == "system":
        system, messages = messages[0], messages[1:]
    return [{**system, "tools": listed}, *messages]
