"""Where a gateway sends requests, seen from their receipts. Real replicas with echo engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from tests.in_process_fleet import GREEDY, Answer, Fleet, running_fleet
from tests.platform.scripted_replica import until

from baton.platform.gateway.replica_link import ReplicaLink

PROMPT = list(range(3, 43))
OTHER = list(range(100, 140))
ENDLESS = replace(GREEDY, max_tokens=1500)


def is_idle(link: ReplicaLink) -> bool:
    return link.capacity is not None and link.capacity.num_queued_tokens == 0


@asynccontextmanager
async def occupied(fleet: Fleet, prompt: list[int]) -> AsyncIterator[str]:
    """While a long request runs; the name of the replica it runs on."""
    running = asyncio.create_task(fleet.ask(prompt, ENDLESS))
    links = fleet.dispatcher.fleet
    await until(lambda: any(link.num_open for link in links.connected))
    [busy] = [link.info.replica_id for link in links.connected if link.num_open]
    try:
        yield busy
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await until(lambda: all(is_idle(link) for link in links.connected))


async def test_the_same_prompt_goes_where_it_is_cached_though_another_replica_is_listed_first() -> (
    None
):
    async with running_fleet(prefill=0, decode=2) as fleet:
        async with occupied(fleet, OTHER) as busy:
            first = await fleet.ask(PROMPT)
        assert first.receipt.decode_replica != busy

        again = await fleet.ask(PROMPT)

        assert again.receipt.decode_replica == first.receipt.decode_replica
        assert again.receipt.cached_tokens >= len(PROMPT) - 4
        assert again.tokens == first.tokens


async def test_a_conversation_comes_back_to_its_answer_though_others_know_its_question() -> None:
    async with running_fleet(prefill=0, decode=2) as fleet:
        async with occupied(fleet, OTHER):
            first = await fleet.ask(PROMPT)
        view = fleet.dispatcher.fleet
        view.remember(view.hashes(PROMPT, b""), [link.info.epoch for link in view.connected])

        conversation = [*PROMPT, *first.tokens, 7]
        back = await fleet.ask(conversation)

        assert back.receipt.decode_replica == first.receipt.decode_replica
        assert back.receipt.cached_tokens > len(PROMPT)


async def test_tenants_do_not_share_what_is_cached() -> None:
    async with running_fleet(prefill=0, decode=2) as fleet:
        async with occupied(fleet, OTHER) as busy:
            mine = await fleet.ask(PROMPT, salt=b"me")

        theirs = await fleet.ask(PROMPT, salt=b"them")

        assert theirs.receipt.decode_replica == busy != mine.receipt.decode_replica
        assert theirs.receipt.cached_tokens == 0


async def test_the_same_prompt_is_prefilled_where_it_was_before() -> None:
    async with running_fleet(prefill=2, decode=1) as fleet:
        first_listed = fleet.replicas["prefill-1"].info.epoch  # type: ignore[index]
        fleet.dispatcher.fleet.add_prefill_tokens(first_listed, 1000)
        first = await fleet.ask(PROMPT)
        fleet.dispatcher.fleet.add_prefill_tokens(first_listed, -1000)

        longer = await fleet.ask([*PROMPT, 1, 2, 3])

        assert first.receipt.prefill_replica == "prefill-2"
        assert longer.receipt.prefill_replica == "prefill-2"


async def test_a_burst_is_spread_over_the_decode_replicas() -> None:
    async with running_fleet(prefill=0, decode=2) as fleet:
        answers = await asyncio.gather(*(fleet.ask([n, *PROMPT]) for n in range(8)))

        assert decode_replicas(answers) == {"decode-1", "decode-2"}


async def test_a_short_prompt_is_computed_where_it_decodes_and_a_long_one_is_not() -> None:
    async with running_fleet(local_prefill_tokens=16) as fleet:
        short = await fleet.ask(PROMPT[:16])
        long = await fleet.ask(OTHER)

        assert short.receipt.prefill_replica == ""
        assert short.receipt.placement == "16 of 16 tokens uncached: computed locally"
        assert short.receipt.kv_bytes == 0
        assert long.receipt.prefill_replica == "prefill-1"
        assert long.receipt.kv_bytes > 0


async def test_a_long_prompt_is_computed_locally_once_most_of_it_is_cached_there() -> None:
    async with running_fleet(local_prefill_tokens=16) as fleet:
        first = await fleet.ask(PROMPT)

        again = await fleet.ask([*PROMPT, 1, 2, 3])

        assert first.receipt.prefill_replica == "prefill-1"
        assert again.receipt.prefill_replica == ""
        assert again.receipt.cached_tokens == 40
        await fleet.assert_nothing_is_held()


def decode_replicas(answers: list[Answer]) -> set[str]:
    return {answer.receipt.decode_replica for answer in answers}
