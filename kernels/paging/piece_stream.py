"""What sending a piece of KV to a socket and receiving it have in common."""

from __future__ import annotations

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
