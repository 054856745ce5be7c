"""Replicas whose process stands still, as by kill -STOP: connections stay open, nobody answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.gateway.fleet.scripted_replica import until
from tests.in_process_fleet import GREEDY, VOCAB_SIZE, Fleet, running_fleet
from tests.services.replica_process import ReplicaProcess, replica_process

from baton.core.replicas import Role
from baton.engine.passes.echo import echo_output
from baton.proto.pulse import PingTiming
from baton.router.cache.prompt_names import PromptNames

pytestmark = pytest.mark.wide  # processes that import torch

PROMPT = list(range(3, 83))


async def meet(fleet: Fleet, process: ReplicaProcess) -> None:
    fleet.registry.heartbeat(process.info)
    await fleet.sync()
    known = fleet.dispatcher.fleet

    def is_met() -> bool:
        decode = {link.info.epoch for link in known.connected}
        return process.info.epoch in decode | {link.info.epoch for link in known.lending}

    await until(is_met)


async def nothing_is_held(process: ReplicaProcess) -> None:
    async with asyncio.timeout(60):
        while await process.num_held():
            await asyncio.sleep(0.02)


async def test_a_prompt_in_flight_at_a_stopped_prefill_replica_is_computed_elsewhere() -> None:
    with replica_process(Role.PREFILL, step_s=2.0) as process:
        async with running_fleet(prefill=0, ping_timing=PingTiming()) as fleet:
            await meet(fleet, process)
            candidate = fleet.dispatcher.fleet.loads.candidate(process.info.epoch)
            assert candidate is not None

            asking = asyncio.create_task(fleet.ask(PROMPT))
            await until(lambda: candidate.open)
            process.stop()
            answer = await asking
            await until(lambda: not fleet.dispatcher.fleet.view(PromptNames()).prefill)
            later = await fleet.ask(PROMPT[1:])
            process.go_on()

            assert answer.tokens == echo_output(PROMPT, 12, VOCAB_SIZE)
            assert any("slow-prefill answers nobody" in note for note in answer.receipt.notes)
            assert (later.receipt.prefill_replica, later.receipt.notes) == ("", ())
            await nothing_is_held(process)
            await fleet.assert_nothing_is_held()


async def test_what_a_stopped_decode_replica_generates_goes_on_elsewhere() -> None:
    long = replace(GREEDY, max_tokens=600)
    with replica_process(Role.DECODE, step_s=0.02) as process:
        async with running_fleet(prefill=1, decode=0, ping_timing=PingTiming()) as fleet:
            await meet(fleet, process)

            async def stop(num_tokens: int) -> None:
                if num_tokens >= 20 and not fleet.engines.get("decode-2"):  # type: ignore[call-overload]
                    await fleet.add(Role.DECODE)
                    process.stop()

            answer = await fleet.ask(PROMPT, long, on_token=stop)
            process.go_on()

            assert answer.tokens == echo_output(PROMPT, 600, VOCAB_SIZE)
            assert answer.receipt.attempts == 2
            assert "attempt 1: slow-decode answers nobody" in answer.receipt.notes
            await nothing_is_held(process)
            await fleet.assert_nothing_is_held()


async def test_a_prefill_replica_that_is_only_busy_keeps_its_prompt() -> None:
    with replica_process(Role.PREFILL, step_s=2.0, num_spinning=4) as process:
        async with running_fleet(prefill=0, ping_timing=PingTiming()) as fleet:
            await meet(fleet, process)

            answer = await fleet.ask(PROMPT[:17])

            assert answer.receipt.prefill_replica == process.info.replica_id
            assert answer.receipt.notes == ()
