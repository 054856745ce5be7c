"""What a gateway counts for the planner."""

from __future__ import annotations

import asyncio

from tests.gateway.fleet.asking import PROMPT, ask, generation
from tests.gateway.fleet.scripted_replica import (
    ScriptedReplica,
    answers,
    dispatching_to,
    silent,
    until,
)


async def test_requests_are_counted_from_their_arrival_to_their_end_wherever_they_are() -> None:
    replica = ScriptedReplica("d", answers(2), silent, answers(1), max_open=1)
    async with dispatching_to(replica) as dispatcher:
        await ask(dispatcher, "done")
        running = await dispatcher.start(generation("open"))
        waiting = asyncio.create_task(dispatcher.start(generation("waits")))
        gone = asyncio.create_task(dispatcher.start(generation("gives up")))
        await until(lambda: dispatcher.num_waiting == 2)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)

        told = dispatcher.traffic()
        await running.stop(0)
        await running.stop(0)
        await (await waiting).stop(0)
        after = dispatcher.traffic()

    assert (told.num_arrived, told.num_placed, told.num_ended) == (4, 2, 1)
    assert (told.num_open, told.num_waiting, told.waiting_tokens) == (1, 1, len(PROMPT))
    assert told.output_tokens == 1 and told.oldest_wait_s > 0
    assert (told.num_for_decode, after.num_for_decode) == (1, 0)
    assert (told.computed_tokens, told.cached_tokens) == (2 * len(PROMPT), 0)
    assert (after.num_open, after.num_waiting, after.num_ended) == (0, 0, 3)
