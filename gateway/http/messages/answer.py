"""The answers of POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from baton.core.messages import Receipt
from baton.gateway.requests.generations.completion_stream import Usage

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str = ""


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str = ""
    signature: str = ""
    """A placeholder signature, for clients that require one; ignored in requests."""


class ToolUseBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any] = {}


OutputBlock = TextBlock | ThinkingBlock | ToolUseBlock


class ThinkingTokens(msgspec.Struct):
    thinking_tokens: int


class MessageUsage(msgspec.Struct, kw_only=True):
    """The prompt's tokens are the sum of the first three fields."""

    input_tokens: int
    """Prompt tokens neither read from a prefix cache nor written to one for a cache point."""
    cache_creation_input_tokens: int
    """Prompt tokens before a cache point, and not in a cache until now."""
    cache_read_input_tokens: int
    """Prompt tokens found in a prefix cache, with or without a cache point."""
    output_tokens: int
    output_tokens_details: ThinkingTokens | UnsetType = UNSET


class MessageAnswer(msgspec.Struct, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: Sequence[OutputBlock] = ()
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    """The one of `stop_sequences` that ended the answer."""
    usage: MessageUsage
    baton: Receipt | UnsetType = UNSET
    """The receipt."""
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    """vLLM's, if `return_token_ids` asks for them."""
    token_ids: Sequence[int] | UnsetType = UNSET
    """Token ids of the output; in a stream its `message_delta` has them."""


class TokenCountAnswer(msgspec.Struct):
    input_tokens: int
    """Tokens of the whole prompt, cached or not."""


def message_usage(usage: Usage, num_thinking: int) -> MessageUsage:
    answer = MessageUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens,
        cache_creation_input_tokens=usage.cache_write_tokens,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
    )
    if num_thinking:
        answer.output_tokens_details = ThinkingTokens(num_thinking)
    return answer
