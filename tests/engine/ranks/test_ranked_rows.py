"""Each rank sums up, verifies and writes its own blocks; the lead asks, and looks at none."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pytest
import torch
from tests.engine.memory.ordered_cuda import pretend
from tests.engine.ranks.sharded_caches import sharded
from torch import Tensor

from baton.core.block_views import part_of
from baton.core.errors import TransportFailed
from baton.core.kv_arena import KvArena
from baton.core.kv_layout import KvLayout
from baton.core.kv_pool import DeviceWrite
from baton.core.rank_memory import Answer, Introduction, OwnRows, RankPart
from baton.engine.memory.kv_cache import KvCache
from baton.engine.memory.kv_staging import KvStaging
from baton.engine.ranks import ranked_rows
from baton.engine.ranks.rank_line import RankLine
from baton.engine.ranks.sharded_cache import ShardedCache
from baton.kv_transfer.layouts.integrity import checksums_of

WHOLE = KvLayout(
    model_fingerprint=b"", dtype="float32", num_layers=4, num_kv_heads=4, head_dim=16, block_size=4
)
SPLITS = {
    "two halves": [(0, 2, 0, 4), (2, 2, 0, 4)],
    "more ranks than heads": [(0, 2, 0, 4), (0, 2, 0, 4), (2, 2, 0, 4), (2, 2, 0, 4)],
    "two stages of two": [(0, 2, 0, 1), (2, 2, 0, 1), (0, 2, 1, 3), (2, 2, 1, 3)],
}
"""First head, number of heads, first layer and number of layers, by rank."""
BLOCKS = [2, 0]
UNIT = WHOLE.unit_bytes


@dataclass
class Reader:
    """At a rank: rows that it has, by number, as if it had read them."""

    read: dict[int, Tensor] = field(default_factory=dict)
    may_write: threading.Event = field(default_factory=threading.Event)
    has_written: threading.Event = field(default_factory=threading.Event)
    is_failing: bool = False

    def answers(self, rows: OwnRows) -> Mapping[str, Answer]:
        def write(writes: list[DeviceWrite], unit_bytes: int) -> list[list[int]]:
            self.may_write.wait(60)
            if self.is_failing:
                raise TransportFailed("its device has failed")
            here = [replace(each, rows=self.read[each.rows]) for each in writes]
            found = rows.write_rows(here, unit_bytes)
            self.has_written.set()
            return found

        async def answer(writes: list[DeviceWrite], unit_bytes: int) -> list[list[int]]:
            return await asyncio.to_thread(write, writes, unit_bytes)

        return {"write_rows": answer}


@dataclass
class Ranks:
    cache: ShardedCache
    caches: list[KvCache]
    readers: list[Reader]
    """Of all ranks but the lead."""

    def part(self, rank: int, data: Tensor) -> RankPart:
        """The rank's part of [planes, blocks, bytes], which it has read; a copy."""
        share = self.cache.arena.shares[rank]
        start, stop = share.starts[0], share.starts[0] + share.block_bytes[0]
        planes = range(share.first_plane, share.first_plane + len(share.planes))
        own = data[planes.start : planes.stop, :, start:stop].contiguous()
        number = len(self.readers[rank - 1].read) if rank else 0
        if rank:
            self.readers[rank - 1].read[number] = own.clone()
        return RankPart(rank, planes, range(start, stop), number if rank else own.clone())


@dataclass(frozen=True)
class ReadRows:
    parts: list[RankPart]

    def checksums(self, unit_bytes: int) -> bytes:
        raise AssertionError("nobody asks")


def ranks_of(split: str, patch: pytest.MonkeyPatch) -> Ranks:
    layouts = [
        replace(WHOLE, first_kv_head=head, num_kv_heads=count, num_layers=layers)
        for head, count, _, layers in SPLITS[split]
    ]
    readers: list[Reader] = []

    def introduce(arena: KvArena, rows: OwnRows) -> Introduction:
        readers.append(Reader())
        readers[-1].may_write.set()
        return Introduction(b"", readers[-1].answers(rows))

    starts = [start for _, _, start, _ in SPLITS[split][1:]]
    cache, caches = sharded(WHOLE, layouts, starts, is_at_once=True, introduce=introduce)

    def looked_at(*_: object) -> None:
        raise AssertionError("the lead has looked at blocks of other ranks")

    patch.setattr(cache, "_gathered", looked_at)
    patch.setattr(cache, "_scatter", looked_at)
    return Ranks(cache, caches, readers)


def random_data() -> Tensor:
    """[planes, blocks, bytes]"""
    shape = WHOLE.num_planes, len(BLOCKS), WHOLE.layer_block_bytes
    return torch.randint(256, shape, dtype=torch.uint8)


def in_bytes(rows: Tensor) -> list[memoryview]:
    return [memoryview(row.numpy()) for row in rows.flatten(0, 1)]


def sums_of(data: Tensor) -> bytes:
    return checksums_of(in_bytes(data), UNIT)


