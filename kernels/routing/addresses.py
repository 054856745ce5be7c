"""Where arrays lie, for calls of the library."""

from __future__ import annotations

import ctypes
from typing import Any, TypeAlias

Writable: TypeAlias = Any
"""An array whose items lie end to end, whosever it is: nothing here knows numpy."""

_of, _first = ctypes.byref, ctypes.c_char.from_buffer


def address(numbers: Writable) -> Any:
    """An array's own word of its address takes longer than most calls."""
    return _of(_first(numbers))
