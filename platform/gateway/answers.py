"""The bodies of OpenAI's responses, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from baton.core.messages import FinishReason, Receipt
from baton.platform.gateway.completion_stream import Usage


class CachedTokens(msgspec.Struct):
    cached_tokens: int


class UsageAnswer(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class CompletionLogprobs(msgspec.Struct):
    """Parallel lists, one entry a token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatLogprob]


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int = 0
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET


class ChatMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """`message` in a whole answer, `delta` in a chunk."""

    index: int = 0
    message: ChatMessage | UnsetType = UNSET
    delta: ChatMessage | UnsetType = UNSET
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    token_ids: Sequence[int] | UnsetType = UNSET


class Answer(msgspec.Struct, kw_only=True):
    """A whole response, or one chunk of a streamed one."""

    id: str
    object: str
    created: int
    model: str
    choices: Sequence[CompletionChoice] | Sequence[ChatChoice] = ()
    usage: UsageAnswer | UnsetType | None = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    baton: Receipt | UnsetType = UNSET


def usage_answer(usage: Usage) -> UsageAnswer:
    return UsageAnswer(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.prompt_tokens + usage.output_tokens,
        prompt_tokens_details=CachedTokens(usage.cached_tokens),
    )
