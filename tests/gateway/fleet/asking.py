"""A small request, and its whole answer."""

from __future__ import annotations

from baton.core.ids import RequestId
from baton.core.messages import Receipt
from baton.core.sampling import SamplingParams
from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.gateway.requests.generations.generation import Generation, RunningGeneration

PROMPT = (5, 6, 7)


def generation(name: str = "r", *, time_left_s: float | None = 60.0) -> Generation:
    return Generation(
        request_id=RequestId(name),
        prompt=PROMPT,
        sampling=SamplingParams(max_tokens=4, seed=9),
        salt=b"tenant",
        time_left_s=time_left_s,
    )


async def tokens_of(running: RunningGeneration) -> list[int]:
    return [token async for one in running for token in one.tokens]


async def ask(dispatcher: ReplicaDispatcher, name: str = "r") -> tuple[list[int], Receipt]:
    running = await dispatcher.start(generation(name))
    try:
        return await tokens_of(running), running.receipt
    finally:
        await running.stop(0)
