"""Calls source/names/name_set.cpp, holding the GIL."""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from types import SimpleNamespace

from baton.core.block_hash import DIGEST_BYTES, BlockNames

_SET, _NUM, _BYTES = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p


class CompiledSet:
    """A `baton.kernels.names.name_set.NameSet`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._call = _functions(library)
        self._set = self._call.new()
        # Do not free at interpreter exit: a thread may still be looking something up.
        weakref.finalize(self, self._call.free, self._set).atexit = False

    def add(self, name: bytes) -> None:
        self._call.add(self._set, name)

    def remove(self, name: bytes) -> None:
        self._call.remove(self._set, name)

    def last(self, names: BlockNames, start: int) -> int:
        num = len(names) - start
        packed = names.packed[start * DIGEST_BYTES :] if start else names.packed
        found: int = self._call.last(self._set, packed, num)
        return found + start if found >= 0 else -1


@cache
def _functions(library: ctypes.CDLL) -> SimpleNamespace:
    functions = {
        "new": (_SET, ()),
        "free": (None, (_SET,)),
        "add": (ctypes.c_bool, (_SET, _BYTES)),
        "remove": (None, (_SET, _BYTES)),
        "last": (_NUM, (_SET, _BYTES, _NUM)),
    }
    return SimpleNamespace(
        **{
            name: ctypes.PYFUNCTYPE(returned, *taken)((f"baton_names_{name}", library))
            for name, (returned, taken) in functions.items()
        }
    )
