"""The calls of source/names/block_names.cpp. The interpreter waits meanwhile."""

from __future__ import annotations

import array
import ctypes
from functools import cache
from types import SimpleNamespace

from baton.core.block_hash import DIGEST_BYTES

_NAME, _NUM, _ADDRESS = ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p
_READS = tuple(
    ctypes.cast(function, _ADDRESS)
    for function in (ctypes.pythonapi.PyTuple_GetItem, ctypes.pythonapi.PyLong_AsLongLong)
)
"""How the interpreter's own tuples and numbers are read: no library knows their layout."""


def block_names(
    library: ctypes.CDLL, parent: bytes, tokens: array.array[int], block_size: int
) -> bytes:
    """The names of all full blocks, end to end."""
    num_blocks = len(tokens) // block_size
    names = _room(parent, num_blocks)
    _calls(library).of_words(parent, tokens.buffer_info()[0], num_blocks, block_size, names)
    return names.raw


def block_names_of_tuple(
    library: ctypes.CDLL,
    parent: bytes,
    tokens: tuple[int, ...],
    block_size: int,
    start: int,
    num_blocks: int,
) -> bytes:
    """The names of so many blocks from the token `start` on, end to end."""
    names = _room(parent, num_blocks)
    of_tuple = _calls(library).of_tuple
    num_named = of_tuple(parent, tokens, start, num_blocks, block_size, *_READS, names)
    if num_named < num_blocks:
        place = start + num_named * block_size
        raise OverflowError(f"among {tokens[place : place + block_size]} is no token of 32 bits")
    return names.raw


def _room(parent: bytes, num_blocks: int) -> ctypes.Array[ctypes.c_char]:
    if len(parent) != DIGEST_BYTES:
        raise ValueError(f"a name has {DIGEST_BYTES} bytes, not {len(parent)}")
    return ctypes.create_string_buffer(num_blocks * DIGEST_BYTES)


@cache
def _calls(library: ctypes.CDLL) -> SimpleNamespace:
    of_words = ctypes.PYFUNCTYPE(None, _NAME, _ADDRESS, _NUM, _NUM, _ADDRESS)
    reads = (_ADDRESS, _ADDRESS)
    of_tuple = ctypes.PYFUNCTYPE(_NUM, _NAME, ctypes.py_object, _NUM, _NUM, _NUM, *reads, _ADDRESS)
    return SimpleNamespace(
        of_words=of_words(("baton_block_names", library)),
        of_tuple=of_tuple(("baton_block_names_of_tuple", library)),
    )
