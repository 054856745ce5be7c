"""Translates OpenAI's deprecated `functions` to `tools`, and answers back.

functions, function_call                     tools, tool_choice; one call an answer
assistant's function_call                    tool_calls
role function, name                          role tool, tool_call_id
message.function_call, delta.function_call   message.tool_calls, delta.tool_calls
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from msgspec import UNSET
from msgspec.structs import replace as with_fields

from baton.core.errors import InvalidRequest
from baton.gateway.chat.message_schema import Message, MessageToolCall
from baton.gateway.chat.messages import call_arguments
from baton.gateway.chat.tool_definitions import ToolUse, tool_use, use_of
from baton.gateway.http.completions.answers import ChatMessage
from baton.gateway.http.completions.schemas import ChatBody


def offered_tools(body: ChatBody) -> ToolUse:
    """The tools that the body offers, as `tools` or as `functions`. Raises InvalidRequest."""
    if not body.functions:
        if body.function_call not in (None, "none", "auto"):
            raise InvalidRequest(
                "function_call asks for a call, but there are no functions", field="function_call"
            )
        return tool_use(body.tools, body.tool_choice, is_parallel=body.parallel_tool_calls)
    for name in ("tools", "tool_choice"):
        if getattr(body, name):
            raise InvalidRequest(
                f"functions and {name} exclude each other; use tools", field="functions"
            )
    choice = body.function_call
    if isinstance(choice, str) and choice not in ("none", "auto"):
        raise InvalidRequest(
            f"function_call is {choice!r}; known are none, auto and a function's name",
            field="function_call",
        )
    if isinstance(choice, dict):
        choice = {"type": "function", "name": choice.get("name")}
    try:
        use = use_of(body.functions, choice, is_parallel=False, schema_field="parameters")
    except InvalidRequest as error:
        raise InvalidRequest(_old_name(error.message), field=_old_name(error.field or "")) from None
    return replace(use, field="functions")


def with_tool_calls(messages: Sequence[Message], *, has_text_arguments: bool) -> list[Message]:
    """Raises InvalidRequest."""
    return list(_with_tool_calls(messages, has_text_arguments))


def _with_tool_calls(messages: Sequence[Message], has_text_arguments: bool) -> Iterator[Message]:
    call_id: str | None = None
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        if message.role == "function":
            if message.name is None:
                raise InvalidRequest(
                    f"{path}.name is missing; give the name of the function", field=f"{path}.name"
                )
            message = with_fields(message, role="tool", tool_call_id=call_id)
        elif (call := message.function_call) is not None:
            if message.role != "assistant" or message.tool_calls:
                raise InvalidRequest(
                    f"{path}.function_call belongs to messages of role assistant that have no "
                    "tool_calls; leave it out",
                    field=f"{path}.function_call",
                )
            if not has_text_arguments:
                call_arguments(call.arguments or "{}", f"{path}.function_call.arguments")
            call_id = f"call{index:05d}"  # nine letters and digits, as some templates want them
            calls = [MessageToolCall(id=call_id, function=call)]
            message = with_fields(message, function_call=None, tool_calls=calls)
        yield message


def with_function_call(message: ChatMessage) -> ChatMessage:
    """The message with `function_call` in place of `tool_calls`."""
    if message.tool_calls is not UNSET:
        message.function_call, message.tool_calls = message.tool_calls[0].function, UNSET
    return message


def _old_name(text: str) -> str:
    for new, old in (("tool_choice", "function_call"), ("tools", "functions")):
        text = text.replace(new, old, 1)
    return text
