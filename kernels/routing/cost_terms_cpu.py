"""Calls source/routing/cost_terms.cpp, holding the GIL."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Sequence
from functools import cache
from struct import Struct
from typing import Any, NamedTuple

from baton.kernels.routing.addresses import Writable, address

_ADDRESS, _NUM, _BYTES = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p
_DRAW = ctypes.c_uint64
_ASKED = Struct("23d")


class Rows(NamedTuple):
    """Address, stride and number of used rows of the columns of all replicas."""

    address: int
    stride: int
    num: int


class InLine(NamedTuple):
    """Addresses of the columns of waiting requests."""

    rows: int
    due_s: int
    work_s: int
    num: int


class Replicas(NamedTuple):
    """The candidate replicas whose cost terms are computed."""

    columns: Rows
    line: InLine
    places: Writable | None
    """Row of each candidate; None: the first `num` rows."""
    num: int
    held: Writable
    """Leading prompt tokens that each candidate need not compute."""
    fetch_s: Writable | None
    """Seconds to fetch the missing ones of those; None: none are missing."""
    handoff_s: Writable | None
    """Seconds from the first token until the KV is where it is decoded; None: 0."""


class Least(NamedTuple):
    """Where the least costs and their terms are written."""

    draws: int
    """Address of the draws by row, for ties."""
    draw: int
    """The draw of the prompt."""
    told: Writable
    """[term, index], and two rows more: tokens that each need not compute, seconds to fetch."""


def cost_terms(
    library: ctypes.CDLL,
    asked: Sequence[float],
    ends_and_sums: Sequence[float],
    replicas: Replicas,
    out: Writable,
    least: Least,
) -> array.array[int]:
    """Indices of the candidates with the least cost, the least first, as many as are reported.
    `ends_and_sums`: empty if all tokens are charged."""
    charged = array.array("d", ends_and_sums)
    num_found = len(least.told[0])
    found = array.array("q", bytes(8 * num_found))
    columns, line, places, num, held, fetch_s, handoff_s = replicas
    _call(library)(
        _ASKED.pack(*asked),
        *columns,
        None if places is None else address(places),
        num,
        address(held),
        None if fetch_s is None else address(fetch_s),
        None if handoff_s is None else address(handoff_s),
        charged.buffer_info()[0] if charged else None,
        len(charged) // 2,
        *line,
        address(out),
        *(least.draws, least.draw, num_found, found.buffer_info()[0], address(least.told)),
    )
    return found


@cache
def _call(library: ctypes.CDLL) -> Any:
    types = (
        *(_BYTES, _ADDRESS, _NUM, _NUM, _ADDRESS, _NUM, _ADDRESS, _ADDRESS, _ADDRESS),
        *(_ADDRESS, _NUM, _ADDRESS, _ADDRESS, _ADDRESS, _NUM, _ADDRESS),
        *(_ADDRESS, _DRAW, _NUM, _ADDRESS, _ADDRESS),
    )
    return ctypes.PYFUNCTYPE(None, *types)(("baton_cost_terms", library))
