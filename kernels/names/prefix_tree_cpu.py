"""Calls source/names/prefix_tree.cpp, holding the GIL."""

from __future__ import annotations

import array
import ctypes
import weakref
from functools import cache
from types import SimpleNamespace
from typing import Any

from baton.core.block_hash import BlockNames

_NUMBER_BYTES = 4
_TREE, _NUMBER, _NUM = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int64
_BYTES, _OUT = ctypes.c_char_p, ctypes.c_void_p
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "new": (_TREE, ()),
    "free": (None, (_TREE,)),
    "is_empty": (ctypes.c_bool, (_TREE,)),
    "add": (None, (_TREE, _NUMBER, _BYTES, _NUM)),
    "remove": (None, (_TREE, _NUMBER, _BYTES, _NUM)),
    "depths": (_NUM, (_TREE, _BYTES, _NUM, _OUT)),
}
"""Result and argument types of the library's functions, by name."""


class CompiledTree:
    """A `baton.kernels.names.prefix_tree.PrefixTree`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._call = _functions(library)
        self._tree = self._call.new()
        # Do not free at interpreter exit: a thread may still be looking something up.
        weakref.finalize(self, self._call.free, self._tree).atexit = False

    def __bool__(self) -> bool:
        return not self._call.is_empty(self._tree)

    def add(self, number: int, names: BlockNames) -> None:
        self._call.add(self._tree, number, names.packed, len(names))

    def remove(self, number: int, names: BlockNames) -> None:
        self._call.remove(self._tree, number, names.packed, len(names))

    def depths(self, names: BlockNames, num: int) -> array.array[int]:
        found = array.array("I", bytes(_NUMBER_BYTES * (num + 1)))
        self._call.depths(self._tree, names.packed, len(names), found.buffer_info()[0])
        return found

    def num_passed(self, names: BlockNames) -> int:
        num: int = self._call.depths(self._tree, names.packed, len(names), None)
        return num


@cache
def _functions(library: ctypes.CDLL) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            name: ctypes.PYFUNCTYPE(returned, *taken)((f"baton_prefixes_{name}", library))
            for name, (returned, taken) in _FUNCTIONS.items()
        }
    )
