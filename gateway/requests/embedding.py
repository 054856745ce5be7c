"""Prompts to vectors: what both faces share of embeddings.

Every input is a generation of its own that generates nothing; some of them run at the same time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from baton.core.errors import ContextExceeded, InvalidRequest
from baton.core.messages import Pooling, SamplingParams
from baton.gateway.access.api_keys import Caller
from baton.gateway.requests.completion_stream import Usage
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.generation import Generation
from baton.gateway.requests.generation_run import GenerationRun
from baton.gateway.requests.options import RANGES
from baton.gateway.requests.order import Prompt
from baton.gateway.requests.request_ids import unique_request_id
from baton.gateway.requests.sampling_options import check_tokens

MAX_INPUTS = 2048
"""As many as OpenAI takes."""
MAX_RUNNING = 32
"""Inputs of one request that run at once: it shares the replicas with other requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOrder:
    """What a face has understood of a request, not yet checked."""

    request_id: str
    """The public one."""
    inputs: tuple[Prompt, ...]
    pooling: Pooling = Pooling.MEAN
    is_normalized: bool = True
    dimensions: int | None = None
    """The first so many, taken before normalising; None: all."""
    priority: int | None = None
    cache_salt: str = ""
    caller: Caller
    time_left_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    vectors: list[list[float]]
    """In the order of the inputs."""
    usage: Usage


async def embed(gateway: Gateway, order: EmbeddingOrder) -> Embeddings:
    """Raises InvalidRequest and RateLimited before anything runs, and what a run raises."""
    _check(gateway, order)
    gateway.admit(order.caller, sum(len(one.tokens) for one in order.inputs))
    patience = gateway.patience(order.caller, order.time_left_s)
    priority = order.caller.priority(order.priority, "priority")
    salt = gateway.salts.salt(order.caller.tenant, order.cache_salt)
    room = asyncio.Semaphore(MAX_RUNNING)

    async def run(prompt: Prompt) -> tuple[list[float], int]:
        async with room:
            return await _embed_one(gateway.run(generation_of(prompt)), order)

    def generation_of(prompt: Prompt) -> Generation:
        return Generation(
            request_id=unique_request_id(order.request_id),
            prompt=prompt.tokens,
            sampling=SamplingParams(max_tokens=1),
            salt=salt,
            tenant=order.caller.tenant,
            owner=order.caller.owner,
            priority=priority,
            pooling=order.pooling,
            time_left_s=patience.time_left_s,
            max_wait_s=patience.max_wait_s,
            call=order.caller.call,
        )

    tasks = [asyncio.create_task(run(prompt)) for prompt in order.inputs]
    try:
        results = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    usage = Usage(
        prompt_tokens=sum(len(prompt.tokens) for prompt in order.inputs),
        cached_tokens=sum(num_cached for _, num_cached in results),
        output_tokens=0,
    )
    return Embeddings(vectors=[vector for vector, _ in results], usage=usage)


def _check(gateway: Gateway, order: EmbeddingOrder) -> None:
    if order.dimensions is not None and order.dimensions < 1:
        raise InvalidRequest(
            f"dimensions must be at least 1; got {order.dimensions}", field="dimensions"
        )
    if order.priority is not None and order.priority not in RANGES["priority"]:
        raise InvalidRequest(f"priority must be {RANGES['priority']}", field="priority")
    for prompt in order.inputs:
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


async def _embed_one(run: GenerationRun, order: EmbeddingOrder) -> tuple[list[float], int]:
    async with run:
        update = await run.next()
        run.is_complete = True
    return fitted(update.embedding, order), run.receipt.cached_tokens


def fitted(embedding: Sequence[float], order: EmbeddingOrder) -> list[float]:
    """Cut and scaled as asked for."""
    num = order.dimensions
    if num is not None and num > len(embedding):
        raise InvalidRequest(
            f"dimensions must be at most {len(embedding)}, which the model has; got {num}",
            field="dimensions",
        )
    vector = list(embedding[:num])
    if not order.is_normalized:
        return vector
    length = math.hypot(*vector)
    return [value / length for value in vector] if length else vector
