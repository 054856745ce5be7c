"""A replica that is told to drain, until its own word of it arrives."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
from tests.gateway.fleet.asking import ask
from tests.gateway.fleet.scripted_replica import ScriptedReplica, answers, dispatching_to, until

from baton.core.clock import ManualClock
from baton.gateway.fleet.links.replica_commands import OLD_WORDS_S
from baton.proto import replica_pb2 as pb


class Slow(ScriptedReplica):
    """It does as it is told, and is long in saying so."""

    may_answer = asyncio.Event()
    may_answer.set()

    async def Drain(
        self, request: pb.DrainRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.DrainReply:
        await self.may_answer.wait()
        return pb.DrainReply()

    async def Undrain(
        self, request: pb.DrainRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.DrainReply:
        return pb.DrainReply()


async def test_nothing_is_placed_on_a_replica_that_was_told_to_drain() -> None:
    one, other = Slow("one", answers(1)), Slow("other", answers(2))
    async with dispatching_to(one, other) as dispatcher:
        answered = []
        for leaving in ("one", "other"):
            await dispatcher.drain(leaving, is_forced=False)
            answered += (await ask(dispatcher, f"not on {leaving}"))[0]
            await dispatcher.undrain(leaving)

        assert answered == [2, 1]


async def test_what_was_over_at_once_holds_a_replica_no_longer_than_its_next_words() -> None:
    clock, one, other = ManualClock(), Slow("one", answers(1)), Slow("other", answers(2))
    async with dispatching_to(one, other, clock=clock) as dispatcher:
        link = dispatcher.fleet.link(one.info.epoch)

        async def say(after_s: float) -> None:
            clock.advance(after_s)
            one.say_capacity()
            await until(lambda: link.capacity_report.received_at_s == clock())

        await dispatcher.drain("one", is_forced=False)
        await say(OLD_WORDS_S)
        assert one.info.epoch not in dispatcher.fleet.open_decode
        await say(0.01)
        assert one.info.epoch in dispatcher.fleet.open_decode

        await dispatcher.drain("other", is_forced=False)
        assert (await ask(dispatcher))[0] == [1]


async def test_a_report_from_before_a_late_answer_ends_no_command() -> None:
    clock, one, other = ManualClock(), Slow("one", answers(1)), Slow("other", answers(2))
    one.may_answer = asyncio.Event()
    async with dispatching_to(one, other, clock=clock) as dispatcher:
        link = dispatcher.fleet.link(one.info.epoch)

        async def say(after_s: float) -> None:
            clock.advance(after_s)
            one.say_capacity()
            await until(lambda: link.capacity_report.received_at_s == clock())

        draining = asyncio.create_task(dispatcher.drain("one", is_forced=False))
        await until(lambda: one.info.epoch not in dispatcher.fleet.open_decode)
        await say(OLD_WORDS_S + 0.01)
        assert one.info.epoch not in dispatcher.fleet.open_decode

        one.may_answer.set()
        await draining
        await say(OLD_WORDS_S)
        assert one.info.epoch not in dispatcher.fleet.open_decode
        await say(0.01)
        assert one.info.epoch in dispatcher.fleet.open_decode
