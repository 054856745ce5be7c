"""Responses as values, and many deltas as one result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar

import grpc

from baton.client.errors import ServerFailed
from baton.client.results import (
    AssistantMessage,
    ChatChoice,
    ChatDelta,
    ChatResult,
    Choice,
    Delta,
    EmbeddingResult,
    Estimate,
    GenerationResult,
    Interval,
    Model,
    PromptProgress,
    Receipt,
    TokenLogprob,
    Tokens,
    ToolCall,
    ToolCallDelta,
    TopLogprob,
    Usage,
)
from baton.proto import inference_pb2 as pb

T = TypeVar("T")


def delta_from(response: pb.GenerateResponse) -> Delta:
    return Delta(text=response.text, **_common(response))


def chat_delta_from(response: pb.ChatResponse) -> ChatDelta:
    return ChatDelta(
        text=response.content,
        reasoning=response.reasoning,
        tool_calls=tuple(
            ToolCallDelta(index=c.index, id=c.id, name=c.name, arguments=c.arguments)
            for c in response.tool_calls
        ),
        **_common(response),
    )


def generation_from(deltas: Sequence[Delta]) -> GenerationResult:
    """Raises ServerFailed if the last deltas are missing."""
    return GenerationResult(
        **_ends(deltas),
        choices=tuple(
            Choice(text="".join(d.text for d in of_choice), **_joined(of_choice))
            for of_choice in _by_choice(deltas)
        ),
    )


def chat_from(deltas: Sequence[ChatDelta]) -> ChatResult:
    """Raises ServerFailed if the last deltas are missing."""
    return ChatResult(
        **_ends(deltas),
        choices=tuple(
            ChatChoice(message=_message(of_choice), **_joined(of_choice))
            for of_choice in _by_choice(deltas)
        ),
    )


def tokens_from(response: pb.TokenizeResponse) -> Tokens:
    return Tokens(
        ids=tuple(response.ids),
        tokens=tuple(response.tokens),
        max_model_len=response.max_model_len,
    )


def embeddings_from(response: pb.EmbedResponse) -> EmbeddingResult:
    return EmbeddingResult(
        request_id=response.request_id,
        model=response.model,
        embeddings=tuple(tuple(embedding.values) for embedding in response.embeddings),
        usage=_usage(response.usage),
    )


def models_from(response: pb.ListModelsResponse) -> list[Model]:
    return [
        Model(
            id=model.id,
            created=model.created,
            max_model_len=model.max_model_len,
            root=model.root,
            parent=model.parent,
        )
        for model in response.models
    ]


def estimate_from(response: pb.EstimateResponse) -> Estimate:
    values = {name: getattr(response, name) for name in Estimate.__dataclass_fields__}
    has_itl = response.HasField("itl_s")
    return Estimate(
        **{
            **values,
            "ttft_s": _interval(response.ttft_s),
            "itl_s": _interval(response.itl_s) if has_itl else None,
        }
    )


def _common(response: pb.GenerateResponse | pb.ChatResponse) -> dict[str, Any]:
    """The fields that both kinds of deltas share."""
    return {
        "request_id": response.request_id,
        "model": response.model,
        "index": response.index,
        "token_ids": tuple(response.token_ids),
        "logprobs": tuple(map(_logprob, response.logprobs)),
        "prompt_token_ids": tuple(response.prompt_token_ids),
        "prompt_logprobs": tuple(map(_logprob, response.prompt_logprobs)),
        "finish_reason": response.finish_reason or None,
        "receipt": _receipt(response.receipt) if response.HasField("receipt") else None,
        "usage": _usage(response.usage) if response.HasField("usage") else None,
        "prompt_progress": _progress(response),
    }


def _ends(deltas: Sequence[Delta] | Sequence[ChatDelta]) -> dict[str, Any]:
    last = deltas[-1] if deltas else None
    if last is None or last.usage is None:
        raise _has_no_end()
    return {"request_id": last.request_id, "model": last.model, "usage": last.usage}


def _joined(deltas: Sequence[Delta] | Sequence[ChatDelta]) -> dict[str, Any]:
    """The fields of a choice that both kinds share."""
    end = next((delta for delta in deltas if delta.finish_reason and delta.receipt), None)
    if end is None:
        raise _has_no_end()
    return {
        "index": end.index,
        "token_ids": _chained(d.token_ids for d in deltas),
        "logprobs": _chained(d.logprobs for d in deltas),
        "prompt_token_ids": _chained(d.prompt_token_ids for d in deltas),
        "prompt_logprobs": _chained(d.prompt_logprobs for d in deltas),
        "finish_reason": end.finish_reason,
        "receipt": end.receipt,
    }


def _message(deltas: Sequence[ChatDelta]) -> AssistantMessage:
    parts_by_call: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        for part in delta.tool_calls:
            parts_by_call.setdefault(part.index, []).append(part)
    return AssistantMessage(
        content="".join(delta.text for delta in deltas),
        reasoning="".join(delta.reasoning for delta in deltas),
        tool_calls=tuple(
            ToolCall(
                id="".join(part.id for part in parts),
                name="".join(part.name for part in parts),
                arguments="".join(part.arguments for part in parts),
            )
            for _, parts in sorted(parts_by_call.items())
        ),
    )


def _by_choice(deltas: Iterable[T]) -> list[list[T]]:
    deltas_by_index: dict[int, list[T]] = {}
    for delta in deltas:
        deltas_by_index.setdefault(getattr(delta, "index", 0), []).append(delta)
    return [of_choice for _, of_choice in sorted(deltas_by_index.items())]


def _chained(parts: Iterable[tuple[T, ...]]) -> tuple[T, ...]:
    return tuple(chain.from_iterable(parts))


def _has_no_end() -> ServerFailed:
    return ServerFailed("the stream ended before its last response", grpc.StatusCode.UNKNOWN)


def _logprob(entry: pb.TokenLogprob) -> TokenLogprob:
    top = tuple(TopLogprob(t.token_id, t.token, t.logprob) for t in entry.top)
    return TokenLogprob(entry.token_id, entry.token, entry.logprob, top)


def _progress(response: pb.GenerateResponse | pb.ChatResponse) -> PromptProgress | None:
    if not response.HasField("prompt_progress"):
        return None
    told = response.prompt_progress
    names = PromptProgress.__dataclass_fields__
    return PromptProgress(**{name: getattr(told, name) for name in names})


def _interval(interval: pb.Interval) -> Interval:
    return Interval(low=interval.low, middle=interval.middle, high=interval.high)


def _usage(usage: pb.Usage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )


def _receipt(receipt: pb.Receipt) -> Receipt:
    values = {name: getattr(receipt, name) for name in Receipt.__dataclass_fields__}
    return Receipt(**{**values, "notes": tuple(receipt.notes)})
