"""Compiled XXH3-64 of memory, optionally while it is copied; on the calling thread alone.

The GIL is released meanwhile.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TypeAlias

from torch import Tensor

from baton.core.block_views import BlockViews
from baton.kernels.cpu.library import library

Buffer: TypeAlias = bytes | bytearray | memoryview
Parts: TypeAlias = Sequence[Buffer] | Sequence[Sequence[memoryview]]
"""Ranges of memory, concatenated; or several such sequences."""


class _View(ctypes.Structure):
    """CPython's Py_buffer, which gives the address of read-only memory."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("owner", ctypes.c_void_p),
        ("num_bytes", ctypes.c_ssize_t),
        ("item_bytes", ctypes.c_ssize_t),
        ("is_readonly", ctypes.c_int),
        ("num_dims", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


CONTIGUOUS, WRITABLE = 0, 1
_WORD_BYTES = 8
_acquire = ctypes.pythonapi.PyObject_GetBuffer
_acquire.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = (ctypes.c_void_p,)
_release.restype = None


class Blocks(ctypes.Structure):
    """`Blocks` of source/paging/checksum.h."""

    _fields_ = (
        ("memory", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("num_rows", ctypes.c_int64),
        ("num_starts", ctypes.c_int64),
    )


_ORIGIN = (0,)


def checksums(parts: Parts, unit_bytes: int) -> bytes:
    """Raises BufferError for a part that is not contiguous."""
    with Looks() as looks:
        found = [
            _run(looks.at(each, CONTIGUOUS), None, _size_of(each), unit_bytes)
            for each in _groups(parts)
        ]
    return found[0] if len(found) == 1 else b"".join(found)


def copy_checksums(sources: Parts, targets: Parts, unit_bytes: int) -> bytes:
    """Raises BufferError for a target that cannot be written; then nothing is copied."""
    with Looks() as looks:
        copies: list[tuple[Blocks, Blocks, int]] = []
        for source, target in _pairs(_groups(sources), _groups(targets)):
            size = _size_of(target)
            if size != _size_of(source):
                raise ValueError(f"{_size_of(source)} bytes to be copied to {size}")
            num_units_of(size, unit_bytes)
            copies.append((looks.at(target, WRITABLE), looks.at(source, CONTIGUOUS), size))
        found = [_run(to, from_, size, unit_bytes) for to, from_, size in copies]
    return found[0] if len(found) == 1 else b"".join(found)


def tensor_checksums(units: Tensor) -> bytes:
    """The checksums of units, uint8 [U, unit bytes], contiguous."""
    origin = array("q", _ORIGIN)
    whole = Blocks(units.data_ptr(), *[origin.buffer_info()[0]] * 2, 1, 1)
    return _run(whole, None, units.nbytes, units.shape[1])


def _groups(parts: Parts) -> list[BlockViews | Buffer]:
    """The groups that one call each processes: blocks of one memory, or one range."""
    if isinstance(parts, BlockViews):
        return [parts]
    found: list[BlockViews | Buffer] = []
    for part in parts:
        if isinstance(part, Buffer | BlockViews):
            found.append(part)
        else:
            found += part
    return found


def _pairs(
    sources: list[BlockViews | Buffer], targets: list[BlockViews | Buffer]
) -> Iterator[tuple[BlockViews | Buffer, BlockViews | Buffer]]:
    """Pairs of sources and targets with the same number of blocks; block by block if they are
    grouped differently."""
    if [*map(_num_blocks, sources)] != [*map(_num_blocks, targets)]:
        sources, targets = _one_by_one(sources), _one_by_one(targets)
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} parts to be copied to {len(targets)}")
    return zip(sources, targets, strict=True)


def _one_by_one(groups: Iterable[BlockViews | Buffer]) -> list[BlockViews | Buffer]:
    found: list[BlockViews | Buffer] = []
    for group in groups:
        if isinstance(group, BlockViews):
            found += group
        else:
            found.append(group)
    return found


def _num_blocks(group: BlockViews | Buffer) -> int:
    return len(group) if isinstance(group, BlockViews) else 1


def _size_of(group: BlockViews | Buffer) -> int:
    """Bytes of each block."""
    if isinstance(group, BlockViews):
        return group.size
    return memoryview(group).nbytes


class Looks:
    """Holds buffers, so that nobody can free or resize their memory meanwhile."""

    def __init__(self) -> None:
        self._views: list[_View] = []
        self._numbers: list[array[int]] = []

    def __enter__(self) -> Looks:
        return self

    def __exit__(self, *reason: object) -> None:
        for view in self._views:
            _release(ctypes.addressof(view))

    def at(self, group: BlockViews | Buffer, flags: int) -> Blocks:
        if not isinstance(group, BlockViews):
            return self._blocks(group, _ORIGIN, _ORIGIN, flags)
        return self._blocks(group.memory, group.rows, group.starts, flags)

    def _blocks(
        self, memory: Buffer, rows: Sequence[int], starts: Sequence[int], flags: int
    ) -> Blocks:
        view = _View()
        _acquire(memory, ctypes.addressof(view), flags)
        self._views.append(view)
        numbers = [array("q", rows), array("q", starts)]
        self._numbers += numbers
        addresses = [each.buffer_info()[0] for each in numbers]
        return Blocks(view.address, *addresses, len(rows), len(starts))


def _run(target: Blocks, source: Blocks | None, size: int, unit_bytes: int) -> bytes:
    """Checksums of the targets' units, which are copied there first if there are sources."""
    num_units = num_units_of(size, unit_bytes)
    num_all = num_units * target.num_rows * target.num_starts
    sums = ctypes.create_string_buffer(_WORD_BYTES * num_all)
    _function()(
        ctypes.addressof(target),
        None if source is None else ctypes.addressof(source),
        num_units,
        unit_bytes,
        ctypes.addressof(sums),
    )
    return sums.raw


def num_units_of(size: int, unit_bytes: int) -> int:
    num_units, rest = divmod(size, unit_bytes)
    if rest:
        raise ValueError(f"memory to be cut into units of {unit_bytes} bytes is no multiple")
    return num_units


@cache
def _function() -> ctypes._NamedFuncPointer:
    compiled = library()
    assert compiled is not None
    function = compiled.baton_checksums
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = (pointer, pointer, number, number, pointer)
    function.restype = None
    return function
