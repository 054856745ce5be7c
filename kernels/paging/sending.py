"""Compiled sending of pieces to a socket from their blocks, with checksums computed right before.

A piece is followed by the checksums of its units, and one checksum of these.

The GIL is released meanwhile.
"""

from __future__ import annotations

import ctypes
from functools import cache

from baton.core.block_views import BlockViews
from baton.kernels.cpu.library import library
from baton.kernels.paging.checksum_cpu import CONTIGUOUS, Blocks, Looks, num_units_of
from baton.kernels.paging.piece_stream import HEADER_BYTES, WORD_BYTES, GivingUp

AT_ONCE_BYTES = 512 << 10
"""Bytes that are checksummed and then sent at a time. Less would cost more system calls, each of
which wakes the receiver; more would not stay in the caches until the kernel copies it."""


def can_send() -> bool:
    """Whether this machine has the function."""
    return library() is not None


class _Dispatch(ctypes.Structure):
    _fields_ = (("num_units", ctypes.c_int64), ("num_bytes", ctypes.c_int64))


class Sending:
    """Sends one piece, after its header and before its checksums, on one thread."""

    def __init__(self, sources: BlockViews, unit_bytes: int, header: bytes) -> None:
        """Needs `can_send`, and a `header` of `HEADER_BYTES`."""
        if len(header) != HEADER_BYTES:
            raise ValueError(f"a header of {len(header)} bytes")
        self._sources = sources
        self._unit_bytes = unit_bytes
        self._header = header
        self._dispatch = _Dispatch()
        self._num_units = num_units_of(sources.size, unit_bytes)
        num_words = self._num_units * len(sources) + 1
        self._sums = ctypes.create_string_buffer(WORD_BYTES * num_words)

    def go_on(self, socket: int, limit_s: float, giving_up: GivingUp) -> int:
        """Send more, for about `limit_s`: `State`, or -errno.

        If it is given up meanwhile, it returns within the socket's own time limit, and reads no
        block after that.
        """
        with Looks() as looks:
            blocks: Blocks = looks.at(self._sources, CONTIGUOUS)
            found: int = _function()(
                socket,
                ctypes.addressof(blocks),
                self._num_units,
                self._unit_bytes,
                self._header,
                AT_ONCE_BYTES,
                limit_s,
                giving_up.address,
                ctypes.addressof(self._dispatch),
                ctypes.addressof(self._sums),
            )
        return found


@cache
def _function() -> ctypes._NamedFuncPointer:
    compiled = library()
    assert compiled is not None
    function = compiled.baton_send
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = (
        *(number, pointer, number, number, ctypes.c_char_p, number),
        *(ctypes.c_double, pointer, pointer, pointer),
    )
    function.restype = number
    return function
