"""The bodies of OpenAI's responses, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from baton.core.messages import Receipt
from baton.core.sampling import FinishReason
from baton.gateway.requests.generations.completion_stream import Usage
from baton.gateway.requests.generations.prompt_progress import PromptProgress


class PromptTokens(msgspec.Struct):
    cached_tokens: int
    """Prompt tokens found in a prefix cache."""
    cache_write_tokens: int
    """Prompt tokens before a cache point, and not in a cache until now."""


class OutputTokens(msgspec.Struct):
    reasoning_tokens: int


class UsageAnswer(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens
    completion_tokens_details: OutputTokens | UnsetType = UNSET


class CompletionLogprobs(msgspec.Struct):
    """Parallel lists with one entry per token; None for the first token of an echoed prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(msgspec.Struct):
    logprob: float
    rank: int | None
    """1: the most probable. None: not among the alternatives."""
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""One entry per token of the prompt: logprobs of it and its alternatives, by id; None for the
first."""


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
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET


class FunctionCall(msgspec.Struct, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class CustomCall(msgspec.Struct, kw_only=True):
    name: str | UnsetType = UNSET
    input: str


class ToolCall(msgspec.Struct, kw_only=True):
    """A call, or a chunk's addition to it; id, type and name are in the first chunk of a call."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: FunctionCall | UnsetType = UNSET
    custom: CustomCall | UnsetType = UNSET


class ChatMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    """The reasoning, by the name that others use."""
    tool_calls: Sequence[ToolCall] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET
    """The call, in place of `tool_calls`, where `functions` were offered."""


class ChatChoice(msgspec.Struct, kw_only=True):
    """`message` in a whole answer, `delta` in a chunk."""

    index: int = 0
    message: ChatMessage | UnsetType = UNSET
    delta: ChatMessage | UnsetType = UNSET
    logprobs: ChatLogprobs | None
    finish_reason: Annotated[
        str | None,
        msgspec.Meta(
            extra_json_schema={"enum": ["stop", "length", "tool_calls", "function_call", None]}
        ),
    ]
    token_ids: Sequence[int] | UnsetType = UNSET


class Answer(msgspec.Struct, kw_only=True):
    """A whole response, or one chunk of a streamed one."""

    id: str
    object: str
    created: int
    model: str
    usage: UsageAnswer | UnsetType | None = UNSET
    baton: Receipt | Sequence[Receipt] | UnsetType = UNSET
    """The receipt; for several choices a list, by index."""
    prompt_progress: PromptProgress | UnsetType = UNSET
    """The prompt's progress, in a chunk before the first token, with `return_progress`."""


class CompletionAnswer(Answer, kw_only=True):
    choices: Sequence[CompletionChoice] = ()


class ChatAnswer(Answer, kw_only=True):
    choices: Sequence[ChatChoice] = ()
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET


def usage_answer(usage: Usage) -> UsageAnswer:
    return UsageAnswer(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.prompt_tokens + usage.output_tokens,
        prompt_tokens_details=PromptTokens(usage.cached_tokens, usage.cache_write_tokens),
    )
