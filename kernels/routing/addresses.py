"""Where arrays lie, for calls of the library."""

from __future__ import annotations

import ctypes
from typing import Any, TypeAlias

Writable: TypeAlias = Any
"""An array whose items lie end to end, whosever it is: nothing here knows numpy."""

_of, _first = ctypes.addressof, ctypes.c_char.from_buffer


def address(numbers: Writable) -> int:
    """An array's own word of its address takes longer than most calls. It holds for as long as the
    array is there."""
    return _of(_first(numbers))
