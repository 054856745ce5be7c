"""What sending a piece of KV to a socket and receiving it have in common."""

from __future__ import annotations

import ctypes
from enum import IntEnum

HEADER_BYTES = 16
WORD_BYTES = 8


class State(IntEnum):
    """What a call of source/paging/send.cpp or receive.cpp returns, as in piece_stream.h; a
    negative number is an errno."""

    ALL = 0
    NOT_YET = 1
    ENDED = 2
    """The other end has closed the connection."""
    ANOTHER = 3
    """The header is another than expected."""
    GIVEN_UP = 4
    """Another thread has said so."""


class GivingUp:
    """Whether what is being sent was given up. Any thread may say so, and compiled code looks."""

    def __init__(self) -> None:
        self._word = ctypes.c_int32()

    @property
    def address(self) -> int:
        """The address of an int32, which is 0 until it is set."""
        return ctypes.addressof(self._word)

    @property
    def is_set(self) -> bool:
        return bool(self._word.value)

    def set(self) -> None:
        self._word.value = 1