@pytest.mark.parametrize("split", SPLITS)
def test_ranks_sum_up_their_own_blocks_and_the_sums_come_in_the_order_of_heads(
    split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it, plain = ranks_of(split, monkeypatch), KvCache(WHOLE, 3)
    for block, plane in product(range(3), range(WHOLE.num_planes)):
        data = memoryview(os.urandom(WHOLE.layer_block_bytes))
        it.cache.write(block, plane, data)
        plain.write(block, plane, data)
    assert it.cache.device_rows is not None

    for part in (slice(0, 4 * UNIT), slice(UNIT, 3 * UNIT), slice(3 * UNIT, 4 * UNIT)):
        found = it.cache.device_rows.checksums(BLOCKS, range(4), part, UNIT)
        views = plain.views(BLOCKS, range(4))
        assert found == checksums_of(part_of(views, part.start, part.stop - part.start), UNIT)


@pytest.mark.parametrize("split", SPLITS)
def test_ranks_verify_and_write_what_they_have_read_and_a_wrong_head_is_zero_with_its_rank_alone(
    split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it, data = ranks_of(split, monkeypatch), random_data()
    sums, last = sums_of(data), len(it.caches) - 1
    parts = [it.part(rank, data) for rank in range(len(it.caches))]
    spoiled = it.readers[last - 1].read[0]
    spoiled[1, 1, UNIT + 5] ^= 1  # its second plane, the second block, its second head
    plane = it.cache.arena.shares[last].first_plane + 1
    planes = range(WHOLE.num_planes)
    assert it.cache.device_rows is not None

    wrong = it.cache.device_rows.write_rows(
        [DeviceWrite(BLOCKS, planes, ReadRows(parts), sums)], UNIT
    )

    first_unit = it.cache.arena.shares[last].starts[0] // UNIT
    assert wrong == [[(plane * len(BLOCKS) + 1) * 4 + first_unit + 1]]
    for rank, cache in enumerate(it.caches):
        share = it.cache.arena.shares[rank]
        for own, of_plane in enumerate(cache.planes):
            held = slice(share.starts[0], share.starts[0] + share.block_bytes[0])
            expected = data[share.first_plane + own, :, held].clone()
            if rank == last and own == 1:
                expected[1] = 0
            assert torch.equal(of_plane.view(torch.uint8).flatten(1)[BLOCKS], expected)


def test_a_rank_that_fails_is_heard_of_when_no_other_writes_any_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ranked_rows, "SLOW_WRITE_S", 0.05)
    it, data = ranks_of("more ranks than heads", monkeypatch), random_data()
    parts = [it.part(rank, data) for rank in range(4)]
    failing, slow, _ = it.readers
    failing.is_failing = True
    slow.may_write.clear()
    rows = it.cache.device_rows
    assert rows is not None
    write = DeviceWrite(BLOCKS, range(WHOLE.num_planes), ReadRows(parts), sums_of(data))
    raised: list[BaseException] = []

    def run() -> None:
        try:
            rows.write_rows([write], UNIT)
        except TransportFailed as error:
            raised.append(error)
            assert slow.has_written.is_set(), "its blocks would be given to others"

    writing = threading.Thread(target=run)
    writing.start()
    writing.join(0.2)

    assert writing.is_alive() and not raised
    assert "ranks [2] have been writing KV" in caplog.text
    slow.may_write.set()
    writing.join(60)
    assert [str(error) for error in raised] == ["its device has failed"]
    assert slow.has_written.is_set()


def test_ranks_are_asked_when_what_the_lead_has_launched_before_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a GPU goes on by itself: `OrderedCuda`."""
    cuda = pretend(monkeypatch)
    it, data = ranks_of("two stages of two", monkeypatch), random_data()
    staging = it.cache.own.staging = KvStaging(it.cache.own.planes, it.cache.own.layout)
    over: dict[str, set[str]] = {}
    ask = RankLine.ask

    def noted(self: RankLine, what: str, *about: Any) -> Future[Any]:
        over[what] = cuda.awaited()
        return ask(self, what, *about)

    monkeypatch.setattr(RankLine, "ask", noted)
    rows, part = it.cache.device_rows, slice(0, 4 * UNIT)
    assert rows is not None
    cuda.launch("the first layer")
    staging.mark(0)
    cuda.launch("the next pass")

    rows.checksums(BLOCKS, range(1), part, UNIT)

    assert over["checksums"] == {"the first layer"}
    cuda.launch("a tail of another stage")
    it.cache.clear_tail(1, 2, 2)

    rows.checksums(BLOCKS, range(2, 3), part, UNIT)

    assert "a tail of another stage" in over["checksums"]
    cuda.launch("a pass")

    parts = [it.part(rank, data) for rank in range(4)]
    write = DeviceWrite(BLOCKS, range(WHOLE.num_planes), ReadRows(parts), sums_of(data))
    assert rows.write_rows([write], UNIT) == [[]]

    assert "a pass" in over["write_rows"]
