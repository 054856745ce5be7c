"""Prefix caches are forgotten on an operator's word, and nobody who runs loses anything."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.in_process_fleet import GREEDY, Fleet, most_tokens, running_fleet

from baton.core.errors import InvalidRequest
from baton.core.ids import new_epoch
from baton.core.sampling import SamplingParams

PROMPT = [1 + n % 200 for n in range(50)]


async def num_tokens(fleet: Fleet) -> int:
    """Tokens of the one request that runs."""
    counting = (
        replica.worker.core.thread.call(partial(most_tokens, fleet.engines[replica_id]))
        for replica_id, replica in fleet.replicas.items()
    )
    return max(await asyncio.gather(*counting))


async def test_a_prefix_is_computed_again_after_a_reset_and_who_runs_goes_on() -> None:
    long = SamplingParams(max_tokens=60, ignore_eos=True)
    async with running_fleet(prefill=1, decode=1) as fleet:
        whole = await fleet.ask(PROMPT, long)
        assert (await fleet.ask(PROMPT, GREEDY)).receipt.cached_tokens > 0
        with fleet.halting_at(20):
            running = asyncio.create_task(fleet.ask(PROMPT, long))
            async with asyncio.timeout(60):
                while await num_tokens(fleet) < 20:
                    await asyncio.sleep(0.001)
            num_blocks = await fleet.dispatcher.reset_prefix_cache("")
        with pytest.raises(InvalidRequest, match="no replica is called 'nobody'"):
            await fleet.dispatcher.reset_prefix_cache("nobody")
        left_meanwhile = new_epoch()
        assert await fleet.dispatcher.fleet.commands.reset_prefix_cache(left_meanwhile) == 0

        assert (await running).tokens == whole.tokens
        assert num_blocks.keys() == fleet.replicas.keys() and sum(num_blocks.values()) > 0
        assert (await fleet.ask(PROMPT, GREEDY)).receipt.cached_tokens == 0
        await fleet.assert_nothing_is_held()
