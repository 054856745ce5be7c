"""Where a gateway sends requests, seen from their receipts. Real replicas with echo engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.gateway.fleet.scripted_replica import snapshot, until
from tests.in_process_fleet import GREEDY, Answer, Fleet, echo_engine, running_fleet

from baton.core.clock import monotonic
from baton.core.ids import ReplicaId, RequestId
from baton.core.replicas import Role
from baton.engine.engine import Engine
from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.gateway.fleet.links.decode_link import DecodeLink
from baton.gateway.fleet.links.replica_link import ReplicaLink
from baton.gateway.requests.generations.generation import Generation
from baton.router.cache.prompt_names import PromptNames
from baton.router.placer import Routing
from baton.router.policies.cost import Cost
from baton.router.prompt import Prompt

PROMPT = list(range(3, 43))
OTHER = list(range(100, 140))
ENDLESS = replace(GREEDY, max_tokens=1500)


def is_idle(link: DecodeLink) -> bool:
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

        await until_known(fleet, PROMPT)
        again = await fleet.ask(PROMPT)

        assert again.receipt.decode_replica == first.receipt.decode_replica
        assert again.receipt.cached_tokens >= len(PROMPT) - 4
        assert again.tokens == first.tokens


async def test_a_gateway_knows_where_prompts_are_that_other_gateways_placed() -> None:
    async with running_fleet(prefill=0, decode=2) as fleet:
        async with occupied(fleet, OTHER):
            first = await fleet.ask(PROMPT)

        async with another_gateway(fleet) as newcomer:
            await until_known(newcomer, PROMPT)
            again = await newcomer.ask(PROMPT)

        assert again.receipt.decode_replica == first.receipt.decode_replica
        assert again.receipt.cached_tokens >= len(PROMPT) - 4


async def test_a_conversation_comes_back_to_its_answer_though_others_know_its_question() -> None:
    async with running_fleet(prefill=0, decode=2) as fleet:
        async with occupied(fleet, OTHER):
            first = await fleet.ask(PROMPT)
        async with occupied(fleet, PROMPT):
            await fleet.ask([*PROMPT[:20], 1])  # leaves half of the question on the other

        conversation = [*PROMPT, *first.tokens, 7]
        await until_known(fleet, conversation[:-4])
        back = await fleet.ask(conversation)

        assert back.receipt.decode_replica == first.receipt.decode_replica
        assert back.receipt.cached_tokens > len(PROMPT)


async def test_equal_prompts_that_arrive_together_go_together() -> None:
    async with running_fleet(prefill=2, decode=2) as fleet:
        links = fleet.dispatcher.fleet.links
        known: list[ReplicaLink[Any]] = [*links.decode.values(), *links.prefill.values()]
        await until(lambda: all(link.capacity for link in known))  # or there is no choice yet
        answers = await asyncio.gather(*(fleet.ask(PROMPT) for _ in range(4)))

        assert len(known) == 4
        assert len(decode_replicas(answers)) == 1
        assert len({answer.receipt.prefill_replica for answer in answers}) == 1
        assert len({tuple(answer.tokens) for answer in answers}) == 1
        await fleet.assert_nothing_is_held()


async def test_what_a_replica_had_to_evict_does_not_draw_requests_any_more() -> None:
    small = partial(echo_engine, num_blocks=24)
    async with running_fleet(prefill=0, decode=1, make_engine=small) as fleet:
        await fleet.ask(PROMPT)
        await until_known(fleet, PROMPT)

        for start in range(0, 200, 50):
            await fleet.ask(range(start, start + 50))

        await until(lambda: num_known(fleet, PROMPT) == 0)


async def test_a_replica_that_died_is_not_believed_to_have_what_it_had() -> None:
    async with running_fleet(prefill=0, decode=1) as fleet:
        await fleet.ask(PROMPT)
        await until_known(fleet, PROMPT)

        await fleet.crash(ReplicaId("decode-1"))
        await fleet.add(Role.DECODE)
        await fleet.dispatcher.fleet.apply(snapshot(fleet.replicas[ReplicaId("decode-2")].info))

        assert num_known(fleet, PROMPT) == 0
        again = await fleet.ask(PROMPT)
        assert (again.receipt.decode_replica, again.receipt.cached_tokens) == ("decode-2", 0)
        await until_known(fleet, PROMPT)


async def test_other_choices_of_a_request_find_its_prompt_beside_it() -> None:
    async with running_fleet(prefill=1, decode=2) as fleet:
        first = await fleet.ask(PROMPT, replace(GREEDY, max_tokens=40))
        await until_known(fleet, PROMPT)
        running = await fleet.dispatcher.start(
            Generation(request_id=RequestId("choice 0"), prompt=tuple(PROMPT), sampling=ENDLESS)
        )
        await anext(aiter(running))

        second = await fleet.ask(PROMPT, replace(GREEDY, choice=1), near=RequestId("choice 0"))

        assert second.receipt.decode_replica == running.receipt.decode_replica
        assert second.receipt.prefill_replica == ""
        assert second.receipt.cached_tokens >= len(PROMPT) - 4
        assert second.receipt.placement.startswith("beside another choice of this request; ")
        assert first.tokens[:12] == second.tokens
        await running.stop(0)
        await fleet.assert_nothing_is_held()


async def test_tenants_do_not_share_what_is_cached() -> None:
    async with running_fleet(prefill=0, decode=1) as fleet:
        await fleet.ask(PROMPT, salt=b"me")
        mine = await fleet.ask(PROMPT, salt=b"me")
        theirs = await fleet.ask(PROMPT, salt=b"them")

        assert mine.receipt.cached_tokens > 0
        assert theirs.receipt.cached_tokens == 0


@pytest.mark.parametrize("prefill_block_size", [4, 8])
async def test_the_same_prompt_is_prefilled_where_it_was_before(prefill_block_size: int) -> None:
    def engine(role: Role) -> Engine:
        return echo_engine(role, block_size=prefill_block_size if role is Role.PREFILL else 4)

    async with running_fleet(prefill=2, decode=1, make_engine=engine) as fleet:
        first_listed = fleet.replicas["prefill-1"].info.epoch  # type: ignore[index]
        candidate = fleet.dispatcher.fleet.loads.candidate(first_listed)
        assert candidate is not None
        busy = Prompt(number=-1, num_tokens=1000, arrived_s=0.0)
        candidate.book(busy, 0, monotonic())
        first = await fleet.ask(PROMPT)
        candidate.finished(busy, monotonic())

        await until_known(fleet, PROMPT, num_replicas=2)
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
        assert short.receipt.placement.startswith("16 of 16 tokens uncached, too few")
        assert short.receipt.kv_bytes == 0
        assert long.receipt.prefill_replica == "prefill-1"
        assert long.receipt.kv_bytes > 0


async def test_a_long_prompt_is_computed_locally_once_most_of_it_is_cached_there() -> None:
    async with running_fleet(local_prefill_tokens=16) as fleet:
        first = await fleet.ask(PROMPT)

        await until_known(fleet, PROMPT, num_replicas=2)
        again = await fleet.ask([*PROMPT, 1, 2, 3])

        assert first.receipt.prefill_replica == "prefill-1"
        assert again.receipt.prefill_replica == ""
        assert again.receipt.cached_tokens == 40
        await fleet.assert_nothing_is_held()


def num_known(fleet: Fleet, prompt: Sequence[int]) -> int:
    """Replicas that have the whole prompt, as far as its gateway knows."""
    view = fleet.dispatcher.fleet
    views = view.view(PromptNames(prompt))
    return sum(
        one.num_cached_tokens
        >= len(prompt) // one.info.layout.block_size * one.info.layout.block_size
        for one in (*views.decode, *views.prefill)
    )


async def until_known(fleet: Fleet, prompt: Sequence[int], *, num_replicas: int = 1) -> None:
    """Events travel on streams of their own: a token may be faster."""
    await until(lambda: num_known(fleet, prompt) >= num_replicas)


@asynccontextmanager
async def another_gateway(fleet: Fleet) -> AsyncIterator[Fleet]:
    """A second way to the same replicas, which has seen no request."""
    dispatcher = ReplicaDispatcher(Routing(Cost()), max_waiting=8, no_replica_grace_s=5.0)
    other = replace(fleet, dispatcher=dispatcher)
    try:
        await other.sync()
        yield other
    finally:
        await dispatcher.fleet.close()


def decode_replicas(answers: list[Answer]) -> set[str]:
    return {answer.receipt.decode_replica for answer in answers}
