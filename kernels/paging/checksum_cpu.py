"""XXH3-64 of memory, compiled, and of copies as they are made; on the caller's thread alone.

The interpreter goes on meanwhile: other Python threads run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import TypeAlias

from torch import Tensor

from baton.kernels.cpu.library import library

Buffer: TypeAlias = bytes | bytearray | memoryview


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
        found = [looks.at(part, _CONTIGUOUS) for part in parts]
        return _run([(address, None, size) for address, size in found], unit_bytes)


def copy_checksums(
    sources: Sequence[Buffer], targets: Sequence[Buffer], unit_bytes: int
) -> list[int]:
    """Raises BufferError for a target that cannot be written."""
    with _Looks() as looks:
        found = []
        for source, target in zip(sources, targets, strict=True):
            address, size = looks.at(target, _WRITABLE)
            source_address, source_size = looks.at(source, _CONTIGUOUS)
            if source_size != size:
                raise ValueError(f"{source_size} bytes to be copied to {size}")
            found.append((address, source_address, size))
        return _run(found, unit_bytes)


def tensor_checksums(units: Tensor) -> list[int]:
    """The checksums of units, uint8 [U, unit bytes], contiguous."""
    return _run([(units.data_ptr(), None, units.nbytes)], units.shape[1])


class _Looks:
    """Into memory that nobody can free or resize until they are over."""

    def __init__(self) -> None:
        self._views: list[_View] = []

    def __enter__(self) -> _Looks:
        return self

    def __exit__(self, *reason: object) -> None:
        for view in self._views:
            _release(ctypes.addressof(view))

    def at(self, part: Buffer, flags: int) -> tuple[int | None, int]:
        """Its address and length."""
        view = _View()
        _acquire(part, ctypes.addressof(view), flags)
        self._views.append(view)
        return view.address, view.num_bytes


def _run(found: Sequence[tuple[int | None, int | None, int]], unit_bytes: int) -> list[int]:
    if any(size % unit_bytes for _, _, size in found):
        raise ValueError(f"memory to be cut into units of {unit_bytes} bytes is no multiple")
    # As `Part` of source/checksum.cpp: where it is, what to copy there or 0, how many units.
    flat = [
        number
        for address, source, size in found
        for number in (address or 0, source or 0, size // unit_bytes)
    ]
    parts = (ctypes.c_int64 * len(flat))(*flat)
    sums = (ctypes.c_uint64 * sum(flat[2::3]))()
    _function()(parts, len(found), unit_bytes, sums)
    return list(sums)


@cache
def _function() -> ctypes._NamedFuncPointer:
    compiled = library()
    assert compiled is not None
    function = compiled.baton_checksums
    function.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    function.restype = None
    return function
