"""Converts Anthropic's messages to messages for chat templates.

system, text       {"role": ..., "content": ...}; what one side says in a row is one message
tool_use           a call of the assistant's message
tool_result        {"role": "tool", ...}: a message of its own, before what the user says behind it
thinking           the reasoning of the assistant's message; redacted, it is left out

A cache point stands behind its block; one on a tool stands behind all tools, which templates write
before the first user's text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from baton.core.errors import InvalidRequest
from baton.gateway.chat.messages import MAX_MESSAGES, PART_BREAK, reasoning_fields
from baton.gateway.http.messages.schemas import ContentBlock, InputMessage, MessagesBody
from baton.gateway.requests.cache_control import (
    CacheControl,
    MarkedMessage,
    checked_marks,
    marked,
)
from baton.gateway.requests.unsupported import unsupported_part

Message = dict[str, Any]
BILLING = "x-anthropic-billing-header:"
"""A system block of Anthropic's own agent that changes with each request; left out of the
prompt."""
FAILED = "Error: "
TYPES_BY_ROLE = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
}


def input_messages(
    body: MessagesBody, *, has_text_arguments: bool
) -> tuple[list[Message], tuple[MarkedMessage, ...]]:
    """The messages of the body, with their cache points. Raises InvalidRequest, naming what is
    wrong."""
    if not 1 <= len(body.messages) <= MAX_MESSAGES:
        raise InvalidRequest(f"messages needs 1 to {MAX_MESSAGES} messages", field="messages")
    turns = _Turns(has_text_arguments)
    _add_system(turns, body.system)
    for index, message in enumerate(body.messages):
        _add(turns, message, f"messages[{index}]")
        if len(turns.turns) > MAX_MESSAGES:
            raise InvalidRequest(
                f"messages has more than {MAX_MESSAGES} messages and tool results", field="messages"
            )
    if turns.turns[-1].calls:
        path = f"messages[{len(body.messages) - 1}]"
        raise InvalidRequest(
            f"{path} ends with a tool_use; add a user message with its tool_result",
            field=path,
        )
    for index, tool in enumerate(body.tools or ()):
        turns.mark_tools(tool.cache_control, f"tools[{index}].cache_control")
    turns.mark(body.cache_control, "cache_control")
    return [turn.message() for turn in turns.turns], turns.marks()


def is_prefilled(messages: Sequence[Message]) -> bool:
    """Whether the last message is the assistant's, which the answer continues."""
    return bool(messages[-1]["role"] == "assistant")


@dataclass(slots=True)
class _Turn:
    """One message, as far as it has been read."""

    role: str
    texts: list[str] = field(default_factory=list)
    num_chars: int = 0
    """Characters of its content so far."""
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    call_id: str | None = None
    """The call that a tool's message answers."""

    def say(self, text: str) -> None:
        if text:
            self.num_chars += len(text) + (len(PART_BREAK) if self.texts else 0)
            self.texts.append(text)

    def message(self) -> Message:
        content = PART_BREAK.join(self.texts)
        message: Message = {"role": self.role, "content": content}
        if self.thoughts:
            message |= reasoning_fields(PART_BREAK.join(self.thoughts))
        if self.calls:
            message |= {"content": content or None, "tool_calls": self.calls}
        if self.call_id is not None:
            message["tool_call_id"] = self.call_id
        return message


