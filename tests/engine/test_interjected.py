"""What is interjected runs between two layers of a step, which it does not disturb."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from tests.engine.thread_harness import Harness, fail_with, make_request, wait_for

from baton.core.errors import EngineFailed
from baton.core.kv_pool import Holder, HolderKind
from baton.engine.passes.echo import echo_output
from baton.engine.step_hooks import StepHooks


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
