"""The thread that owns an engine: order, sleep, failure and the end."""

from __future__ import annotations

import asyncio
import threading
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


async def test_whoever_keeps_reports_back_is_told_before_a_command_runs() -> None:
    async with Harness() as harness:
        order: list[str] = []
        harness.before_commands = lambda: order.append("flush")

        await harness.thread.call(lambda: order.append("command"))

        assert order == ["flush", "command"]
