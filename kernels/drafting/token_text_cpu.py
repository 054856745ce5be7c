"""Calls source/drafting/token_text.cpp, holding the GIL."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

from baton.kernels.drafting.look_up import LookUp

_TEXT, _NUM, _ADDRESS = ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
_TOKEN_BYTES, _CONFIDENCE_BYTES = 4, 8
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "new": (_TEXT, ()),
    "free": (None, (_TEXT,)),
    "extend": (None, (_TEXT, _ADDRESS, _NUM)),
    "last": (None, (_TEXT, _NUM, _ADDRESS)),
    "longest": (_NUM, (_TEXT, _ADDRESS, _NUM, _ADDRESS, _ADDRESS)),
    "agreed": (_NUM, (_TEXT, _TEXT, _ADDRESS, _NUM, _ADDRESS, _NUM, _ADDRESS, _ADDRESS)),
}
"""Result and argument types of the library's functions, by name."""


class _LookUp(ctypes.Structure):
    _fields_ = (
        ("max_match", ctypes.c_int64),
        ("max_places", ctypes.c_int64),
        ("min_share", ctypes.c_double),
        ("sure_length", ctypes.c_double),
    )


class CompiledText:
    """A `baton.kernels.drafting.token_text.TokenText`, about 20 bytes a token."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._call = _functions(library)
        self._text = self._call.new()
        # Do not free at interpreter exit: a thread may still be looking something up.
        weakref.finalize(self, self._call.free, self._text).atexit = False
        self._num = 0
        self._found, self._confidences = array("i"), array("d")
        """Buffers for results of look-ups."""

    def __len__(self) -> int:
        return self._num

    def extend(self, tokens: Sequence[int]) -> None:
        words = array("i", tokens)
        self._call.extend(self._text, words.buffer_info()[0], len(words))
        self._num += len(words)

    def num_touched(self, num_new: int) -> int:
        return num_new

    def last(self, num_tokens: int) -> list[int]:
        num = min(num_tokens, self._num)
        found = array("i", bytes(_TOKEN_BYTES * num))
        self._call.last(self._text, num, found.buffer_info()[0])
        return found.tolist()

    def longest(self, tokens: Sequence[int], how: LookUp) -> tuple[int, int]:
        end, length = self._end_of(tokens, how), array("q", (0,))
        place: int = self._call.longest(
            self._text,
            end.buffer_info()[0] if end else None,
            len(end),
            _address_of(how),
            length.buffer_info()[0],
        )
        return place, length[0]

    def agreed(
        self, tokens: Sequence[int], how: LookUp, max_tokens: int, other: object | None
    ) -> tuple[list[int], list[float]]:
        assert other is None or isinstance(other, CompiledText)
        if len(self._found) < max_tokens:
            self._found = array("i", bytes(_TOKEN_BYTES * max_tokens))
            self._confidences = array("d", bytes(_CONFIDENCE_BYTES * max_tokens))
        end = self._end_of(tokens, how)
        num = self._call.agreed(
            self._text,
            None if other is None else other._text,
            end.buffer_info()[0] if end else None,
            len(end),
            _address_of(how),
            max_tokens,
            self._found.buffer_info()[0],
            self._confidences.buffer_info()[0],
        )
        return self._found[:num].tolist(), self._confidences[:num].tolist()

    def _end_of(self, tokens: Sequence[int], how: LookUp) -> array[int]:
        """The end of `tokens`; empty if the text itself ends with it."""
        if len(tokens) == self._num:
            return array("i")
        return array("i", tokens[-max(2, how.max_match) :])


@cache
def _address_of(how: LookUp) -> int:
    kept = _kept(how)
    return ctypes.addressof(kept)


@cache
def _kept(how: LookUp) -> _LookUp:
    return _LookUp(*how)


@cache
def _functions(library: ctypes.CDLL) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            name: ctypes.PYFUNCTYPE(returned, *taken)((f"baton_text_{name}", library))
            for name, (returned, taken) in _FUNCTIONS.items()
        }
    )
