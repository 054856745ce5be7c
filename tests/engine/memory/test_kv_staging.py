"""KV on its way out of a GPU."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

from baton.core.kv_layout import KvLayout
from baton.core.kv_pool import DeviceWrite
from baton.engine.memory.kv_cache import KvCache
from baton.engine.memory.kv_staging import bytes_of
from baton.kernels.paging.checksum import row_checksums

LAYOUT = KvLayout(
    model_fingerprint=b"model",
    dtype="bfloat16",
    num_layers=3,
    num_kv_heads=4,
    head_dim=64,
    block_size=16,
)
NUM_BLOCKS = 8
ABOUT_100_MS = 200_000_000
"""Clock cycles of a GPU."""

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_a_look_into_a_tensor_shows_its_bytes_and_keeps_it_alive() -> None:
    tensor = torch.arange(12, dtype=torch.int16)
    expected, gone = b"".join(n.to_bytes(2, "little") for n in range(12)), weakref.ref(tensor)

    look = bytes_of(tensor)[4:]
    del tensor
    gc.collect()

    assert look == expected[4:]
    assert look.readonly
    assert gone() is not None
    del look
    gc.collect()
    assert gone() is None


def test_several_blocks_are_what_each_of_them_is() -> None:
    cache = KvCache(LAYOUT, NUM_BLOCKS)
    cache.planes[1].copy_(torch.randn(cache.planes[1].shape))

    views = cache.views((5, 0, 3), range(1, 2))

    assert list(views) == [cache.view(block, 1) for block in (5, 0, 3)]


@pytest.mark.gpu
@on_gpu
def test_bytes_leave_a_gpu_as_the_layer_before_the_mark_wrote_them() -> None:
    """The layer is slow: whoever did not wait for it would see zeros."""
    cache = KvCache(LAYOUT, NUM_BLOCKS, "cuda")
    assert cache.staging is not None
    written = torch.randn(cache.planes[0].shape).bfloat16()
    source = written.cuda()
    torch.cuda.synchronize()
    marked, seen = threading.Event(), list[list[bytes]]()

    def read() -> None:
        marked.wait(30)
        seen.append([bytes(view) for view in cache.views((6, 1), range(1))])

    reader = threading.Thread(target=read)
    reader.start()
    mark = cache.staging.marking(lambda layer: marked.set())
    torch.cuda._sleep(ABOUT_100_MS)  # type: ignore[no-untyped-call]
    cache.planes[0].copy_(source)
    mark(0)
    reader.join(30)

    assert seen == [[bytes(bytes_of(written[block].contiguous())) for block in (6, 1)]]


@pytest.mark.gpu
@on_gpu
def test_what_stays_on_a_gpu_is_summed_up_and_put_as_on_this_host() -> None:
    cache, here = KvCache(LAYOUT, NUM_BLOCKS, "cuda"), KvCache(LAYOUT, NUM_BLOCKS)
    blocks, planes, unit_bytes = (6, 1), range(1, 3), LAYOUT.unit_bytes
    rows = torch.randint(256, (4, LAYOUT.layer_block_bytes), dtype=torch.uint8)
    [expected] = row_checksums((rows,), unit_bytes)
    rows[2, 0] ^= 1
    assert cache.device_rows is not None
    there = rows.cuda()
    torch.cuda.synchronize()

    wrong = cache.device_rows.write_rows([DeviceWrite(blocks, planes, there, expected)], unit_bytes)

    assert wrong == [[2 * LAYOUT.layer_block_bytes // unit_bytes]]
    rows[2] = 0
    here.write_blocks(blocks, planes, bytes_of(rows))
    for plane, ours in zip(cache.planes, here.planes, strict=True):
        assert torch.equal(plane.cpu().view(torch.uint8), ours.view(torch.uint8))
    part = slice(unit_bytes, 3 * unit_bytes)
    found = cache.device_rows.checksums(blocks, planes, part, unit_bytes)
    assert [found] == row_checksums((rows[:, part].contiguous(),), unit_bytes)


@pytest.mark.gpu
@on_gpu
def test_reading_a_layer_does_not_wait_for_later_ones() -> None:
    cache = KvCache(LAYOUT, NUM_BLOCKS, "cuda")
    assert cache.staging is not None
    mark = cache.staging.marking(lambda layer: None)
    cache.views((0,), range(1))  # whatever is set up the first time
    later = torch.cuda.Event()  # type: ignore[no-untyped-call]
    mark(0)
    torch.cuda._sleep(20 * ABOUT_100_MS)  # type: ignore[no-untyped-call]
    later.record()

    cache.views((0, 7), range(1))

    assert not later.query()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
