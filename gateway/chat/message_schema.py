"""Messages of a conversation, as the chat API has them."""

from __future__ import annotations

from typing import Any

import msgspec

from baton.gateway.requests.cache_control import CacheControl
from baton.gateway.requests.unsupported import Refused


class TextPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    text: str | None = None
    cache_control: CacheControl | None = None
    """Anthropic's: keep what is before the end of this part in the prefix cache."""
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    refusal: Any = None
    prompt_cache_breakpoint: Any = None


class MessageFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    arguments: str | None = None
    """JSON."""


class MessageCustom(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    input: str
    """The text that the tool was given."""


class MessageToolCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    id: str | None = None
    type: str = "function"
    function: MessageFunction | None = None
    custom: MessageCustom | None = None
    index: Any = None


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    """The calls that an assistant made."""
    function_call: MessageFunction | None = None
    """Deprecated by OpenAI for `tool_calls`; a message of role `function` answers it."""
    tool_call_id: str | None = None
    """The call that a tool answers."""
    reasoning_content: str | None = None
    """The reasoning of an assistant; most templates leave it out of the prompt."""
    reasoning: str | None = None
    """Another name of `reasoning_content`."""
    cache_control: CacheControl | None = None
    """Anthropic's: keep what is before the end of this message in the prefix cache."""

    annotations: Refused = None
    audio: Refused = None
    refusal: Refused = None
