"""The messages of a chat as its template wants them: a role and one text each."""

from __future__ import annotations

from collections.abc import Sequence

from baton.core.errors import InvalidRequest
from baton.platform.gateway.schemas import Message, TextPart, refuse_unsupported

ROLE_BY_NAME = {
    "system": "system",
    "developer": "system",  # OpenAI's newer word, which few templates know
    "user": "user",
    "assistant": "assistant",
}

MAX_MESSAGES = 2048
"""As many as OpenAI takes. Many more would keep the template, and so the gateway, busy."""


def chat_messages(messages: Sequence[Message], *, field: str = "messages") -> list[dict[str, str]]:
    """Raises InvalidRequest with the path, below `field`, of what is wrong."""
    if not messages:
        raise InvalidRequest(f"{field} is empty; it needs at least one message", field=field)
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(
            f"{field} has {len(messages)} messages; at most {MAX_MESSAGES} can be", field=field
        )
    return [_message(message, f"{field}[{i}]") for i, message in enumerate(messages)]


def _message(message: Message, path: str) -> dict[str, str]:
    role = ROLE_BY_NAME.get(message.role)
    if role is None:
        known = ", ".join(ROLE_BY_NAME)
        raise InvalidRequest(
            f"{path}.role is {message.role!r}; known are {known}", field=f"{path}.role"
        )
    refuse_unsupported(message, f"{path}.")
    result = {"role": role, "content": _content(message.content, f"{path}.content")}
    return result if message.name is None else {**result, "name": message.name}


def _content(content: str | list[TextPart] | None, path: str) -> str:
    if content is None:
        raise InvalidRequest(f"{path} is missing", field=path)
    if isinstance(content, str):
        return content
    return "\n".join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: TextPart, path: str) -> str:
    if part.type != "text":
        raise InvalidRequest(
            f"{path}.type {part.type!r} is not supported yet; send text", field=f"{path}.type"
        )
    if part.text is None:
        raise InvalidRequest(f"{path}.text is missing", field=f"{path}.text")
    return part.text
