"""What had come of a prompt when its prefill replica died is not computed again."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from tests.in_process_fleet import GREEDY, Fleet, running_fleet
from tests.tiny_checkpoints import make_llama

from baton.core.ids import ReplicaId
from baton.core.replicas import Role
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.request.step_report import StepReport
from baton.engine.step_hooks import ALONE, StepHooks

PROMPT = [(7 * place) % 50 + 5 for place in range(50)]
BLOCK, CHUNK = 4, 8
NUM_COMPUTED = 4 * CHUNK
"""Tokens of it that the prefill replica computes before it dies."""


def tiny(folder: Path, role: Role) -> Engine:
    cache = CacheConfig(block_size=BLOCK, num_blocks=64)
    config = EngineConfig(cache=cache, scheduler=SchedulerConfig(prefill_chunk=CHUNK))
    return assemble_engine(folder, config, dtype="float32", device="cpu")


def stop_at(engine: Engine, num_tokens: int) -> None:
    """It runs nothing more once it has run so many."""
    step = engine.step

    def stopping(hooks: StepHooks = ALONE) -> StepReport:
        return step(hooks) if engine.stats.num_tokens_run < num_tokens else StepReport()

    engine.step = stopping  # type: ignore[method-assign]


async def has_come(fleet: Fleet, replica: str, num_tokens: int) -> None:
    kv = fleet.replicas[ReplicaId(replica)].worker.core.kv
    wanted = num_tokens // BLOCK * kv.pool.layout.block_bytes
    async with asyncio.timeout(120):
        while kv.receiver.counters.num_bytes < wanted:
            await asyncio.sleep(0.002)


async def test_a_replica_that_dies_before_the_first_token_leaves_what_it_had_sent(
    tmp_path: Path,
) -> None:
    make_engine = partial(tiny, make_llama(tmp_path))
    async with running_fleet(prefill=0, decode=1, make_engine=make_engine) as fleet:
        undisturbed = await fleet.ask(PROMPT)

    async with running_fleet(make_engine=make_engine) as fleet:
        stop_at(fleet.engines[ReplicaId("prefill-1")], NUM_COMPUTED)
        asking = asyncio.create_task(fleet.ask(PROMPT))
        await has_come(fleet, "decode-2", NUM_COMPUTED)

        await fleet.crash(ReplicaId("prefill-1"))
        answer = await asking

        assert answer.tokens == undisturbed.tokens
        num_answered = len(answer.tokens)
        assert num_answered == GREEDY.max_tokens
        receipt = answer.receipt
        assert f"kept the KV of {NUM_COMPUTED} tokens that had come" in receipt.notes
        assert receipt.computed_tokens == len(PROMPT) - NUM_COMPUTED + num_answered - 1
        assert not receipt.prefill_replica
        await fleet.assert_nothing_is_held()
