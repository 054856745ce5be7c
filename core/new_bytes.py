"""Creates a `bytes` object that is filled right after creation, before any other code has a
reference.

It saves a copy where an interface, such as gRPC's, takes only `bytes`.
"""

from __future__ import annotations

import ctypes

_WRITABLE = 0x200  # PyBUF_WRITE

_make = ctypes.pythonapi.PyBytes_FromStringAndSize
_make.argtypes, _make.restype = (ctypes.c_char_p, ctypes.c_ssize_t), ctypes.py_object
_start_of = ctypes.pythonapi.PyBytes_AsString
_start_of.argtypes, _start_of.restype = (ctypes.py_object,), ctypes.c_void_p
_look_at = ctypes.pythonapi.PyMemoryView_FromMemory
_look_at.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_look_at.restype = ctypes.py_object


def new_bytes(num_bytes: int) -> tuple[bytes, memoryview]:
    """Bytes with anything in them, and a view to write all of them through.

    The view is valid while the bytes are, and not to be used any more once they are handed on.
    Raises ValueError for one byte or none: these are shared by everybody.
    """
    if num_bytes < 2:
        raise ValueError(f"{num_bytes} bytes of one's own; make them as usual")
    made: bytes = _make(None, num_bytes)
    view: memoryview = _look_at(_start_of(made), num_bytes, _WRITABLE)
    return made, view
