"""The call of source/names/block_names.cpp."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable, Sequence
from functools import cache

from baton.core.block_hash import DIGEST_BYTES

_OF = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def block_names(
    library: ctypes.CDLL, parent: bytes, tokens: Sequence[int], block_size: int
) -> bytes:
    """The names of all full blocks, end to end. The interpreter waits meanwhile."""
    if len(parent) != DIGEST_BYTES:
        raise ValueError(f"a name has {DIGEST_BYTES} bytes, not {len(parent)}")
    words = array.array("I", tokens)
    num_blocks = len(words) // block_size
    names = ctypes.create_string_buffer(num_blocks * DIGEST_BYTES)
    _function(library)(parent, words.buffer_info()[0], num_blocks, block_size, names)
    return names.raw


@cache
def _function(library: ctypes.CDLL) -> Callable[[bytes, int, int, int, object], None]:
    return ctypes.PYFUNCTYPE(None, *_OF)(("baton_block_names", library))
