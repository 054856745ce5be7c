"""The compiled checksums against the package that everybody else uses, and the definition."""

from __future__ import annotations

import os
import struct
import threading
import time

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from baton.core.block_views import BlockViews
from baton.kernels.paging.checksum import (
    MIN_LONG_BYTES,
    checksums,
    copy_checksums,
    device_checksums,
    is_compiled,
    reference,
)

compiled = pytest.mark.skipif(not is_compiled(), reason="no compiler here")


def digests(data: bytes, unit_bytes: int) -> bytes:
    starts = range(0, len(data), unit_bytes)
    of_units = [xxhash.xxh3_64_intdigest(data[start : start + unit_bytes]) for start in starts]
    return struct.pack(f"<{len(of_units)}Q", *of_units)


@compiled
def test_every_short_length_and_every_end_of_a_block_gives_the_packages_checksum() -> None:
    data = os.urandom(3000)

    wrong = [n for n in range(1, 2200) if checksums([data[:n]], n) != digests(data[:n], n)]

    assert wrong == []


@compiled
@given(st.integers(1, 20_000), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_units_of_several_parts_are_copied_and_summed_up(unit_bytes: int, num_units: int) -> None:
    parts = [os.urandom(unit_bytes * num_units), os.urandom(unit_bytes)]
    targets = [bytearray(len(part)) for part in parts]

    found = copy_checksums(parts, [memoryview(target) for target in targets], unit_bytes)

    assert found == b"".join([digests(part, unit_bytes) for part in parts])
    assert found == checksums(targets, unit_bytes)
    assert targets == parts


@compiled
def test_blocks_of_one_memory_are_summed_up_and_copied_where_they_begin() -> None:
    memory, own = os.urandom(10_000), bytearray(10_000)
    sources = BlockViews(memoryview(memory), [4096, 0, 8192], 1024)
    targets = BlockViews(memoryview(own), [0, 2048, 5000], 1024)

    found = copy_checksums(sources, targets, 256)

    assert found == checksums(sources, 256) == digests(b"".join(sources), 256)
    assert list(targets) == list(sources)
    assert own.count(0) > 10_000 - 3 * 1024 - 100, "nothing is written beside them"
    with pytest.raises(ValueError, match="3 parts to be copied to 2"):
        copy_checksums(sources, targets[:2], 256)


@compiled
def test_blocks_of_several_rows_go_to_blocks_that_lie_otherwise() -> None:
    memory, own = os.urandom(20_000), bytearray(20_000)
    sources = BlockViews(memoryview(memory), [1024, 0], 1024, range(0, 15_000, 5000))
    targets = BlockViews(memoryview(own), range(0, 6 * 1024, 1024), 1024)
    last = memoryview(memory)[:512], memoryview(own)[-512:]

    found = copy_checksums([sources, last[:1]], [targets, last[1:]], 512)

    assert found == digests(b"".join(sources) + memory[:512], 512)
    assert own[: 6 * 1024] == b"".join(sources) and own[-512:] == memory[:512]
    assert checksums([targets, sources], 256) == 2 * digests(b"".join(sources), 256)


def memory_from(offset: int, num_bytes: int) -> np.ndarray:
    """Zeros that begin so many bytes behind a line of the cache."""
    memory = np.zeros(num_bytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    return memory[start : start + num_bytes]


@compiled
@pytest.mark.parametrize("offset", [0, 8, 63])
def test_copies_are_whole_wherever_in_a_line_of_the_cache_they_begin(offset: int) -> None:
    for unit_bytes in (64, 192, 240, *range(256, 2304, 64), 2300, 8192):
        source = os.urandom(3 * unit_bytes)
        around = memory_from(offset, 5 * unit_bytes)
        target = around[unit_bytes : 4 * unit_bytes]

        found = copy_checksums([source], [target.data], unit_bytes)

        assert found == digests(source, unit_bytes), unit_bytes
        assert bytes(target) == source, unit_bytes
        assert not around[:unit_bytes].any(), unit_bytes
        assert not around[4 * unit_bytes :].any(), unit_bytes


@compiled
@pytest.mark.parametrize("offset", [0, 8])
def test_a_copy_has_its_own_checksum_though_its_source_changes_meanwhile(offset: int) -> None:
    num_copies, unit_bytes, is_over, num_torn = 30, 65_536, threading.Event(), 0
    contents = np.random.default_rng(0).integers(0, 256, (40, unit_bytes), np.uint8)
    whole, source = set(map(bytes, contents)), contents[0].copy()
    # All of them in one place, one after the other, without a word of Python between two.
    changing_source = as_strided(source, contents.shape, (0, 1))

    def change() -> None:
        while not is_over.is_set():
            np.copyto(changing_source, contents)

    changing, deadline = threading.Thread(target=change), time.monotonic() + 240
    changing.start()
    try:
        while num_torn < 50:
            assert time.monotonic() < deadline, "the source never changed while it was copied"
            memory = memory_from(offset, num_copies * unit_bytes)
            targets = BlockViews(memory.data, range(0, memory.nbytes, unit_bytes), unit_bytes)
            sources = BlockViews(source.data, [0] * num_copies, unit_bytes)
            found = copy_checksums(sources, targets, unit_bytes)
            assert found == digests(bytes(memory), unit_bytes)
            num_torn += sum(bytes(target) not in whole for target in targets)
    finally:
        is_over.set()
        changing.join()


@given(st.integers(MIN_LONG_BYTES, 5000))
@settings(max_examples=40, deadline=None)
def test_the_definition_is_that_of_the_package(length: int) -> None:
    data = os.urandom(length)

    assert reference(data) == xxhash.xxh3_64_intdigest(data)


def test_tensors_give_the_bits_as_signed_numbers() -> None:
    units = torch.randint(0, 256, (6, 512), dtype=torch.uint8)

    found = device_checksums(units)

    packed = digests(bytes(units.flatten()), 512)
    assert found.tolist() == list(struct.unpack(f"<{len(found)}q", packed))


@compiled
def test_memory_that_does_not_fit_is_refused() -> None:
    readonly = memoryview(bytes(64))

    with pytest.raises(ValueError, match="no multiple"):
        checksums([bytes(100)], 64)
    with pytest.raises(ValueError, match="64 bytes to be copied to 128"):
        copy_checksums([bytes(64)], [memoryview(bytearray(128))], 64)
    with pytest.raises(BufferError):
        copy_checksums([bytes(64)], [readonly], 64)
    with pytest.raises(BufferError):
        checksums([memoryview(bytes(128))[::2]], 64)


@compiled
def test_nothing_is_copied_where_a_later_part_does_not_fit() -> None:
    whole, target = bytes([7]) * 64, bytearray(64)

    for source, part in ((64, bytearray(128)), (32, bytearray(32)), (64, bytes(64))):
        with pytest.raises((ValueError, BufferError)):
            copy_checksums([whole, bytes(source)], [target, part], 64)

    assert target == bytes(64)
