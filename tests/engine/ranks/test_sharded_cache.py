"""KV on several ranks looks like KV on one."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.memory.ordered_cuda import OrderedCuda, pretend
from tests.engine.ranks.sharded_caches import NUM_BLOCKS, sharded
from torch.overrides import TorchFunctionMode

from baton.core.kv_layout import KvLayout
from baton.core.kv_pool import DeviceWrite
from baton.engine.memory.kv_cache import KvCache
from baton.engine.memory.kv_staging import KvStaging
from baton.engine.ranks.sharded_cache import ShardedCache
from baton.engine.ranks.shares import NOWHERE
from baton.kv_transfer import transports
from baton.kv_transfer.layouts.integrity import checksums_of
from baton.kv_transfer.transports import TRANSPORTS, TransportParts, create_sending_halves

WHOLE = KvLayout(
    model_fingerprint=b"", dtype="float32", num_layers=2, num_kv_heads=4, head_dim=8, block_size=4
)


def held(whole: KvLayout, first: int, count: int) -> KvLayout:
    return replace(whole, first_kv_head=first, num_kv_heads=count)


SPLITS = {
    "one rank": [held(WHOLE, 0, 4)],
    "two halves": [held(WHOLE, 0, 2), held(WHOLE, 2, 2)],
    "one head each": [held(WHOLE, head, 1) for head in range(4)],
    "more ranks than heads": [held(WHOLE, head, 2) for head in (0, 0, 2, 2)],
}


def test_only_heads_that_one_rank_keeps_alone_are_written_where_they_lie() -> None:
    found = {split: sharded(WHOLE, layouts)[0].head_runs for split, layouts in SPLITS.items()}
    at_once = sharded(WHOLE, SPLITS["two halves"], is_at_once=True)[0]  # as on a device

    assert found == {
        "one rank": (range(4),),
        "two halves": (range(2), range(2, 4)),
        "one head each": (range(1), range(1, 2), range(2, 3), range(3, 4)),
        "more ranks than heads": (),
    }
    assert at_once.head_runs == ()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("split", SPLITS)
@settings(max_examples=20)
@given(data=st.data())
def test_what_is_written_is_read_and_lies_with_its_ranks(
    split: str, dtype: str, data: st.DataObject
) -> None:
    whole = replace(WHOLE, dtype=dtype)
    layouts = [replace(layout, dtype=dtype) for layout in SPLITS[split]]
    cache, ranks = sharded(whole, layouts)
    plain = KvCache(whole, NUM_BLOCKS)
    size = whole.layer_block_bytes
    block = data.draw(st.integers(0, NUM_BLOCKS - 1))
    first = data.draw(st.integers(0, size))
    last = data.draw(st.integers(first, size))
    num_used = data.draw(st.integers(0, whole.block_size))
    fill = memoryview(os.urandom(size))

    for each in (cache, plain):
        each.write(block, 1, fill)
        each.write_part(block, 1, first, memoryview(b"\x5a" * (last - first)))
        each.clear_tail(block, 1, num_used)
        each.write(0, 0, fill)
        each.write(NUM_BLOCKS - 1, 0, fill)
        each.clear([0, NUM_BLOCKS - 1], 0)

    for layer in range(2):
        for number in range(NUM_BLOCKS):
            assert bytes(cache.view(number, layer)) == bytes(plain.view(number, layer))
    for layout, rank in zip(layouts, ranks, strict=True):
        heads = plain.planes[1][:, layout.first_kv_head : layout.stop_kv_head]
        assert torch.equal(rank.planes[1].view(torch.uint8), heads.contiguous().view(torch.uint8))


@pytest.mark.parametrize("is_at_once", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("split", SPLITS)
def test_many_blocks_of_several_planes_are_written_and_read_at_once(
    split: str, dtype: str, is_at_once: bool
) -> None:
    whole = replace(WHOLE, dtype=dtype)
    layouts = [replace(layout, dtype=dtype) for layout in SPLITS[split]]
    cache, ranks = sharded(whole, layouts, is_at_once=is_at_once)
    plain, blocks, size = KvCache(whole, NUM_BLOCKS), [2, 0], whole.layer_block_bytes
    data = cache.scratch(4 * size)
    data[:] = os.urandom(4 * size)

    cache.write_blocks(blocks, range(2), data)

    fills = [data[at : at + size] for at in range(0, 4 * size, size)]
    assert list(cache.views(blocks, range(2))) == fills
    for (plane, block), fill in zip(product(range(2), blocks), fills, strict=True):
        plain.write(block, plane, fill)
    for layout, rank in zip(SPLITS[split], ranks, strict=True):
        for plane in range(2):
            heads = plain.planes[plane][:, layout.first_kv_head : layout.stop_kv_head]
            found = rank.planes[plane].view(torch.uint8)
            assert torch.equal(found, heads.contiguous().view(torch.uint8))
    with pytest.raises(ValueError, match="bytes for"):
        cache.write_blocks(blocks, range(2), data[1:])


def test_rows_on_the_device_are_summed_up_and_put_but_for_those_that_are_wrong() -> None:
    whole = replace(WHOLE, head_dim=16)
    halves = [replace(half, head_dim=16) for half in SPLITS["two halves"]]
    cache, ranks = sharded(whole, halves, is_at_once=True)
    plain, blocks, size = KvCache(whole, NUM_BLOCKS), [2, 0], whole.layer_block_bytes
    data = memoryview(os.urandom(4 * size))
    rows = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(4, size)
    fills = [data[at : at + size] for at in range(0, 4 * size, size)]
    sums = [checksums_of(fills[at : at + 2], whole.unit_bytes) for at in (0, 2)]
    rows[1, 2 * whole.unit_bytes] ^= 1
    writes = [
        DeviceWrite(blocks, range(1), rows[:2], sums[0]),
        DeviceWrite(blocks, range(1, 2), rows[2:], sums[1]),
    ]
    assert cache.device_rows is not None

    assert cache.device_rows.write_rows(writes, whole.unit_bytes) == [[4 + 2], []]

    fills[1] = memoryview(bytes(size))
    for (plane, block), fill in zip(product(range(2), blocks), fills, strict=True):
        plain.write(block, plane, fill)
    for layout, rank in zip(halves, ranks, strict=True):
        for plane in range(2):
            heads = plain.planes[plane][:, layout.first_kv_head : layout.stop_kv_head]
            found = rank.planes[plane].view(torch.uint8)
            assert torch.equal(found, heads.contiguous().view(torch.uint8))
    part = slice(whole.unit_bytes, 3 * whole.unit_bytes)
    found_sums = cache.device_rows.checksums(blocks, range(2), part, whole.unit_bytes)
    assert found_sums == checksums_of([fill[part] for fill in fills], whole.unit_bytes)
    with pytest.raises(ValueError, match="bytes for"):
        cache.device_rows.write_rows([DeviceWrite([1], range(2), rows, b"")], whole.unit_bytes)


def test_latents_are_written_to_all_ranks_and_read_from_one() -> None:
    latent = replace(WHOLE, num_kv_heads=1, num_vectors=1)
    cache, ranks = sharded(latent, [latent, latent])
    fill = memoryview(os.urandom(latent.layer_block_bytes))

    cache.write(2, 0, fill)

    assert bytes(cache.view(2, 0)) == bytes(fill)
    assert all(bytes(rank.view(2, 0)) == bytes(fill) for rank in ranks)


@given(st.data())
def test_a_stage_keeps_the_planes_of_its_layers(data: st.DataObject) -> None:
    num_layers = data.draw(st.integers(2, 4))
    first = data.draw(st.integers(1, num_layers - 1))
    whole = replace(WHOLE, num_layers=num_layers)
    before, behind = replace(whole, num_layers=first), replace(whole, num_layers=num_layers - first)
    cache, ranks = sharded(whole, [before, behind], [first])
    fills = [memoryview(os.urandom(whole.layer_block_bytes)) for _ in range(num_layers)]

    for layer, fill in enumerate(fills):
        cache.write(1, layer, fill)
    cache.clear_tail(2, num_layers - 1, 1)

    of_ranks = [rank.view(1, layer) for rank in ranks for layer in range(rank.layout.num_layers)]
    assert list(map(bytes, of_ranks)) == list(map(bytes, fills))
    assert [bytes(cache.view(1, layer)) for layer in range(num_layers)] == list(map(bytes, fills))


def test_what_a_rank_computes_is_seen_by_the_lead() -> None:
    cache, (_, other) = sharded(WHOLE, SPLITS["two halves"])

    other.planes[0][1, 0, 0, 0, 0] = 7.0

    assert cache.view(1, 0).cast("f")[2 * 2 * 4 * 8] == 7.0


def test_bytes_beyond_a_block_and_heads_of_nobody_are_refused() -> None:
    cache, _ = sharded(WHOLE, SPLITS["two halves"])
    size = WHOLE.layer_block_bytes

    with pytest.raises(ValueError, match="bytes"):
        cache.write(0, 0, memoryview(bytes(size - 1)))
    with pytest.raises(ValueError, match="bytes"):
        cache.write_part(0, 0, size - 1, memoryview(bytes(2)))
    with pytest.raises(ValueError, match="no rank keeps KV head 2"):
        sharded(WHOLE, [held(WHOLE, 0, 2)])


def test_a_transport_that_reads_an_arena_by_itself_sends_no_pieces_unless_it_reaches_each_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_nixl = replace(TRANSPORTS["nixl"], lacks=str)
    monkeypatch.setattr(transports, "TRANSPORTS", {**TRANSPORTS, "nixl": has_nixl})
    cache, _ = sharded(WHOLE, SPLITS["two halves"])
    _, other = cache._of_ranks
    on_device = ShardedCache(WHOLE, cache.own, [replace(other, memory=NOWHERE)])

    found = [set(create_sending_halves(TransportParts(), it.arena)) for it in (cache, on_device)]

    carrying = {"gloo", "grpc", "tcp", "auto"}
    assert found == [{*carrying, "shm", "nixl"}, carrying]


def test_memory_of_a_rank_is_shared_with_other_processes_to_be_read_alone() -> None:
    cache, (_, other) = sharded(WHOLE, SPLITS["two halves"])
    for share in cache.arena.shares:
        assert share.fd is not None
        with pytest.raises(PermissionError):
            mmap.mmap(share.fd, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        with pytest.raises(PermissionError):
            os.ftruncate(share.fd, 0)

    other.planes[0][2, 0, 0, 0, 0] = 7.0  # as before

    assert cache.view(2, 0).cast("f")[2 * 2 * 4 * 8] == 7.0


class Launching(TorchFunctionMode):
    """What is assigned to parts of tensors is launched under a name."""

    def __init__(self, cuda: OrderedCuda, name: str) -> None:
        super().__init__()
        self._cuda, self._name = cuda, name

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.__setitem__:
            self._cuda.launch(self._name)
        return func(*args, **(kwargs or {}))


def test_what_is_cleared_is_zero_before_it_is_read_or_computed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a GPU goes on by itself: `OrderedCuda`."""
    cuda = pretend(monkeypatch)
    layouts = SPLITS["two halves"]
    cache, _ = sharded(WHOLE, layouts, is_at_once=True)
    cache.own.staging = KvStaging(cache.own.planes, layouts[0])
    seen: list[set[str]] = []
    gathered = cache._gathered

    def gather(planes: range, numbers: torch.Tensor) -> torch.Tensor:
        seen.append(cuda.predecessors())
        return gathered(planes, numbers)

    monkeypatch.setattr(cache, "_gathered", gather)
    with Launching(cuda, "a tail"):
        cache.clear_tail(1, 1, 2)
    cache.views((0, 1), range(1, 2))
    with Launching(cuda, "blocks"):
        cache.clear((0, 2), 1)
    assert "blocks" not in cuda.awaited()
    cache.settle()
    assert "blocks" in cuda.awaited(), "other ranks may begin a pass now"
    cache.views((0, 1), range(1, 2))
    assert ["a tail" in seen[0], "blocks" in seen[1]] == [True, True]
