"""Calls source/routing/offers.cpp, holding the GIL."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from struct import Struct
from typing import Any, NamedTuple

from baton.kernels.routing.addresses import Writable, address
from baton.kernels.routing.cost_terms_cpu import InLine, Rows

_TAKER, _LINE = Struct("10d"), Struct("6q")
_ADDRESS, _NUM, _BYTES, _SLOT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p, ctypes.c_uint32


class Offered(NamedTuple):
    """The waiting prompts, and their replicas."""

    columns: Rows
    """The columns of all replicas."""
    places: Writable | None
    """Row of each replica whose line is looked at; None: the first `num` rows."""
    num: int
    line: InLine
    facts: Rows
    """The constant facts of the waiting prompts."""
    max_offered: int
    """Most prompts of each line that are considered."""
    max_looked_at: int
    """Most of those that are looked up."""


def best_offer(
    library: ctypes.CDLL, taker: Sequence[float], offered: Offered, blocks: tuple[int, int]
) -> int:
    """The column in the line of the prompt that gains most by moving to the taker; -1 if none
    gains. `blocks`: the holder table's address, and the taker's slot."""
    columns, places, num, line, facts, max_offered, max_looked_at = offered
    place: int = _call(library)(
        _TAKER.pack(*taker),
        *(columns.address, columns.stride, columns.num),
        None if places is None else address(places),
        num,
        _LINE.pack(line.rows, line.due_s, line.work_s, *facts),
        *(max_offered, max_looked_at, *blocks),
    )
    return place


@cache
def _call(library: ctypes.CDLL) -> Any:
    types = (
        *(_BYTES, _ADDRESS, _NUM, _NUM, _ADDRESS, _NUM, _BYTES, _NUM, _NUM),
        *(_ADDRESS, _SLOT),
    )
    return ctypes.PYFUNCTYPE(_NUM, *types)(("baton_best_offer", library))
