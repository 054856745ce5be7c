"""XXH3-64 of memory, compiled, and of copies as they are made; on the caller's thread alone.

The interpreter goes on meanwhile: other Python threads run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from baton.core.block_views import BlockViews
from baton.kernels.cpu.library import library

Buffer: TypeAlias = bytes | bytearray | memoryview
Numbers: TypeAlias = NDArray[np.int64]


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
_acquire = ctypes.pythonapi.PyObject_GetBuffer
_acquire.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = (ctypes.c_void_p,)
_release.restype = None


def checksums(parts: Sequence[Buffer], unit_bytes: int) -> list[int]:
    """Raises BufferError for a part that is not contiguous."""
    with _Looks() as looks:
        addresses, sizes = looks.at(parts, _CONTIGUOUS)
        return _run(addresses, 0, sizes, unit_bytes)


def copy_checksums(
    sources: Sequence[Buffer], targets: Sequence[Buffer], unit_bytes: int
) -> list[int]:
    """Raises BufferError for a target that cannot be written."""
    with _Looks() as looks:
        addresses, sizes = looks.at(targets, _WRITABLE)
        source_addresses, source_sizes = looks.at(sources, _CONTIGUOUS)
        if len(sizes) != len(source_sizes):
            raise ValueError(f"{len(source_sizes)} parts to be copied to {len(sizes)}")
        if (unequal := sizes != source_sizes).any():
            first = unequal.argmax()
            raise ValueError(f"{source_sizes[first]} bytes to be copied to {sizes[first]}")
        return _run(addresses, source_addresses, sizes, unit_bytes)


def tensor_checksums(units: Tensor) -> list[int]:
    """The checksums of units, uint8 [U, unit bytes], contiguous."""
    return _run(np.array([units.data_ptr()]), 0, np.array([units.nbytes]), units.shape[1])


class _Looks:
    """Into memory that nobody can free or resize until they are over."""

    def __init__(self) -> None:
        self._views: list[_View] = []

    def __enter__(self) -> _Looks:
        return self

    def __exit__(self, *reason: object) -> None:
        for view in self._views:
            _release(ctypes.addressof(view))

    def at(self, parts: Sequence[Buffer], flags: int) -> tuple[Numbers, Numbers]:
        """The address and length of each part."""
        if isinstance(parts, BlockViews):
            start, _ = self._at(parts.memory, flags)
            starts = np.array(parts.starts, np.int64)
            return start + starts, np.full(len(parts), parts.size, np.int64)
        found = np.array([self._at(part, flags) for part in parts], np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def _at(self, part: Buffer, flags: int) -> tuple[int, int]:
        view = _View()
        _acquire(part, ctypes.addressof(view), flags)
        self._views.append(view)
        return view.address or 0, view.num_bytes


def _run(
    addresses: Numbers, source_addresses: Numbers | int, sizes: Numbers, unit_bytes: int
) -> list[int]:
    """Of what is at the addresses, once it is copied there unless the sources' are 0."""
    if (sizes % unit_bytes).any():
        raise ValueError(f"memory to be cut into units of {unit_bytes} bytes is no multiple")
    parts = np.empty((len(sizes), 3), np.int64)  # as `Part` of source/paging/checksum.cpp
    parts[:, 0], parts[:, 1], parts[:, 2] = addresses, source_addresses, sizes // unit_bytes
    sums = np.empty(parts[:, 2].sum(), np.uint64)
    _function()(parts.ctypes.data, len(parts), unit_bytes, sums.ctypes.data)
    found: list[int] = sums.tolist()
    return found


@cache
def _function() -> ctypes._NamedFuncPointer:
    compiled = library()
    assert compiled is not None
    function = compiled.baton_checksums
    function.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    function.restype = None
    return function
