"""Addresses of arrays, for calls of the library."""

from __future__ import annotations

import ctypes
from typing import Any, TypeAlias

Writable: TypeAlias = Any
"""An array with contiguous items, of any library: this code does not import numpy."""

_of, _first = ctypes.addressof, ctypes.c_char.from_buffer


def address(numbers: Writable) -> int:
    """The address of an array, valid as long as the array. The array's own attribute takes longer
    than most calls."""
    return _of(_first(numbers))


_bytes_at = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(
    ("PyBytes_AsString", ctypes.pythonapi)
)


def bytes_address(packed: bytes) -> int:
    """The address of bytes, valid as long as they are."""
    found: int = _bytes_at(packed)
    return found
