"""XXH3-64 of memory, compiled, and of copies as they are made; on the caller's thread alone.

The interpreter goes on meanwhile: other Python threads run.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from functools import cache
from typing import TypeAlias

from torch import Tensor

from baton.core.block_views import BlockViews
from baton.kernels.cpu.library import library

Buffer: TypeAlias = bytes | bytearray | memoryview
Parts: TypeAlias = Sequence[Buffer] | Sequence[Sequence[memoryview]]
"""Stretches of memory, one behind the other; or several such sequences, likewise."""


class _View(ctypes.Structure):
    """CPython's Py_buffer: the way to the address of memory that is only to be read."""

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


_CONTIGUOUS, _WRITABLE = 0, 1
_WORD_BYTES = 8
_acquire = ctypes.pythonapi.PyObject_GetBuffer
_acquire.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = (ctypes.c_void_p,)
_release.restype = None


def checksums(parts: Parts, unit_bytes: int) -> bytes:
    """Raises BufferError for a part that is not contiguous."""
    with _Looks() as looks:
        addresses, sizes = looks.at(parts, _CONTIGUOUS)
        return _run(addresses, [0] * len(sizes), sizes, unit_bytes)


def copy_checksums(sources: Parts, targets: Parts, unit_bytes: int) -> bytes:
    """Raises BufferError for a target that cannot be written."""
    with _Looks() as looks:
        addresses, sizes = looks.at(targets, _WRITABLE)
        source_addresses, source_sizes = looks.at(sources, _CONTIGUOUS)
        if len(sizes) != len(source_sizes):
            raise ValueError(f"{len(source_sizes)} parts to be copied to {len(sizes)}")
        if sizes != source_sizes:
            unequal = [each for each in zip(source_sizes, sizes, strict=True) if each[0] != each[1]]
            raise ValueError("{} bytes to be copied to {}".format(*unequal[0]))
        return _run(addresses, source_addresses, sizes, unit_bytes)


def tensor_checksums(units: Tensor) -> bytes:
    """The checksums of units, uint8 [U, unit bytes], contiguous."""
    return _run([units.data_ptr()], [0], [units.nbytes], units.shape[1])


class _Looks:
    """Into memory that nobody can free or resize until they are over."""

    def __init__(self) -> None:
        self._views: list[_View] = []
        self._starts: dict[int, int] = {}

    def __enter__(self) -> _Looks:
        return self

    def __exit__(self, *reason: object) -> None:
        for view in self._views:
            _release(ctypes.addressof(view))

    def at(self, parts: Parts, flags: int) -> tuple[list[int], list[int]]:
        """The address and length of each part."""
        if isinstance(parts, BlockViews):
            start = self._start(parts.memory, flags)
            return [start + each for each in parts.starts], [parts.size] * len(parts)
        addresses: list[int] = []
        sizes: list[int] = []
        for part in parts:
            if isinstance(part, Buffer):
                address, size = self._at(part, flags)
                addresses.append(address)
                sizes.append(size)
            else:
                of_part, sizes_of_part = self.at(part, flags)
                addresses += of_part
                sizes += sizes_of_part
        return addresses, sizes

    def _start(self, memory: memoryview, flags: int) -> int:
        """The address of an arena, looked up once: many blocks lie in it."""
        start = self._starts.get(id(memory))
        if start is None:
            start, _ = self._at(memory, flags)
            self._starts[id(memory)] = start
        return start

    def _at(self, part: Buffer, flags: int) -> tuple[int, int]:
        view = _View()
        _acquire(part, ctypes.addressof(view), flags)
        self._views.append(view)
        return view.address or 0, view.num_bytes


def _run(
    addresses: Sequence[int], sources: Sequence[int], sizes: Sequence[int], unit_bytes: int
) -> bytes:
    """Checksums of what is at `addresses`, copied there first where its source is not 0."""
    if any(size % unit_bytes for size in set(sizes)):
        raise ValueError(f"memory to be cut into units of {unit_bytes} bytes is no multiple")
    parts = array("q", bytes(3 * _WORD_BYTES * len(sizes)))  # `Part` of source/paging/checksum.cpp
    parts[0::3], parts[1::3] = array("q", addresses), array("q", sources)
    parts[2::3] = array("q", [size // unit_bytes for size in sizes])
    sums = ctypes.create_string_buffer(_WORD_BYTES * sum(parts[2::3]))
    _function()(parts.buffer_info()[0], len(sizes), unit_bytes, ctypes.addressof(sums))
    return sums.raw


@cache
def _function() -> ctypes._NamedFuncPointer:
    compiled = library()
    assert compiled is not None
    function = compiled.baton_checksums
    function.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    function.restype = None
    return function
