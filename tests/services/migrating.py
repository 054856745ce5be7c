"""Requests that are on their way, and replicas that are to be left."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

from tests.in_process_fleet import (
    GREEDY,
    Answer,
    Fleet,
)

from baton.core.ids import ReplicaId
from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.engine.engine import Engine

PROMPT = [(7 * i) % 250 + 1 for i in range(43)]  # ten full blocks of 4, and a part
MAX_TOKENS = 250
LONG = replace(GREEDY, max_tokens=MAX_TOKENS, ignore_eos=True)
SAMPLED = SamplingParams(temperature=60.0, seed=11, max_tokens=MAX_TOKENS, ignore_eos=True)


def busy(fleet: Fleet) -> list[ReplicaId]:
    """The decode replicas that have requests."""
    return [
        replica_id
        for replica_id, replica in fleet.replicas.items()
        if replica.info.role is Role.DECODE and replica.worker.num_open
    ]


def slow_down(engine: Engine) -> None:
    """So that what it runs can move before it is done, however long that takes here."""
    forward = engine.runner.forward

    def slowly(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.02)
        return forward(*args, **kwargs)

    engine.runner.forward = slowly  # type: ignore[method-assign]


async def ask_and_drain(
    fleet: Fleet, sampling: SamplingParams = LONG, *, after: int = 7, **options: Any
) -> tuple[Answer, ReplicaId]:
    """One request whose replica is drained when the client has `after` tokens."""
    drained: list[ReplicaId] = []

    async def on_token(num_tokens: int) -> None:
        if num_tokens >= after and not drained:
            drained.extend(busy(fleet))
            slow_down(fleet.engines[drained[0]])
            await fleet.dispatcher.drain(drained[0], is_forced=False)
            go_on()

    with fleet.halting_at(after) as go_on:
        answer = await fleet.ask(PROMPT, sampling, on_token=on_token, **options)
    return answer, drained[0]


async def is_empty(fleet: Fleet, replica_id: ReplicaId) -> None:
    async with asyncio.timeout(60):
        await fleet.replicas[replica_id].worker.drain()
    assert fleet.replicas[replica_id].worker.num_open == 0
