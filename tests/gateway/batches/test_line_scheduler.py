"""Lines run in the room that others leave, and make room for who waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from baton.core.clock import ManualClock
from baton.gateway.batches import line_scheduler
from baton.gateway.batches.line_scheduler import BESIDE_S, PATIENCE_S, LinePreempted, LineScheduler
from baton.gateway.requests.generations.generation import DecodeRoom


def room_of(*, places: int = 20, others: int = 0, waiting: int = 0) -> DecodeRoom:
    return DecodeRoom(num_places=places, num_taken=others, num_awaited=others, num_waiting=waiting)


class Lines:
    """Lines of a scheduler, each of which runs until it is ended."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.room = room_of()
        self.scheduler = LineScheduler(
            self._seen_room, max_running=6, max_beside=2, max_share=0.5, clock=self.clock
        )
        self.num_seen = 0
        """How often the scheduler has asked for the room."""
        self.begun: list[int] = []
        self.given_up: list[int] = []
        self.ends = asyncio.Event()
        self.may_clean_up = asyncio.Event()
        self.may_clean_up.set()
        self.num_cleaned_up = 0

    async def ask(self, number: int) -> None:
        try:
            await self.scheduler.run(lambda: self._line(number))
        except LinePreempted:
            self.given_up.append(number)

    def _seen_room(self) -> DecodeRoom:
        self.num_seen += 1
        return self.room

    async def _line(self, number: int) -> None:
        self.begun.append(number)
        try:
            await self.ends.wait()
        finally:
            await self.may_clean_up.wait()
            self.num_cleaned_up += 1

    async def settle(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0.001)


@asynccontextmanager
async def lines(num: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lines]:
    monkeypatch.setattr(line_scheduler, "LOOK_S", 0.001)
    made = Lines()
    watching = asyncio.create_task(made.scheduler.watch())
    asking = [asyncio.create_task(made.ask(number)) for number in range(num)]
    try:
        yield made
    finally:
        for task in (watching, *asking):
            task.cancel()
        await asyncio.gather(watching, *asking, return_exceptions=True)


@pytest.mark.parametrize(
    ("room", "num_begun"),
    [
        (room_of(), 6),  # max_running
        (room_of(places=8), 4),  # the share
        (room_of(places=1), 1),
        (room_of(others=1), 2),  # max_beside
        (room_of(others=9), 1),  # the rest of the share
        (room_of(waiting=1), 0),
        (room_of(places=0), 0),
    ],
)
async def test_so_many_lines_begin(
    room: DecodeRoom, num_begun: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lines(0, monkeypatch) as made:
        made.room = room
        await made.settle()
        asking = [asyncio.create_task(made.ask(number)) for number in range(9)]
        await made.settle()

        assert made.begun == list(range(num_begun))
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def test_a_pace_at_rest_sees_who_else_is_there_when_lines_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(line_scheduler, "REST_LOOK_S", 60.0)
    async with lines(0, monkeypatch) as made:
        await made.settle()
        num_seen = made.num_seen
        await asyncio.sleep(0.02)
        assert made.num_seen == num_seen  # nobody looks while there are no lines
        made.room = room_of(others=1)
        asking = [asyncio.create_task(made.ask(number)) for number in range(9)]
        await made.settle()
        assert made.begun == [0, 1]  # max_beside
        made.room = room_of()
        made.clock.advance(BESIDE_S)
        await made.settle()
        assert made.begun == [0, 1, 2, 3, 4, 5]  # looked at again, though nothing has ended
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def test_the_youngest_lines_make_room_for_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lines(6, monkeypatch) as made:
        await made.settle()
        made.room = replace(made.room, num_waiting=2)
        await made.settle()
        assert made.given_up == []
        made.may_clean_up.clear()
        for _ in range(2):  # it takes long
            made.clock.advance(PATIENCE_S)
            await made.settle()
        made.may_clean_up.set()
        await made.settle()
        assert made.given_up == [5, 4]
        assert made.num_cleaned_up == 2
        made.room = replace(made.room, num_waiting=0)
        made.ends.set()
        again = asyncio.create_task(made.ask(6))
        made.clock.advance(BESIDE_S)
        await asyncio.wait_for(again, 120)

    assert made.begun == [0, 1, 2, 3, 4, 5, 6]
