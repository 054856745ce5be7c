"""When the process of a rank that follows a lead counts as gone, although it answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.engine.ranks.sharded_caches import sharded

from baton.core.clock import ManualClock
from baton.core.errors import EngineFailed
from baton.core.kv_arena import KvArena, watching
from baton.core.kv_layout import KvLayout
from baton.core.kv_pool import DeviceWrite
from baton.core.rank_memory import WRITE_S, Answer, Introduction, OwnRows, WriteWatch
from baton.engine.memory.device_rows import DeviceRows
from baton.platform.cluster.ranks import rank_actor
from baton.platform.cluster.ranks.rank_actor import RankActor

LIMIT_S = 60.0
WHOLE = KvLayout(
    model_fingerprint=b"", dtype="float32", num_layers=1, num_kv_heads=2, head_dim=16, block_size=4
)


def introduced(arena: KvArena, rows: OwnRows) -> Introduction:
    async def write(writes: Sequence[DeviceWrite], unit_bytes: int) -> list[list[int]]:
        return await asyncio.to_thread(rows.write_rows, writes, unit_bytes)

    answers: Mapping[str, Answer] = {"write_rows": write}
    return Introduction(b"", answers)


async def test_a_rank_that_hangs_in_a_write_counts_as_gone_although_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lead ends the replica then: `OtherRanks`."""
    clock, is_writing, may_end = ManualClock(), threading.Event(), threading.Event()

    def hang(self: DeviceRows, writes: Sequence[DeviceWrite], unit_bytes: int) -> list[list[int]]:
        is_writing.set()
        may_end.wait(LIMIT_S)
        return [[] for _ in writes]

    monkeypatch.setattr(DeviceRows, "write_rows", hang)
    monkeypatch.setattr(rank_actor, "WriteWatch", lambda: WriteWatch(clock))
    actor: Any = RankActor("decode-1:rank-1")
    halves = [replace(WHOLE, first_kv_head=head, num_kv_heads=1) for head in range(2)]
    cache, _ = sharded(
        WHOLE, halves, is_at_once=True, introduce=watching(introduced, actor._writes)
    )
    line = cache.arena.shares[1].line
    assert line is not None
    answer = line.ask("write_rows", [], WHOLE.unit_bytes)
    assert await asyncio.to_thread(is_writing.wait, LIMIT_S)

    clock.advance(WRITE_S)
    await actor.is_there()
    clock.advance(1.0)
    with pytest.raises(EngineFailed, match="has been writing KV to its blocks for 61 s"):
        await actor.is_there()

    may_end.set()
    assert await asyncio.wrap_future(answer) == []
    await actor.is_there()
