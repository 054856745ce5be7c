"""The thread that owns an engine: order, sleep, failure and the end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from tests.engine.thread_harness import Harness, fail_with, make_request, wait_for

from baton.core.clock import ManualClock
from baton.core.errors import EngineFailed
from baton.core.kv_pool import Holder, HolderKind
from baton.core.owner_thread import OwnerThread
from baton.core.step_times import StepWork
from baton.engine.engine_thread import _Command
from baton.engine.passes.echo import echo_output
from baton.engine.request.request import Request
from baton.engine.request.step_report import StepReport
from baton.engine.step_hooks import ALONE, StepHooks


async def test_when_all_of_a_pass_are_refused_those_behind_them_run_without_being_asked() -> None:
    refused, behind = (make_request(name, max_tokens=4) for name in ("refused", "behind"))

    def refuse(request: Request) -> None:
        if request is refused:
            harness.engine.abort(request.request_id)

    hooks = StepHooks(on_scheduled=refuse)
    async with Harness(num_blocks=4, hooks=hooks) as harness:  # enough for one

        def add() -> None:
            harness.engine.add(refused)
            harness.engine.add(behind)

        await harness.thread.call(add)

        async with asyncio.timeout(60):
            await harness.finished(behind)


async def test_requests_handed_in_from_outside_are_answered() -> None:
    async with Harness() as harness:
        owner: OwnerThread = harness.thread
        request = make_request()

        await owner.call(lambda: harness.engine.add(request))
        await harness.finished(request)

        assert request.output == echo_output(range(11), 8, 256)


@pytest.mark.parametrize("comes_before_it_sleeps", [False, True])
async def test_a_step_takes_from_the_end_of_the_one_before_but_idleness_is_no_step(
    comes_before_it_sleeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, has_come = ManualClock(), threading.Event()
    hooks = StepHooks(on_layer=lambda layer, chunks: clock.advance(0.03))
    async with Harness(clock=clock, hooks=hooks) as harness:
        report, fit = harness.thread._on_step, harness.thread.step_fit
        took, add = list[float](), fit.add

        def add_too(work: StepWork, seconds: float, now: float) -> None:
            took.append(seconds)
            add(work, seconds, now)

        monkeypatch.setattr(fit, "add", add_too)

        def report_and_tarry(step: StepReport) -> None:
            report(step)
            if any(output.is_finished for output in step.outputs):
                has_come.wait(30)

        if comes_before_it_sleeps:
            harness.thread._on_step = report_and_tarry
        for name in ("first", "second"):
            request = make_request(name, max_tokens=9)
            added = harness.thread.call(partial(harness.engine.add, request))
            if name == "second":
                has_come.set()
            await added
            await harness.finished(request)
            clock.advance(100.0)

        times = fit.times(clock())

    assert took == pytest.approx([0.03] * 18)
    assert (times.num_prompt_steps, times.num_decode_steps) == (2, 16)
    assert times.decode_s(1, 15) == pytest.approx(0.03, rel=0.02)
    assert times.age_s == pytest.approx(100.0)


async def test_commands_run_in_order_on_the_engines_thread() -> None:
    async with Harness() as harness:
        order: list[int] = []
        names: set[str] = set()

        def command(number: int) -> Callable[[], None]:
            def function() -> None:
                order.append(number)
                names.add(threading.current_thread().name)

            return function

        for number in range(0, 20, 2):
            harness.thread.post(command(number))
            last = harness.thread.call(command(number + 1))
        await last

        assert order == list(range(20))
        assert names == {"baton-engine"}


async def test_commands_run_between_steps_of_a_busy_engine() -> None:
    is_busy, is_asked, num_passes = threading.Event(), threading.Event(), 0

    def pass_on(layer: int, chunks: object) -> None:
        nonlocal num_passes
        num_passes += 1
        if num_passes == 2:
            is_busy.set()
            is_asked.wait(30)

    async with Harness(hooks=StepHooks(on_layer=pass_on)) as harness:
        request = make_request(max_tokens=200)
        await harness.thread.call(lambda: harness.engine.add(request))
        await asyncio.to_thread(is_busy.wait)

        aborting = harness.thread.call(lambda: harness.engine.abort("r"))
        is_asked.set()

        assert await aborting is request
        assert num_passes == 2
        assert await harness.thread.call(lambda: harness.engine.pool.num_in_use) == 0


async def test_an_exception_in_a_call_concerns_only_its_caller() -> None:
    async with Harness() as harness:
        with pytest.raises(KeyError, match="mine"):
            await harness.thread.call(fail_with(KeyError("mine")))

        assert await harness.thread.call(lambda: 1) == 1
        assert harness.thread.failure is None


async def test_a_command_runs_even_if_nobody_awaits_it_any_more() -> None:
    async with Harness() as harness:
        gate, ran = threading.Event(), threading.Event()
        harness.thread.post(wait_for(gate))
        task = asyncio.ensure_future(harness.thread.call(ran.set))
        await asyncio.sleep(0)
        task.cancel()
        gate.set()

        await harness.thread.call(lambda: None)

        assert task.cancelled()
        assert ran.is_set()


@pytest.mark.parametrize("culprit", ["step", "on_step", "post"])
async def test_a_failure_ends_the_engine_and_is_told_to_everyone(culprit: str) -> None:
    error = RuntimeError("broken")
    hooks = StepHooks(on_layer=lambda layer, chunks: fail_with(error)())
    async with Harness(hooks=hooks if culprit == "step" else ALONE) as harness:
        if culprit == "on_step":
            harness.thread._on_step = lambda report: fail_with(error)()
        elif culprit == "post":
            harness.thread.post(fail_with(error))
        with_others = [harness.thread.call(lambda: harness.engine.add(make_request()))]
        await harness.failed.wait()

        with pytest.raises(EngineFailed, match="has failed") as refusal:
            await harness.thread.call(lambda: None)
        harness.thread.post(lambda: None)

        assert refusal.value.__cause__ is error is harness.thread.failure
        assert harness.failures == [error]
        assert not harness.thread.is_progressing(now=0, limit_s=1e9)
        await asyncio.gather(*with_others, return_exceptions=True)


async def test_commands_behind_a_failure_are_refused_not_forgotten() -> None:
    async with Harness() as harness:
        gate = threading.Event()
        harness.thread.post(wait_for(gate))
        harness.thread.post(fail_with(RuntimeError("broken")))
        behind = harness.thread.call(lambda: 1)
        gate.set()

        with pytest.raises(EngineFailed):
            await behind


async def test_that_the_engine_failed_is_told_before_any_command_is_refused_for_it() -> None:
    """Else who is refused would take it for a living one, and come again."""
    async with Harness() as harness:
        gate, told = threading.Event(), list[str]()
        harness.thread._on_failure = lambda failure: told.append("failed")
        harness.thread.post(wait_for(gate))
        harness.thread.post(fail_with(RuntimeError("broken")))
        behind = _Command(lambda: None, lambda refusal: told.append("refused"))
        harness.thread._hand_in(behind, harness.thread._mailbox)
        gate.set()

        with pytest.raises(EngineFailed):
            await harness.thread.call(lambda: None)
        assert told == ["failed", "refused"]


async def test_stop_runs_what_was_handed_in_and_refuses_what_comes_later() -> None:
    harness = Harness()
    async with harness:
        before = harness.thread.call(lambda: "done")
    await asyncio.to_thread(harness.thread.stop, 30)

    assert await before == "done"
    with pytest.raises(EngineFailed, match="has stopped"):
        await harness.thread.call(lambda: None)
    assert harness.failures == []


async def test_a_thread_that_never_started_can_be_stopped() -> None:
    harness = Harness()
    waiting = harness.thread.call(lambda: None)

    harness.thread.stop(30)

    with pytest.raises(EngineFailed):
        await waiting


async def test_a_thread_that_does_not_stop_in_time_says_so() -> None:
    async with Harness() as harness:
        gate = threading.Event()
        harness.thread.post(wait_for(gate))

        with pytest.raises(EngineFailed, match="did not stop within 0 s"):
            harness.thread.stop(0)
        gate.set()


async def test_a_stalled_engine_sleeps_and_is_woken_by_the_command_that_frees_blocks() -> None:
    """A lease holds blocks that the only request needs, and no step can change that."""
    clock = ManualClock()
    async with Harness(num_blocks=4, clock=clock) as harness:
        lease, request = Holder(HolderKind.LEASE, "incoming"), make_request(max_tokens=2)
        await harness.thread.call(lambda: harness.engine.pool.reserve(lease, range(100, 108), b""))
        await harness.thread.call(lambda: harness.engine.add(request))
        assert (await harness.reports.get()).is_stalled
        clock.advance(100)

        assert harness.reports.empty()
        assert not harness.thread.is_progressing(clock(), limit_s=10)
        await harness.thread.call(lambda: harness.engine.pool.release(lease))
        await harness.finished(request)


async def test_idleness_counts_as_progress_and_a_step_that_hangs_does_not() -> None:
    clock, gate, entered = ManualClock(), threading.Event(), threading.Event()

    def hang(layer: int, chunks: object) -> None:
        entered.set()
        gate.wait(30)

    async with Harness(clock=clock, hooks=StepHooks(on_layer=hang)) as harness:
        await harness.thread.call(lambda: None)
        while not harness.thread._is_idle:
            await asyncio.sleep(0)
        clock.advance(100)
        assert harness.thread.is_progressing(clock(), limit_s=10)

        harness.thread.post(lambda: harness.engine.add(make_request(max_tokens=1)))
        await asyncio.to_thread(entered.wait, 30)
        assert harness.thread.is_progressing(clock(), limit_s=10)
        clock.advance(11)
        assert not harness.thread.is_progressing(clock(), limit_s=10)
        gate.set()


def in_layer(wanted: int, function: Callable[[], None]) -> StepHooks:
    """Hooks that run `function` in the middle of each pass, after one layer."""

    def on_layer(layer: int, chunks: object) -> None:
        if layer == wanted:
            function()

    return StepHooks(on_layer=on_layer)


async def test_what_is_interjected_runs_between_two_layers_and_a_call_after_the_step() -> None:
    in_first, may_go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def on_layer(layer: int, chunks: object) -> None:
        order.append(f"layer {layer}")
        if layer == 0:
            in_first.set()
            may_go_on.wait(30)

    async with Harness(num_layers=3, hooks=StepHooks(on_layer=on_layer)) as harness:
        request = make_request(max_tokens=1)
        harness.thread.post(lambda: harness.engine.add(request))
        await asyncio.to_thread(in_first.wait, 30)

        called = harness.thread.call(lambda: order.append("called"))
        said = [
            harness.thread.interject(lambda word=word: order.append(word))  # type: ignore[misc]
            for word in ("first", "second")
        ]
        may_go_on.set()
        await asyncio.gather(called, *said)

        assert order == ["layer 0", "first", "second", "layer 1", "layer 2", "called"]


async def test_an_exception_in_what_is_interjected_concerns_neither_the_step_nor_its_like() -> None:
    gate, request = threading.Event(), make_request()
    async with Harness(num_layers=2, hooks=in_layer(0, wait_for(gate))) as harness:
        added = harness.thread.call(lambda: harness.engine.add(request))
        await added

        failing = harness.thread.interject(fail_with(KeyError("mine")))
        behind = harness.thread.interject(lambda: 1)
        gate.set()

        with pytest.raises(KeyError, match="mine"):
            await failing
        assert await behind == 1
        await harness.finished(request)
        assert request.output == echo_output(range(11), 8, 256)


async def test_an_idle_engine_is_woken_by_what_is_interjected() -> None:
    async with Harness() as harness:
        await harness.thread.call(lambda: None)
        while not harness.thread._is_idle:
            await asyncio.sleep(0)

        assert await harness.thread.interject(lambda: "soon") == "soon"


async def test_what_is_interjected_is_refused_once_a_step_has_failed() -> None:
    entered, gate = threading.Event(), threading.Event()

    def fail_in_the_middle() -> None:
        entered.set()
        gate.wait(30)
        raise RuntimeError("broken")

    async with Harness(num_layers=2, hooks=in_layer(1, fail_in_the_middle)) as harness:
        harness.thread.post(lambda: harness.engine.add(make_request()))
        await asyncio.to_thread(entered.wait, 30)

        waiting = harness.thread.interject(lambda: 1)
        gate.set()

        with pytest.raises(EngineFailed, match="has failed"):
            await waiting
        with pytest.raises(EngineFailed, match="has failed"):
            await harness.thread.interject(lambda: 1)


async def test_blocks_freed_and_taken_in_the_middle_of_a_step_do_not_disturb_it() -> None:
    """Leases come and go between its layers, in a pool that is nearly full."""
    request = make_request(max_tokens=16)
    leases = [Holder(HolderKind.LEASE, f"lease {number}") for number in range(3)]
    num_taken = 0

    def come_and_go(layer: int, chunks: object) -> None:
        nonlocal num_taken
        pool = harness.engine.pool
        pool.release(leases[0])
        leases.append(leases.pop(0))
        taken = pool.reserve(leases[-1], range(200 + layer, 204 + layer), b"")
        if taken is not None:
            num_taken += 1
            for lent_layer in range(4):
                data = memoryview(bytes([255]) * pool.layout.layer_block_bytes)
                pool.write(leases[-1], 0, lent_layer, data)

    hooks = StepHooks(on_layer=come_and_go)
    async with Harness(num_blocks=10, num_layers=4, hooks=hooks) as harness:
        await harness.thread.call(lambda: harness.engine.add(request))
        await harness.finished(request)

        assert request.output == echo_output(range(11), 16, 256)
        assert num_taken > 16


async def test_whoever_keeps_reports_back_is_told_before_a_command_runs() -> None:
    async with Harness() as harness:
        order: list[str] = []
        harness.before_commands = lambda: order.append("flush")

        await harness.thread.call(lambda: order.append("command"))

        assert order == ["flush", "command"]


class Company:
    """Others who compute as many passes as they are told, and who count how often they are met."""

    tick_s = 0.001

    def __init__(self) -> None:
        self.num_passes = 0
        self.num_met = 0
        self.met = threading.Event()

    def keep_pace(self) -> bool:
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
    harness.engine.pace = company
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
    harness.engine.pace = company
    async with harness:
        for _ in range(20):
            await harness.thread.call(lambda: None)

    assert company.num_met <= 1


async def test_an_engine_that_cannot_go_on_by_itself_keeps_pace_without_stepping() -> None:
    harness, company = Harness(num_blocks=4), Company()
    harness.engine.pace = company
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
    harness.engine.pace = company
    company.num_passes = 10**9  # it never sleeps
    async with harness:
        clock.advance(1000)
        await company.is_met()
        await company.is_met()

        harness.thread.check_health(limit_s=10)
