"""Prompts to vectors: the shared part of embeddings, labels and scores.

Every input is a generation without output; several run concurrently.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from baton.core.errors import ContextExceeded, InvalidRequest
from baton.core.messages import Pooling
from baton.core.sampling import SamplingParams
from baton.gateway.access.api_keys import Caller
from baton.gateway.requests.completion_request import Prompt
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.generations.completion_stream import Usage
from baton.gateway.requests.generations.generation import Generation
from baton.gateway.requests.generations.generation_run import GenerationRun
from baton.gateway.requests.options import RANGES
from baton.gateway.requests.request_ids import unique_request_id
from baton.gateway.requests.sampling_options import check_tokens

MAX_INPUTS = 2048
"""OpenAI's limit."""
MAX_RUNNING = 32
"""Inputs of one request that run at once, so that it shares the replicas with others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingRequest:
    """A request for vectors, not yet checked."""

    request_id: str
    """The public one."""
    pooling: Pooling = Pooling.LOGITS
    tokens: tuple[int, ...] = ()
    """Token ids whose logits are wanted; empty: a classifier's labels."""
    priority: int | None = None
    adapter: str = ""
    """See `CompletionRequest`."""
    cache_salt: str = ""
    caller: Caller
    time_left_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledOutputs:
    vectors: list[tuple[float, ...]]
    """One vector for each input, in the order of the inputs."""
    usage: Usage


async def run_pooled(
    gateway: Gateway, inputs: tuple[Prompt, ...], order: PoolingRequest
) -> PooledOutputs:
    """Raises InvalidRequest and RateLimited before anything runs, and what a run raises."""
    _check(gateway, inputs, order)
    gateway.admit(order.caller, sum(len(one.tokens) for one in inputs))
    time_limits = gateway.time_limits(order.caller, order.time_left_s)
    priority = order.caller.priority(order.priority, "priority")
    salt = gateway.salts.salt(order.caller.tenant, order.cache_salt, order.adapter)
    room = asyncio.Semaphore(MAX_RUNNING)

    async def run(prompt: Prompt) -> tuple[tuple[float, ...], int]:
        async with room:
            return await _run_one(gateway.run(generation_of(prompt)))

    def generation_of(prompt: Prompt) -> Generation:
        return Generation(
            request_id=unique_request_id(order.request_id),
            prompt=prompt.tokens,
            sampling=SamplingParams(max_tokens=1, allowed_token_ids=order.tokens),
            salt=salt,
            adapter=order.adapter,
            tenant=order.caller.tenant,
            owner=order.caller.owner,
            priority=priority,
            pooling=order.pooling,
            time_left_s=time_limits.time_left_s,
            max_wait_s=time_limits.max_wait_s,
            call=order.caller.call,
        )

    tasks = [asyncio.create_task(run(prompt)) for prompt in inputs]
    try:
        results = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    usage = Usage(
        prompt_tokens=sum(len(prompt.tokens) for prompt in inputs),
        cached_tokens=sum(num_cached for _, num_cached in results),
        output_tokens=0,
    )
    return PooledOutputs(vectors=[vector for vector, _ in results], usage=usage)


def _check(gateway: Gateway, inputs: tuple[Prompt, ...], order: PoolingRequest) -> None:
    if order.priority is not None and order.priority not in RANGES["priority"]:
        raise InvalidRequest(f"priority must be {RANGES['priority']}", field="priority")
    for prompt in inputs:
        if not prompt.tokens:
            message = f"{prompt.field} is empty; it needs at least one token"
            raise InvalidRequest(message, field=prompt.field)
        if len(prompt.tokens) > gateway.max_model_len:
            raise ContextExceeded(
                f"this model's maximum context length is {gateway.max_model_len} tokens, and "
                f"{prompt.field} has {len(prompt.tokens)}; shorten it",
                field=prompt.field,
            )
        check_tokens(prompt.tokens, gateway.model.vocab_size, field=prompt.field)


async def _run_one(run: GenerationRun) -> tuple[tuple[float, ...], int]:
    async with run:
        update = await run.next()
        run.is_complete = True
    return update.embedding, run.receipt.cached_tokens
