"""Waiting in line for a place. The room is a counter; a place is the caller's name."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from baton.core.clock import ManualClock
from baton.core.errors import Overloaded
from baton.gateway.fleet.placement.admission import AdmissionQueue
from baton.gateway.fleet.placement.admission_line import AdmissionTicket


class Room:
    """So many places, and a line before the door."""

    def __init__(self, num_free: int = 0, *, max_waiting: int = 10) -> None:
        self.num_free = num_free
        self.clock = ManualClock()
        self.queue: AdmissionQueue[str] = AdmissionQueue(max_waiting, {"heavy": 2}, self.clock)
        self.inside: list[str] = []
        self.broken: set[str] = set()

    def try_place(self, name: str) -> str | None:
        if name in self.broken:
            raise RuntimeError(f"{name} cannot be placed")
        if not self.num_free:
            return None
        self.num_free -= 1
        self.inside.append(name)
        return name

    def leave(self, name: str) -> None:
        self.inside.remove(name)
        self.num_free += 1
        self.queue.wake()

    async def enter(
        self,
        name: str,
        *,
        is_retry: bool = False,
        priority: int = 0,
        tenant: str = "",
        max_wait_s: float | None = None,
    ) -> str:
        turn = AdmissionTicket(
            priority=priority, tenant=tenant, is_retry=is_retry, max_wait_s=max_wait_s
        )

        def try_place() -> str | None:
            place = self.try_place(name)
            if place is not None:
                self.queue.charge(tenant, 1)
            return place

        return await self.queue.place(try_place, self.leave, turn)

    def arrive(self, name: str, **turn: Any) -> asyncio.Task[str]:
        return asyncio.create_task(self.enter(name, **turn))

    def free(self, num_places: int) -> None:
        self.num_free += num_places
        self.queue.wake()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_finds_room_need_not_wait() -> None:
    room = Room(1)

    assert await room.arrive("a") == "a"
    assert len(room.queue) == 0


async def test_places_go_to_those_who_wait_in_the_order_they_came() -> None:
    room = Room()
    for name in "abcd":
        room.arrive(name)
        await settle()

    room.free(2)
    await settle()

    assert room.inside == ["a", "b"]
    assert len(room.queue) == 2


async def test_a_newcomer_does_not_overtake_those_who_wait() -> None:
    room = Room()
    room.arrive("first")
    await settle()

    room.num_free = 1  # free, but nobody has been told yet
    room.arrive("newcomer")
    await settle()
    room.queue.wake()

    assert room.inside == ["first"]


async def test_smaller_priorities_go_first_and_equals_in_the_order_they_came() -> None:
    room = Room()
    for name, priority in (("a", 5), ("b", 0), ("c", 5), ("d", -3), ("e", 0)):
        room.arrive(name, priority=priority)
        await settle()

    room.free(5)
    await settle()

    assert room.inside == ["d", "b", "e", "a", "c"]


async def test_a_newcomer_overtakes_those_who_wait_only_with_a_smaller_priority() -> None:
    room = Room()
    room.arrive("waiting")
    await settle()
    room.num_free = 1

    assert await room.arrive("urgent", priority=-1) == "urgent"


async def test_what_was_served_in_part_goes_before_all_that_was_not() -> None:
    room = Room()
    room.arrive("urgent", priority=-10)
    room.arrive("retry", priority=1, is_retry=True)
    await settle()

    room.free(2)
    await settle()

    assert room.inside == ["retry", "urgent"]


async def test_too_long_a_line_is_overload_at_once() -> None:
    room = Room(max_waiting=2)
    room.arrive("a")
    room.arrive("b")
    await settle()

    with pytest.raises(Overloaded, match="2 requests already wait"):
        await room.arrive("c")

    room.free(3)
    await settle()
    assert room.inside == ["a", "b"]


async def test_a_retry_goes_to_the_front_even_of_a_line_that_is_full() -> None:
    room = Room(max_waiting=1)
    room.arrive("newcomer")
    await settle()
    room.arrive("retry", is_retry=True)
    await settle()

    room.free(1)

    assert room.inside == ["retry"]


async def test_a_retry_takes_a_free_place_before_those_who_wait() -> None:
    room = Room()
    room.arrive("waiting")
    await settle()
    room.num_free = 1

    assert await room.arrive("retry", is_retry=True) == "retry"


async def test_who_is_cancelled_leaves_the_line() -> None:
    room = Room()
    leaving, staying = room.arrive("leaving"), room.arrive("staying")
    await settle()

    leaving.cancel()
    await settle()
    room.free(1)

    assert await staying == "staying"
    assert len(room.queue) == 0


async def test_a_place_that_came_just_as_its_caller_was_cancelled_goes_to_the_next() -> None:
    room = Room()
    cancelled, following = room.arrive("cancelled"), room.arrive("following")
    await settle()

    room.free(1)
    cancelled.cancel()
    with suppress(asyncio.CancelledError):
        await cancelled

    assert cancelled.cancelled()
    assert await following == "following"
    assert room.inside == ["following"]


async def test_a_caller_cancelled_just_before_the_place_came_is_passed_over() -> None:
    room = Room()
    cancelled, following = room.arrive("cancelled"), room.arrive("following")
    await settle()

    cancelled.cancel()
    room.free(1)

    assert await following == "following"
    assert cancelled.cancelled()
    assert room.num_free == 0


async def test_who_gives_up_after_a_while_leaves_the_line() -> None:
    room = Room()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await room.enter("a")

    assert len(room.queue) == 0


async def test_one_who_cannot_be_placed_at_all_does_not_hold_up_the_others() -> None:
    room = Room()
    broken, following = room.arrive("broken"), room.arrive("following")
    await settle()
    room.broken.add("broken")

    room.free(1)

    with pytest.raises(RuntimeError, match="broken cannot be placed"):
        await broken
    assert await following == "following"


async def test_many_who_come_leave_and_give_up_never_lose_a_place() -> None:
    room = Room(3, max_waiting=100)

    async def visit(number: int) -> None:
        async with asyncio.timeout(0.001 if number % 3 == 0 else None):
            name = await room.enter(str(number), is_retry=number % 7 == 0, priority=number % 5)
        await asyncio.sleep(0.001 * (number % 2))
        room.leave(name)

    outcomes = await asyncio.gather(*(visit(n) for n in range(90)), return_exceptions=True)

    assert {type(outcome) for outcome in outcomes} <= {type(None), TimeoutError}
    assert room.inside == []
    assert room.num_free == 3
    assert len(room.queue) == 0


async def test_tenants_are_served_in_rounds_however_many_each_has_in_line() -> None:
    room = Room(0)
    line = [*(f"a{n}" for n in range(4)), "b0", "b1", "c0"]
    arrivals = [room.arrive(name, tenant=name[0]) for name in line]
    await settle()

    for _ in line:
        room.free(1)
        await settle()

    assert room.inside == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]
    await asyncio.gather(*arrivals)


async def test_whoever_comes_late_does_not_wait_for_a_flood_that_came_before() -> None:
    room = Room(0)
    arrivals = [room.arrive(f"a{n}", tenant="a") for n in range(6)]
    await settle()
    room.free(2)
    await settle()

    arrivals.append(room.arrive("b0", tenant="b"))
    await settle()
    room.free(2)
    await settle()

    assert room.inside == ["a0", "a1", "b0", "a2"]
    room.free(5)
    await asyncio.gather(*arrivals)


async def test_a_tenants_flood_at_one_priority_does_not_delay_it_at_another() -> None:
    room = Room(0)
    arrivals = [room.arrive(f"a{n}", tenant="a", priority=5) for n in range(3)]
    arrivals += [room.arrive("b", tenant="b"), room.arrive("a", tenant="a")]
    await settle()

    room.free(2)
    await settle()

    assert room.inside == ["b", "a"]
    room.free(3)
    await asyncio.gather(*arrivals)


async def test_when_no_more_may_wait_the_longest_line_gives_up_its_last() -> None:
    room = Room(0, max_waiting=4)
    flood = [room.arrive(f"a{n}", tenant="a") for n in range(4)]
    await settle()

    other = room.arrive("b", tenant="b")
    await settle()

    with pytest.raises(Overloaded):
        await flood[3]
    with pytest.raises(Overloaded):
        await room.enter("a4", tenant="a")
    room.free(4)
    assert await asyncio.gather(other, *flood[:3])
    assert room.inside == ["a0", "b", "a1", "a2"]


async def test_lines_of_equal_length_give_up_nobody() -> None:
    room = Room(0, max_waiting=2)
    waiting = [room.arrive(name, tenant=name) for name in ("a", "b")]
    await settle()

    with pytest.raises(Overloaded):
        await room.enter("c", tenant="c")
    room.free(2)
    await asyncio.gather(*waiting)


async def test_who_is_refused_hears_when_its_place_would_have_come() -> None:
    room = Room(max_waiting=10)
    waiting = [room.arrive(f"a{n}") for n in range(10)]
    await settle()
    for _ in range(4):
        room.clock.advance(3)
        room.free(1)
        waiting.append(room.arrive("more"))
        await settle()

    with pytest.raises(Overloaded) as refused:
        await room.enter("one too many")

    assert refused.value.retry_after_s == pytest.approx(3 * 11)
    room.free(10)
    await asyncio.gather(*waiting)


async def test_who_would_wait_longer_than_it_may_is_refused_at_once() -> None:
    room = Room(max_waiting=100)
    waiting = [room.arrive(f"a{n}") for n in range(20)]
    await settle()
    for _ in range(8):
        room.clock.advance(2)
        room.free(1)

    waiting.append(room.arrive("patient", max_wait_s=26.1))
    await settle()
    with pytest.raises(Overloaded, match="would come in 28") as refused:
        await room.enter("impatient", max_wait_s=20)

    assert refused.value.retry_after_s == pytest.approx(8)
    room.free(13)
    await asyncio.gather(*waiting)


async def test_after_an_incident_and_a_rest_those_who_would_be_served_soon_are_let_wait() -> None:
    room = Room(max_waiting=100)
    incident = [room.arrive(f"a{n}") for n in range(8)]
    await settle()
    for _ in range(8):
        room.clock.advance(20)
        room.free(1)
    await asyncio.gather(*incident)

    first = room.arrive("the first in line tells the pace", max_wait_s=5)
    await settle()
    with pytest.raises(Overloaded):
        await room.enter("at once", max_wait_s=5)
    room.free(1)
    await first
    room.clock.advance(600)
    later = [room.arrive(f"b{n}", max_wait_s=5) for n in range(3)]
    await settle()

    room.free(3)
    await asyncio.gather(*later)


async def test_the_place_that_comes_to_a_light_tenant_is_not_behind_a_heavy_ones_flood() -> None:
    room = Room(max_waiting=4)
    flood = [room.arrive(f"h{n}", tenant="heavy") for n in range(4)]
    light = room.arrive("l0", tenant="light")
    await settle()

    with pytest.raises(Overloaded):
        await flood[3]
    room.free(4)
    assert await asyncio.gather(light, *flood[:3])
    assert room.inside == ["h0", "l0", "h1", "h2"]


async def test_who_needs_not_what_the_first_waits_for_goes_past_it_or_is_asked_but_once() -> None:
    has_side_room, asked = False, list[str]()
    queue: AdmissionQueue[str] = AdmissionQueue(10, {}, lets_pass=lambda: has_side_room)

    def arrive(name: str) -> asyncio.Task[str]:
        def try_past() -> str | None:
            asked.append(name)
            return name if name.startswith("short") else None

        given_back = list[str]().append
        return asyncio.create_task(
            queue.place(lambda: None, given_back, AdmissionTicket(), try_past)
        )

    waiting = [arrive(name) for name in ("long", "short 1", "long 2")]
    await settle()
    queue.wake()
    assert not asked and len(queue) == 3

    has_side_room = True
    queue.wake()
    assert await waiting[1] == "short 1"
    assert await arrive("short 2") == "short 2"
    queue.wake()
    assert asked == ["long", "short 1", "long 2", "short 2"] and len(queue) == 2
    for task in waiting:
        task.cancel()
