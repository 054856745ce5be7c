"""Calls source/names/holder_table.cpp.

The GIL is held, so that no other Python thread sees a half-changed table.
"""

from __future__ import annotations

import array
import ctypes
import weakref
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

from baton.core.block_hash import DIGEST_BYTES, BlockNames

_WORD_BYTES, _SLOT_BYTES = 8, 4
_TABLE, _SLOT, _NUM = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int64
_BYTES, _OUT = ctypes.c_char_p, ctypes.c_void_p
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "new": (_TABLE, ()),
    "free": (None, (_TABLE,)),
    "size": (_NUM, (_TABLE,)),
    "add": (_NUM, (_TABLE, _SLOT, _BYTES, _NUM)),
    "remove": (_NUM, (_TABLE, _SLOT, _BYTES, _NUM)),
    "leading": (None, (_TABLE, _BYTES, _NUM, _BYTES, _NUM, _OUT)),
    "leading_of": (None, (_TABLE, _SLOT, _OUT, _OUT, _NUM, _OUT)),
    "begin_sweep": (None, (_TABLE, _BYTES, _NUM)),
    "sweep": (ctypes.c_int32, (_TABLE, _NUM)),
}
"""Result and argument types of the library's functions, by name."""


class CompiledTable:
    """A `baton.kernels.names.holder_table.HolderTable`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._call = _functions(library)
        self._table = self._call.new()
        self._live = 0, b""
        """The last requested slots, and the same as words of bits."""
        # Do not free at interpreter exit: a thread may still be looking something up.
        weakref.finalize(self, self._call.free, self._table).atexit = False

    @property
    def address(self) -> int | None:
        address: int = self._table
        return address

    def __len__(self) -> int:
        return int(self._call.size(self._table))

    def add(self, slot: int, names: BlockNames) -> int:
        return int(self._call.add(self._table, slot, names.packed, len(names)))

    def remove(self, slot: int, names: BlockNames) -> int:
        return int(self._call.remove(self._table, slot, names.packed, len(names)))

    def num_leading(self, names: BlockNames, live: int) -> array.array[int]:
        if self._live[0] != live:
            self._live = live, _words(live)
        words = self._live[1]
        depths = array.array("I", bytes((live.bit_length() + 1) * _SLOT_BYTES))
        self._call.leading(
            self._table,
            names.packed,
            len(names),
            words,
            len(words) // _WORD_BYTES,
            depths.buffer_info()[0],
        )
        return depths

    def num_leading_of(self, prompts: Sequence[BlockNames], slot: int) -> array.array[int]:
        num = len(prompts)
        packed = [names.packed for names in prompts]
        sizes = array.array("q", [len(one) // DIGEST_BYTES for one in packed])
        depths = array.array("I", bytes(num * _SLOT_BYTES))
        self._call.leading_of(
            self._table,
            slot,
            (_BYTES * num)(*packed),
            sizes.buffer_info()[0],
            num,
            depths.buffer_info()[0],
        )
        return depths

    def begin_sweep(self, dead: int) -> None:
        words = _words(dead)
        self._call.begin_sweep(self._table, words, len(words) // _WORD_BYTES)

    def sweep(self, stretch: int) -> bool:
        return bool(self._call.sweep(self._table, stretch))


def _words(slots: int) -> bytes:
    return slots.to_bytes(-(-slots.bit_length() // 64) * _WORD_BYTES, "little")


@cache
def _functions(library: ctypes.CDLL) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            name: ctypes.PYFUNCTYPE(returned, *taken)((f"baton_holders_{name}", library))
            for name, (returned, taken) in _FUNCTIONS.items()
        }
    )
