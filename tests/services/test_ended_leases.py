"""KV that is read after its lease has ended: an error or a new computation, never wrong KV."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.in_process_fleet import VOCAB_SIZE, Answer, echo_engine, running_fleet

from baton.core.chaos import ChaosRule, Fault
from baton.core.ids import ReplicaId
from baton.engine.passes.echo import echo_output

PROMPT = list(range(3, 83))


async def test_who_reads_late_from_a_lease_that_has_ended_never_gets_wrong_kv(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("baton.kv_transfer.transport.control.servicer.LAST_READS_S", 0.0)
    changes = {
        "chaos": {"enabled": True},
        "transfer.transport": "shm",
        "transfer.max_held_fraction": 1.0,
        "transfer.max_leased_fraction": 1.0,
    }
    small = partial(echo_engine, num_blocks=60, prefill_chunk=16)  # what is freed is soon reused
    async with running_fleet(make_engine=small, changes=changes) as fleet:
        sender, receiver = (fleet.replicas[ReplicaId(name)] for name in ("prefill-1", "decode-2"))
        assert sender.chaos is not None and receiver.chaos is not None
        sender.chaos.set((ChaosRule(at="transfer.lease", fault=Fault.EXPIRE, rate=0.5),), 1)
        late = ChaosRule(at="transfer.piece", fault=Fault.DELAY, rate=0.3, delay_s=0.03)
        receiver.chaos.set((late,), 0)

        prompts = [[*PROMPT[n : n + 50], *range(3, n + 3)] for n in range(12)]
        answers: list[Answer] = []
        for one, other in zip(prompts[::2], prompts[1::2], strict=True):
            answers += await asyncio.gather(fleet.ask(one), fleet.ask(other))

        sender.chaos.set((), 0)
        receiver.chaos.set((), 0)
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.tokens == echo_output(prompt, 12, VOCAB_SIZE)
        assert sender.chaos.injected["transfer.lease", Fault.EXPIRE] > 0
        await fleet.assert_nothing_is_held()