class _Turns:
    def __init__(self, has_text_arguments: bool) -> None:
        self.turns: list[_Turn] = []
        self._has_text_arguments = has_text_arguments
        self._points: list[tuple[CacheControl, str, int, int]] = []
        """Cache points: each with its path, the turn that it follows, and the characters of that
        turn's content so far."""

    def of(self, role: str) -> _Turn:
        """The last turn if it has that role; else a new one."""
        if not self.turns or self.turns[-1].role != role:
            self.turns.append(_Turn(role))
        return self.turns[-1]

    def call(self, call_id: str, name: str, given: dict[str, Any]) -> None:
        text = json.dumps(given, ensure_ascii=False)
        function = {"name": name, "arguments": text if self._has_text_arguments else given}
        call = {"id": call_id, "type": "function", "function": function}
        self.of("assistant").calls.append(call)

    def answer(self, call_id: str, text: str) -> None:
        self.turns.append(_Turn("tool", call_id=call_id))
        self.turns[-1].say(text)

    def mark(self, control: CacheControl | None, path: str) -> None:
        """Add a cache point after the content so far."""
        if control is not None and self.turns:
            self._points.append((control, path, len(self.turns) - 1, self.turns[-1].num_chars))

    def mark_tools(self, control: CacheControl | None, path: str) -> None:
        if control is not None:
            first = self.turns[0]
            end = first.num_chars if first.role == "system" else 0
            self._points.append((control, path, 0, end))

    def marks(self) -> tuple[MarkedMessage, ...]:
        return checked_marks(
            [
                marked(control, path, place, part_end=self._part_end(self.turns[place], end))
                for control, path, place, end in self._points
            ]
        )

    def _part_end(self, turn: _Turn, end: int) -> int | None:
        """Characters up to the point; None if nothing follows it in the turn."""
        is_all = end == turn.num_chars and (end or turn.role != "user")
        return None if is_all else end


def _add_system(turns: _Turns, system: str | list[ContentBlock] | None) -> None:
    if isinstance(system, str):
        if system:
            turns.of("system").say(system)
        return
    for index, block in enumerate(system or ()):
        path = f"system[{index}]"
        _check_type(block, "system", path)
        text = _text(block.text, f"{path}.text")
        if text and not text.startswith(BILLING):
            turns.of("system").say(text)
        turns.mark(block.cache_control, f"{path}.cache_control")


def _add(turns: _Turns, message: InputMessage, path: str) -> None:
    role, content = message.role, message.content
    if role not in TYPES_BY_ROLE:
        known = "user, assistant and system"
        raise InvalidRequest(f"{path}.role is {role!r}; known are {known}", field=f"{path}.role")
    if isinstance(content, str):
        turns.of(role).say(content)
        return
    if not content:
        place = f"{path}.content"
        raise InvalidRequest(f"{place} is empty; it needs at least one block", field=place)
    for index, block in enumerate(content):
        place = f"{path}.content[{index}]"
        _check_type(block, role, place)
        _add_block(turns, role, block, place)
        turns.mark(block.cache_control, f"{place}.cache_control")


def _add_block(turns: _Turns, role: str, block: ContentBlock, path: str) -> None:
    match block.type:
        case "text":
            turns.of(role).say(_text(block.text, f"{path}.text"))
        case "thinking":
            turns.of(role).thoughts.append(_text(block.thinking, f"{path}.thinking"))
        case "tool_use":
            call_id = _text(block.id, f"{path}.id")
            turns.call(call_id, _text(block.name, f"{path}.name"), _input(block, path))
        case "tool_result":
            call_id = _text(block.tool_use_id, f"{path}.tool_use_id")
            turns.answer(call_id, _result(block, path))
        case "redacted_thinking":
            turns.of(role)


def _result(block: ContentBlock, path: str) -> str:
    content = block.content
    if isinstance(content, list):
        texts: list[str] = []
        for index, part in enumerate(content):
            place = f"{path}.content[{index}]"
            _check_type(part, "system", place)  # which takes text alone, too
            texts.append(_text(part.text, f"{place}.text"))
        content = PART_BREAK.join(texts)
    text = content or ""
    return f"{FAILED}{text}" if block.is_error and not text.startswith(FAILED) else text


def _check_type(block: ContentBlock, role: str, path: str) -> None:
    known = TYPES_BY_ROLE[role]
    if block.type not in known:
        raise unsupported_part(block.type, path, " or ".join(known))


def _input(block: ContentBlock, path: str) -> dict[str, Any]:
    if block.input is None:
        raise InvalidRequest(f"{path}.input is missing", field=f"{path}.input")
    return block.input


def _text(value: str | None, path: str) -> str:
    if value is None:
        raise InvalidRequest(f"{path} is missing", field=path)
    return value
