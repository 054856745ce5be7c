"""Compiled receiving of pieces from a socket into their blocks, with checksums computed on the way.

The GIL is released meanwhile.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache

from baton.core.block_views import BlockViews
from baton.kernels.cpu.library import library
from baton.kernels.paging.checksum_cpu import WRITABLE, Blocks, Looks, num_units_of
from baton.kernels.paging.piece_stream import HEADER_BYTES, WORD_BYTES

BUFFER_BYTES = 1 << 20
"""Bytes received at a time, in a buffer of each receiving thread. Less would cost more system
calls, and more would not stay in the caches."""


def can_receive(unit_bytes: int) -> bool:
    """Whether this machine has the function, for units of this length."""
    return 0 < unit_bytes <= BUFFER_BYTES and library() is not None


class _Receipt(ctypes.Structure):
    _fields_ = (
        ("header", ctypes.c_char * HEADER_BYTES),
        ("num_header_bytes", ctypes.c_int64),
        ("num_units", ctypes.c_int64),
        ("num_bytes", ctypes.c_int64),
        ("num_trailer_bytes", ctypes.c_int64),
    )


class Receiving:
    """Receives one piece, after its header and before its trailer, on one thread."""

    def __init__(
        self, targets: BlockViews, unit_bytes: int, header: bytes, trailer_bytes: int = 0
    ) -> None:
        """Units must satisfy `can_receive`, and `header` must have `HEADER_BYTES`."""
        if not can_receive(unit_bytes) or len(header) != HEADER_BYTES:
            raise ValueError(f"units of {unit_bytes} bytes behind a header of {len(header)}")
        self._targets = targets
        self._unit_bytes = unit_bytes
        self._expected = header
        self._receipt = _Receipt()
        self._num_units = num_units_of(targets.size, unit_bytes)
        self._sums = ctypes.create_string_buffer(WORD_BYTES * self._num_units * len(targets))
        self._trailer = ctypes.create_string_buffer(trailer_bytes)

    @property
    def header(self) -> bytes:
        """The received header, if it is not the expected one."""
        return ctypes.string_at(ctypes.addressof(self._receipt), HEADER_BYTES)

    @property
    def checksums(self) -> bytes:
        """The checksum of each unit, once all are received."""
        return self._sums.raw

    @property
    def trailer(self) -> bytes:
        """The bytes after the units, once received."""
        return self._trailer.raw

    def go_on(self, socket: int, limit_s: float) -> int:
        """Receive more, for about `limit_s` or the socket's own time limit: `State`, or -errno.

        Raises BufferError for memory that cannot be written.
        """
        with Looks() as looks:
            blocks: Blocks = looks.at(self._targets, WRITABLE)
            found: int = _function()(
                socket,
                ctypes.addressof(blocks),
                self._num_units,
                self._unit_bytes,
                self._expected,
                ctypes.addressof(_buffer()),
                BUFFER_BYTES,
                limit_s,
                ctypes.addressof(self._receipt),
                ctypes.addressof(self._sums),
                ctypes.addressof(self._trailer),
                len(self._trailer),
            )
        return found


class _Own(threading.local):
    buffer: ctypes.Array[ctypes.c_char] | None = None


_own = _Own()


def _buffer() -> ctypes.Array[ctypes.c_char]:
    """The buffer of this thread; received data passes through memory in its core's caches."""
    if _own.buffer is None:
        _own.buffer = ctypes.create_string_buffer(BUFFER_BYTES)
    return _own.buffer


@cache
def _function() -> ctypes._NamedFuncPointer:
    compiled = library()
    assert compiled is not None
    function = compiled.baton_receive
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = (
        *(number, pointer, number, number, ctypes.c_char_p, pointer, number),
        *(ctypes.c_double, pointer, pointer, pointer, number),
    )
    function.restype = number
    return function
