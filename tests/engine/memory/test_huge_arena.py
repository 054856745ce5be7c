"""KV in use is moved onto pages of 2 MB: which of it, when, and that nothing else of it changes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from baton.core.kv_layout import KvLayout
from baton.engine.memory import huge_arena
from baton.engine.memory.huge_arena import HugeArena
from baton.engine.memory.kv_cache import KvCache
from baton.kernels.cpu.shared_mapping import (
    HUGE_PAGE,
    address_of,
    can_collapse,
    mapped,
    num_resident,
)

needs_kernel = pytest.mark.skipif(not can_collapse(), reason="Linux 6.1 moves shared memory")
LAYOUT = KvLayout(
    model_fingerprint=b"m",
    dtype="bfloat16",
    num_layers=2,
    num_kv_heads=4,
    head_dim=64,
    block_size=16,
)
NUM_BLOCKS = 3 * HUGE_PAGE // LAYOUT.layer_block_bytes  # in each of two planes


def idle() -> bool:
    return False


@pytest.fixture
def file() -> Iterator[int]:
    file = os.memfd_create("test")
    os.ftruncate(file, 4 * HUGE_PAGE + 4096)
    yield file
    os.close(file)


def huge_bytes_at(address: int) -> int:
    """Of the shared memory that is mapped there, as the kernel tells."""
    _, _, behind = Path("/proc/self/smaps").read_text().partition(f"\n{address:08x}-")
    return 1024 * int(behind.partition("ShmemPmdMapped:")[2].split()[0])


@needs_kernel
def test_blocks_in_use_come_onto_huge_pages_with_their_bytes_and_others_stay_unused() -> None:
    cache = KvCache(LAYOUT, NUM_BLOCKS)
    assert cache.huge is not None and cache.arena.fd is not None
    peer = mapped(cache.arena.fd, NUM_BLOCKS * LAYOUT.block_bytes, is_writable=False)
    of_page = HUGE_PAGE // LAYOUT.layer_block_bytes
    used = range(of_page + 4)  # a region, and a part of the next
    for plane, block in ((plane, block) for plane in range(2) for block in used):
        cache.write(block, plane, memoryview(bytes([7 + block % 50]) * LAYOUT.layer_block_bytes))
    before = [bytes(cache.view(block, plane)) for plane in range(2) for block in used]

    assert cache.huge.look(idle) == 2
    first = address_of(cache.writable(0, 0))
    assert first % HUGE_PAGE == 0
    assert huge_bytes_at(first) == cache.huge.num_bytes == 2 * HUGE_PAGE
    cache.write(0, 1, memoryview(bytes(LAYOUT.layer_block_bytes)))
    before[len(used)] = bytes(LAYOUT.layer_block_bytes)

    assert [bytes(cache.view(block, plane)) for plane in range(2) for block in used] == before
    assert bytes(peer[: LAYOUT.layer_block_bytes]) == before[0]
    assert num_resident(first + 2 * HUGE_PAGE, HUGE_PAGE) == 0
    assert cache.huge.look(idle) == 0


@needs_kernel
def test_a_thread_moves_what_is_in_use_and_ends_when_it_is_told(
    monkeypatch: pytest.MonkeyPatch, file: int
) -> None:
    monkeypatch.setattr(huge_arena, "LOOK_S", 0.01)
    monkeypatch.setattr(huge_arena, "SHARE_LOOKING", 1.0)
    memory = mapped(file, 4 * HUGE_PAGE)
    torch.frombuffer(memory, dtype=torch.uint8).fill_(3)
    arena = HugeArena(memory)

    arena.start(lambda: True)
    deadline = 60.0
    while arena.num_bytes < 4 * HUGE_PAGE and deadline > 0:
        arena._ended.wait(0.01)
        deadline -= 0.01
    arena.stop()

    assert arena.num_bytes == 4 * HUGE_PAGE
    assert arena._thread is not None and not arena._thread.is_alive()
    assert bytes(memory[-3:]) == b"\3\3\3"


@pytest.mark.parametrize(
    ("errors", "num_tried", "num_left"),
    [
        ([errno.EINVAL], 1, 0),  # a kernel that has none: for good
        ([errno.ENOMEM] * 40, huge_arena.MAX_FAILURES, 20),  # in pieces: another time
        ([errno.EAGAIN, 0] * 10, 20, 10),  # held by somebody for a moment
        ([0, errno.EINVAL] * 10, 20, 10),
    ],
)
def test_what_cannot_be_moved_stays_and_is_not_asked_for_without_end(
    errors: list[int], num_tried: int, num_left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huge_arena, "num_resident", lambda address, num_bytes: num_bytes)
    told, tried = iter(errors), list[int]()

    def try_one(address: int, num_bytes: int) -> int:
        tried.append(address)
        return next(told)

    arena = HugeArena(memoryview(bytearray(20 * HUGE_PAGE)), try_one)
    num_moved = arena.look(idle)

    assert len(tried) == num_tried and len(arena._left) == num_left
    assert num_moved == errors[:num_tried].count(0)


def test_regions_that_can_never_be_moved_hide_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_arena, "num_resident", lambda address, num_bytes: num_bytes)
    memory = memoryview(bytearray(20 * HUGE_PAGE))
    bad_until = address_of(memory) + huge_arena.MAX_FAILURES * HUGE_PAGE
    arena = HugeArena(memory, lambda address, num_bytes: errno.ENOMEM if address < bad_until else 0)

    assert [arena.look(idle), arena.look(idle)] == [0, 20 - huge_arena.MAX_FAILURES]
    assert arena._left == [*range(huge_arena.MAX_FAILURES)]


def test_a_region_of_which_a_page_was_never_written_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def all_but_a_page(address: int, num_bytes: int) -> int:
        return num_bytes - 4096 if num_bytes == HUGE_PAGE else num_bytes

    monkeypatch.setattr(huge_arena, "num_resident", all_but_a_page)
    arena = HugeArena(memoryview(bytearray(HUGE_PAGE)), lambda address, num_bytes: 0)

    assert arena.look(idle) == 0


def test_a_mapping_is_the_file_stays_while_it_is_looked_at_and_is_refused_by_errno(
    file: int, tmp_path: Path
) -> None:
    memory = mapped(file, 4 * HUGE_PAGE + 4096)
    memory[-1] = 9
    assert os.pread(file, 1, 4 * HUGE_PAGE + 4095) == b"\x09"
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    num_maps = maps_of("memfd:test")
    del memory
    assert int(tensor[-1]) == 9 and maps_of("memfd:test") == num_maps == 1
    del tensor
    assert maps_of("memfd:test") == 0

    with pytest.raises(ValueError, match="of a file that has"):
        mapped(file, 5 * HUGE_PAGE)
    only_read = mapped(file, HUGE_PAGE, is_writable=False)
    with pytest.raises(TypeError):
        only_read[0] = 1
    path = tmp_path / "file"
    path.write_bytes(bytes(HUGE_PAGE))
    with path.open("rb") as opened, pytest.raises(OSError) as refused:
        mapped(opened.fileno(), HUGE_PAGE)
    assert refused.value.errno == errno.EACCES


def maps_of(name: str) -> int:
    return sum(name in line for line in Path("/proc/self/maps").read_text().splitlines())
