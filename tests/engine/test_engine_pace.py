"""An engine that keeps pace with others, with and without work of its own."""

from __future__ import annotations

import asyncio
import threading
import time

from tests.engine.thread_harness import Harness, make_request

from baton.core.clock import ManualClock
from baton.core.kv_pool import Holder, HolderKind
from baton.engine.passes.echo import echo_output


class Company:
    """Others who compute as many passes as they are told, and who count how often they are met."""

    tick_s = 0.001

    def __init__(self) -> None:
        self.num_passes = 0
        self.num_met = 0
        self.met = threading.Event()

    def join_pass(self) -> bool:
        self.num_met += 1
        self.met.set()
        time.sleep(0.0005)  # where others would be waited for
        has_pass = self.num_passes > 0
        self.num_passes -= has_pass
        return has_pass

    async def is_met(self) -> None:
        self.met.clear()
        assert await asyncio.to_thread(self.met.wait, 30)


async def test_an_engine_without_work_keeps_pace_with_others_and_hears_commands() -> None:
    harness, company = Harness(), Company()
    harness.engine.lockstep = company
    company.num_passes = 50
    async with harness:
        while company.num_passes:
            await company.is_met()
        request = make_request()
        await harness.thread.call(lambda: harness.engine.add(request))
        await harness.finished(request)
        await company.is_met()

    assert request.output == echo_output(range(11), 8, 256)


async def test_commands_between_two_ticks_wait_for_nobody() -> None:
    harness, company = Harness(), Company()
    company.tick_s = 3600.0
    harness.engine.lockstep = company
    async with harness:
        for _ in range(20):
            await harness.thread.call(lambda: None)

    assert company.num_met <= 1


async def test_an_engine_that_cannot_go_on_by_itself_keeps_pace_without_stepping() -> None:
    harness, company = Harness(num_blocks=4), Company()
    harness.engine.lockstep = company
    lease = Holder(HolderKind.LEASE, "handoff")
    async with harness:
        await harness.thread.call(lambda: harness.engine.pool.reserve(lease, range(13), b""))
        request = make_request(max_tokens=4)
        await harness.thread.call(lambda: harness.engine.add(request))
        assert (await harness.reports.get()).is_stalled
        for _ in range(5):
            await company.is_met()

        assert harness.reports.empty()
        await harness.thread.call(lambda: harness.engine.pool.release(lease))
        await harness.finished(request)


async def test_keeping_pace_is_progress_for_who_has_nothing_to_do() -> None:
    clock, company = ManualClock(), Company()
    harness = Harness(clock=clock)
    harness.engine.lockstep = company
    company.num_passes = 10**9  # it never sleeps
    async with harness:
        clock.advance(1000)
        await company.is_met()
        await company.is_met()

        harness.thread.check_health(limit_s=10)
