"""What a decode replica generated is part of what a conversation's next turn begins with."""

from __future__ import annotations

import asyncio

import pytest
from tests.in_process_fleet import GREEDY, Fleet, running_fleet

from baton.core.messages import Receipt
from baton.core.sampling import SamplingParams
from baton.router.cache.pulling import PullRates, RateMeter

PROMPT = tuple((5 * i) % 251 + 1 for i in range(42))
LONG = SamplingParams(max_tokens=24)
LATER = (7, 8, 9, 10, 11)
BLOCK = 4


async def known_somewhere(fleet: Fleet, num_tokens: int) -> None:
    """Until the gateway has heard of so many tokens on some replica."""
    index = fleet.dispatcher.fleet.index
    async with asyncio.timeout(120):
        while not any(
            index.num_blocks(replica.info.epoch) * BLOCK >= num_tokens
            for replica in fleet.replicas.values()
        ):
            await asyncio.sleep(0.01)


async def two_turns(fleet: Fleet, rates: PullRates | None = None) -> tuple[int, Receipt]:
    """How many tokens of the first have whole blocks of KV, and what the second cost.

    The last token of an answer has no KV.
    """
    first = await fleet.ask(PROMPT, LONG)
    had = PROMPT + tuple(first.tokens)
    num_whole = (len(had) - 1) // BLOCK * BLOCK
    await known_somewhere(fleet, num_whole)
    if rates is not None:
        fleet.dispatcher.fleet.loads.meter = RateMeter(rates)  # whatever the first has shown
    second = await fleet.ask(had + LATER, GREEDY)
    await fleet.assert_nothing_is_held()
    assert second.receipt.computed_tokens == len(had + LATER) - num_whole + len(second.tokens) - 1
    return num_whole, second.receipt


@pytest.mark.parametrize("prefill", [0, 1])
async def test_the_next_turn_finds_what_the_decode_replica_generated(prefill: int) -> None:
    async with running_fleet(prefill=prefill, local_prefill_tokens=64) as fleet:
        num_whole, receipt = await two_turns(fleet)

        assert receipt.cached_tokens == num_whole
        assert (receipt.prefill_replica, receipt.kv_bytes) == ("", 0)


async def test_where_the_next_turn_is_computed_elsewhere_it_pulls_what_was_generated() -> None:
    async with running_fleet(prefill=1) as fleet:
        num_whole, receipt = await two_turns(fleet, PullRates(min_tokens=8, tokens_per_s=1.0))

        assert receipt.prefill_replica.startswith("prefill")
        assert receipt.cached_tokens == num_whole
        assert f"{num_whole} tokens cached on decode-" in receipt.placement
