"""Tools described in the prompt, in Hermes' format, for a model whose own call format is unknown.

    system     You may call functions ... <tools> {...} </tools>
    assistant  <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>
    user       <tool_response>\n...\n</tool_response>

The chat template sees a conversation without tools. From `<tool_call>` on a grammar enforces the
schemas, so that even a model that was not trained on tools writes calls that can be parsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from baton.gateway.chat.functions import Function
from baton.gateway.chat.tool_definitions import ToolMode, ToolUse
from baton.gateway.output.formats import HERMES_BEGIN, HERMES_END

Message = Mapping[str, Any]

OFFER_BEGIN = "<tools>"
OFFER = """\
You may call functions to help with what the user asks. These are their signatures, as JSON schemas:
<tools>
{tools}
</tools>"""
HOW = f"""
To call one, write its name and its arguments as a JSON object within {HERMES_BEGIN} tags:
{HERMES_BEGIN}
{{"name": "the function's name", "arguments": {{"an argument": "its value"}}}}
{HERMES_END}
What it returns comes back to you within <tool_response> tags."""
BREAK = "\n\n"
"""Between a message's own text and what is added to it."""


def in_words(
    messages: Sequence[Message], tools: ToolUse, *, in_system: bool = True
) -> list[dict[str, Any]]:
    """Return the conversation for a template that knows no tools; unchanged if it has none.

    `in_system`: the offer goes into the system message, else into the first of the user, for
    templates that take no system message.
    """
    merged: list[dict[str, Any]] = []
    for message in messages:
        plain = _plain(message)
        if merged and _goes_on(merged[-1], plain):
            merged[-1]["content"] += "\n" + plain["content"]
        else:
            merged.append(plain)
    if tools.mode is not ToolMode.NONE:
        _add_offer(merged, _offer(tools), "system" if in_system else "user")
    return merged


def _plain(message: Message) -> dict[str, Any]:
    if message["role"] == "tool":
        text = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": text}
    plain = {**message}
    if calls := plain.pop("tool_calls", ()):
        parts = [plain.get("content") or "", *_written(calls)]
        plain["content"] = "\n".join(part for part in parts if part)
    return plain


def _goes_on(before: Message, message: Message) -> bool:
    """Templates may require that user and assistant alternate, so results of several tools are one
    turn."""
    are_users = message["role"] == before["role"] == "user"
    return are_users and str(before["content"]).endswith("</tool_response>")


def _written(calls: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for call in calls:
        function = call["function"]
        arguments = function["arguments"]
        if isinstance(arguments, str):
            arguments = msgspec.Raw(arguments.encode())
        text = msgspec.json.encode({"name": function["name"], "arguments": arguments}).decode()
        yield f"{HERMES_BEGIN}\n{text}\n{HERMES_END}"


def _offer(tools: ToolUse) -> str:
    """The description of the tools. A forced call has another format, which its grammar sets."""
    text = OFFER.format(tools="\n".join(_signature(one) for one in tools.functions))
    return text if tools.mode is ToolMode.REQUIRED else text + HOW


def _signature(function: Function) -> str:
    return msgspec.json.encode(function.for_template()).decode()


def _add_offer(messages: list[dict[str, Any]], offer: str, role: str) -> None:
    for message in messages[:1] if role == "system" else messages:
        if message["role"] == role:
            before = message.get("content") or ""
            message["content"] = (
                f"{before}{BREAK}{offer}" if role == "system" else (f"{offer}{BREAK}{before}")
            )
            return
    messages.insert(0, {"role": role, "content": offer})
