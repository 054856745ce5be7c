"""When a new gateway knows enough of what replicas have cached to place prompts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.gateway.fleet.scripted_replica import until
from tests.in_process_fleet import GREEDY, running_fleet

from baton.core.clock import ManualClock
from baton.core.ids import Epoch, new_request_id
from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.gateway.fleet.membership import warm_up
from baton.gateway.fleet.membership.warm_up import WarmUp
from baton.gateway.requests.generations.generation import Generation
from baton.router.placer import Routing
from baton.router.policies.cost import Cost

A, B = Epoch("a"), Epoch("b")
PROMPT = tuple(range(3, 103))


class Over:
    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self) -> None:
        self.num_calls += 1


async def test_it_is_over_when_the_last_of_the_first_replicas_has_told_all() -> None:
    over = Over()
    warming = WarmUp(over)
    warming.begin([])
    warming.begin([A, B])
    warming.begin([Epoch("later")])

    warming.observe(A, is_all=True)
    warming.observe(B, is_all=False)
    assert not warming.is_over
    warming.observe(B, is_all=True)

    assert warming.is_over
    warming.observe(Epoch("later"), is_all=True)
    assert over.num_calls == 1


async def test_a_replica_that_says_nothing_is_waited_for_only_while_others_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm_up, "PAUSE_S", 0.02)
    clock, over = ManualClock(), asyncio.Event()
    warming = WarmUp(over.set, clock)
    warming.begin([A, B])
    for _ in range(3):
        clock.advance(0.015)
        warming.observe(A, is_all=False)
        await asyncio.sleep(0.03)
        assert not warming.is_over

    clock.advance(0.02)
    await over.wait()

    assert warming.is_over


async def test_half_of_the_caches_are_enough_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "PAUSE_S", 0.01)
    clock, over, looks = ManualClock(), asyncio.Event(), asyncio.Semaphore(0)

    def has_looked() -> bool:
        looks.release()
        return True  # some have not been asked yet

    warming = WarmUp(over.set, clock, has_looked)
    warming.begin([A, B, Epoch("c")])
    warming.observe(A, is_all=True)
    clock.advance(warm_up.ENOUGH_AFTER_S)
    await looks.acquire()
    await looks.acquire()
    assert not warming.is_over

    warming.observe(B, is_all=True)

    assert over.is_set()


async def test_that_half_is_known_is_seen_as_soon_as_it_is_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm_up, "PAUSE_S", 600.0)
    monkeypatch.setattr(warm_up, "ENOUGH_AFTER_S", 0.05)
    clock, over = ManualClock(), asyncio.Event()
    warming = WarmUp(over.set, clock)
    warming.begin([A, B])

    warming.observe(A, is_all=True)
    assert not warming.is_over
    clock.advance(warm_up.ENOUGH_AFTER_S)

    async with asyncio.timeout(120):
        await over.wait()


async def test_a_gateway_is_ready_once_it_has_learnt_what_is_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm_up, "PAUSE_S", 600.0)
    async with running_fleet(prefill=0, decode=1) as fleet:
        new = ReplicaDispatcher(Routing(Cost()), max_waiting=9, no_replica_grace_s=60.0)
        assert not new.is_ready()
        new.fleet.warm_up.begin([A, *(info.epoch for info in fleet.registry.membership().replicas)])
        try:
            await new.fleet.apply(fleet.registry.membership())
            await until(lambda: bool(new.fleet.connected))
            assert (new.is_ready(), new.trouble()) == (
                False,
                "what replicas have cached is not known here yet",
            )

            new.fleet.warm_up.lose(A)

            await new.fleet.warm_up.until_over()
            assert new.is_ready()
        finally:
            await new.fleet.close()


async def test_a_gateway_that_came_while_all_slept_stays_ready_when_the_first_replica_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm_up, "PAUSE_S", 600.0)
    async with running_fleet(prefill=0, decode=1) as fleet:
        there = fleet.registry.membership()
        young, settled = (replace(there, replicas=(), age_s=age_s) for age_s in (0.1, 60.0))
        new = ReplicaDispatcher(
            Routing(Cost()), max_waiting=9, no_replica_grace_s=60.0, cold_start_s=60.0
        )
        try:
            await new.fleet.apply(young)  # others have yet to report to it
            assert not new.fleet.warm_up.is_over
            await new.fleet.apply(settled)
            assert new.is_ready()

            await new.fleet.apply(there)

            assert new.is_ready() and new.fleet.warm_up.is_over
        finally:
            await new.fleet.close()


async def test_nothing_is_awaited_of_a_replica_that_cannot_be_connected_to() -> None:
    over = Over()
    warming = WarmUp(over)
    warming.begin([A, B])
    warming.observe(A, is_all=True)

    warming.lose(B)

    assert over.num_calls == 1
    warming.close()


async def test_what_lies_unread_while_our_own_loop_stands_still_is_no_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm_up, "PAUSE_S", 0.001)
    monkeypatch.setattr(warm_up, "LATE_S", 0.0)  # each look comes late
    clock, over = ManualClock(), asyncio.Event()
    warming = WarmUp(over.set, clock)
    warming.begin([A])
    clock.advance(warm_up.LIMIT_S / 2)
    await asyncio.sleep(0.02)
    assert not warming.is_over

    clock.advance(warm_up.LIMIT_S / 2)

    await over.wait()


async def test_nobody_is_silent_who_has_not_been_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "PAUSE_S", 0.001)
    monkeypatch.setattr(warm_up, "LATE_S", 600.0)
    clock, over, looks, is_held_up = ManualClock(), asyncio.Event(), asyncio.Semaphore(0), True

    def look() -> bool:
        clock.advance(0.01)
        looks.release()
        return is_held_up

    warming = WarmUp(over.set, clock, look)
    warming.begin([A])
    for _ in range(3):
        await looks.acquire()
    assert not warming.is_over

    is_held_up = False

    await over.wait()


async def test_the_first_prompt_of_a_new_gateway_goes_where_it_is_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PAUSE_S", "ENOUGH_AFTER_S", "LIMIT_S"):  # however long the replicas take
        monkeypatch.setattr(warm_up, name, 100.0)
    async with running_fleet(prefill=0, decode=4) as fleet:
        for number in range(4):
            await fleet.ask([number, *PROMPT])
        new = ReplicaDispatcher(Routing(Cost()), max_waiting=9, no_replica_grace_s=60.0)
        await new.fleet.apply(fleet.registry.membership())
        try:
            cached: list[int] = []
            for number in range(4):
                generation = Generation(
                    request_id=new_request_id(), prompt=(number, *PROMPT), sampling=GREEDY
                )
                running = await new.start(generation)
                async for _ in running:
                    pass
                await running.stop(12)
                cached.append(running.receipt.cached_tokens)
        finally:
            await new.fleet.close()

        assert cached == [100] * 4
