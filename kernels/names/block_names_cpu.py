"""Calls source/names/block_names.cpp, holding the GIL."""

from __future__ import annotations

import array
import ctypes
from functools import cache
from struct import Struct
from types import SimpleNamespace

from baton.core.block_hash import DIGEST_BYTES

_NAME, _NUM, _ADDRESS = ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p
_NUMBER = ctypes.cast(ctypes.pythonapi.PyLong_AsLongLong, _ADDRESS)
"""Reads Python integers whose memory layout is not known."""
_ITEM_BYTES = ctypes.sizeof(_ADDRESS)
_SMALL_NUMBER = Struct("2Q")


def block_names(
    library: ctypes.CDLL,
    parent: bytes,
    tokens: array.array[int],
    block_size: int,
    *,
    is_plain: bool = False,
) -> bytes:
    """The names of all full blocks, concatenated.

    `is_plain`: do not use the CPU's instructions for hashing.
    """
    num_blocks = len(tokens) // block_size
    names = _room(parent, num_blocks)
    of_words = _calls(library).of_words
    of_words(parent, tokens.buffer_info()[0], num_blocks, block_size, is_plain, names)
    return names.raw


def block_names_of_tuple(
    library: ctypes.CDLL,
    parent: bytes,
    tokens: tuple[int, ...],
    block_size: int,
    start: int,
    num_blocks: int,
) -> bytes:
    """The names of this many blocks from the token `start` on, concatenated."""
    names = _room(parent, num_blocks)
    items = id(tokens) + tuple.__basicsize__ + start * _ITEM_BYTES
    of_items = _calls(library).of_items
    num_named = of_items(parent, items, num_blocks, block_size, _NUMBER, _small_number(), names)
    if num_named < num_blocks:
        place = start + num_named * block_size
        raise OverflowError(f"among {tokens[place : place + block_size]} is no token of 32 bits")
    return names.raw


def _room(parent: bytes, num_blocks: int) -> ctypes.Array[ctypes.c_char]:
    if len(parent) != DIGEST_BYTES:
        raise ValueError(f"a name has {DIGEST_BYTES} bytes, not {len(parent)}")
    room: ctypes.Array[ctypes.c_char] = (ctypes.c_char * (num_blocks * DIGEST_BYTES))()
    return room


@cache
def are_items_in_line() -> bool:
    """Whether this interpreter stores the items of a tuple right after its header, as CPython
    does."""
    items = object(), object()
    address = id(items) + tuple.__basicsize__
    found = [
        _ADDRESS.from_address(address + place * _ITEM_BYTES).value for place in range(len(items))
    ]
    return found == list(map(id, items))


@cache
def _small_number() -> bytes:
    """The bytes with which small exact integers begin, after the reference count; zeros if this
    interpreter does not store them like CPython, which is tested."""
    ones, others = (1, 1000, 150_000, 2**30 - 1), (-1, -150_000, 2**30, 2**32 - 1)
    if any(one.__sizeof__() < 28 for one in (*ones, *others)):
        return _SMALL_NUMBER.pack(0, 0)
    (_, kind, size), *same = [_words(one) for one in ones]
    are_as_expected = (
        kind == id(int)
        and all(head[1:] == (kind, size) for head in same)
        and all(ctypes.c_uint32.from_address(id(one) + 24).value == one for one in ones)
        and all(_words(other)[1:] != (kind, size) for other in (*others, True))
    )
    return _SMALL_NUMBER.pack(*((kind, size) if are_as_expected else (0, 0)))


def _words(number: int) -> tuple[int, ...]:
    return tuple((ctypes.c_uint64 * 3).from_address(id(number)))


@cache
def _calls(library: ctypes.CDLL) -> SimpleNamespace:
    of_words = ctypes.PYFUNCTYPE(None, _NAME, _ADDRESS, _NUM, _NUM, ctypes.c_int32, _ADDRESS)
    of_items = ctypes.PYFUNCTYPE(_NUM, _NAME, _ADDRESS, _NUM, _NUM, _ADDRESS, _NAME, _ADDRESS)
    return SimpleNamespace(
        of_words=of_words(("baton_block_names", library)),
        of_items=of_items(("baton_block_names_of_items", library)),
    )
