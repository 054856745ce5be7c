"""The answer of POST /v1/responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from baton.core.messages import Receipt
from baton.gateway.http.responses.items import Item
from baton.gateway.http.responses.schemas import ResponsesBody, TextConfig, TextFormat
from baton.gateway.requests.generations.completion_stream import Usage
from baton.gateway.text.served_model import ServedModel

ID_PREFIX = "resp_"


class InputTokensDetails(msgspec.Struct):
    cached_tokens: int
    """Prompt tokens found in a prefix cache."""
    cache_write_tokens: int
    """Prompt tokens before a cache point, and not in a cache until now."""


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    reason: Literal["max_output_tokens"]


class ResponseAnswer(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    """Unix seconds."""
    status: Literal["in_progress", "completed", "incomplete", "failed", "cancelled"] = "in_progress"
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: Sequence[Item] = ()
    usage: ResponseUsage | None = None

    # as asked for
    background: bool = False
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, str | None]
    store: bool
    """Whether it is stored; false at the end if that failed."""
    temperature: float
    text: TextConfig
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    user: str | None

    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    """vLLM's, if `return_token_ids` asks for them."""
    token_ids: list[int] | UnsetType = UNSET
    """Token ids of the output so far."""
    baton: Receipt | UnsetType = UNSET
    """The receipt."""


def begun_answer(
    body: ResponsesBody, model: ServedModel, adapter: str, *, id: str, created: int, is_kept: bool
) -> ResponseAnswer:
    """An answer in progress, without output."""
    defaults = model.sampling
    reasoning = body.reasoning
    return ResponseAnswer(
        id=id,
        created_at=created,
        background=bool(body.background),
        model=model.named(adapter),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        previous_response_id=body.previous_response_id,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning={
            "effort": None if reasoning is None else reasoning.effort,
            "summary": None if reasoning is None else reasoning.summary,
        },
        store=is_kept,
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        text=TextConfig(
            format=(body.text and body.text.format) or TextFormat(),
            verbosity=None if body.text is None else body.text.verbosity,
        ),
        tool_choice=body.tool_choice or "auto",
        tools=[tool.shown() for tool in body.tools or ()],
        top_logprobs=body.top_logprobs or 0,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        user=body.user,
    )


def response_usage(usage: Usage, num_reasoning: int) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(usage.cached_tokens, usage.cache_write_tokens),
        output_tokens=usage.output_tokens,
        output_tokens_details=OutputTokensDetails(num_reasoning),
        total_tokens=usage.prompt_tokens + usage.output_tokens,
    )


class InputTokensAnswer(msgspec.Struct, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
    """Tokens of the whole prompt, cached or not."""


class DeletedAnswer(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class ItemListAnswer(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
