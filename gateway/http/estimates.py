"""POST /v1/estimate: predictions for a request, without running it."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from baton.core.errors import InvalidRequest
from baton.gateway.http.completions.chat import chat_order
from baton.gateway.http.completions.common_fields import request_context
from baton.gateway.http.completions.completions import completion_order
from baton.gateway.http.completions.schemas import ChatBody, CompletionBody
from baton.gateway.http.errors import json_response
from baton.gateway.http.request_body import decode_body, read_body
from baton.gateway.http.unknown_fields import known
from baton.gateway.requests.completion_request import CompletionRequest
from baton.gateway.requests.gateway import Gateway
from baton.router.speeds.prediction_errors import Interval


class EstimatedInterval(msgspec.Struct, kw_only=True):
    """An interval of seconds that should hold 90 % of outcomes."""

    low: float
    middle: float
    high: float


class EstimateAnswer(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens in the cache of the replica that would compute the prompt."""
    computed_tokens: int
    """Prompt tokens that would be computed."""
    max_output_tokens: int
    prefill_replica: str
    """The replica that would compute the prompt; it may be the decode replica."""
    decode_replica: str
    wait_s: float
    """Predicted seconds until the prompt is computed."""
    prefill_s: float
    """Predicted seconds to compute the prompt."""
    ttft_s: EstimatedInterval
    """Time to first token."""
    itl_s: EstimatedInterval | None
    """Time from one output token to the next; null while the decode replica has measured no
    steps."""


class _Kind(msgspec.Struct):
    """Whether the body is a chat or a completion."""

    messages: Any = None


class EstimateApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, request: Request) -> Response:
        data = await read_body(request, self._gateway.config)
        generation = self._gateway.prepare(await self._order(request, data)).first_generation
        estimate = await self._gateway.dispatcher.estimate(generation)
        answer = EstimateAnswer(
            prompt_tokens=len(generation.prompt),
            cached_tokens=estimate.num_cached_tokens,
            computed_tokens=estimate.num_prefill_tokens,
            max_output_tokens=generation.sampling.max_tokens,
            prefill_replica=estimate.computes,
            decode_replica=estimate.decodes,
            wait_s=estimate.wait_s,
            prefill_s=estimate.work_s,
            ttft_s=_interval(estimate.ttft_s),
            itl_s=None if estimate.itl_s is None else _interval(estimate.itl_s),
        )
        return json_response(answer)

    async def _order(self, request: Request, data: bytes) -> CompletionRequest:
        gateway = self._gateway
        who = request_context(request)
        if decode_body(data, _Kind).messages is not None:
            order, _ = await chat_order(
                gateway, known(request, gateway.config, data, ChatBody), who
            )
            return order
        body = known(request, gateway.config, data, CompletionBody)
        order = await completion_order(gateway, body, who)
        if len(order.prompts) > 1:
            raise InvalidRequest(
                f"has {len(order.prompts)} prompts; ask for an estimate of each of them",
                field="prompt",
            )
        return order


def _interval(interval: Interval) -> EstimatedInterval:
    return EstimatedInterval(low=interval.low, middle=interval.middle, high=interval.high)
