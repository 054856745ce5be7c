"""The call of source/routing/cost_terms.cpp. The interpreter waits meanwhile."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Sequence
from functools import cache
from struct import Struct
from typing import Any, NamedTuple

_ADDRESS, _NUM, _BYTES = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p
_ASKED = Struct("13d")


class Rows(NamedTuple):
    """Where an array lies whose rows are so far apart, and how many places of a row are used."""

    address: int
    stride: int
    num: int


class InLine(NamedTuple):
    """Where the columns of those who wait lie."""

    rows: int
    due_s: int
    work_s: int
    num: int


def cost_terms(
    library: ctypes.CDLL,
    asked: Sequence[float],
    numbers: Rows,
    places: int | None,
    held: int,
    ends_and_sums: Sequence[float],
    line: InLine,
    out: Rows,
) -> None:
    """`places`, `held`: addresses. `ends_and_sums`: empty, if all tokens are charged."""
    charged = array.array("d", ends_and_sums)
    _call(library)(
        _ASKED.pack(*asked),
        *numbers,
        places,
        out.num,
        held,
        charged.buffer_info()[0] if charged else None,
        len(charged) // 2,
        *line,
        out.address,
    )


@cache
def _call(library: ctypes.CDLL) -> Any:
    types = (
        *(_BYTES, _ADDRESS, _NUM, _NUM, _ADDRESS, _NUM, _ADDRESS),
        *(_ADDRESS, _NUM, _ADDRESS, _ADDRESS, _ADDRESS, _NUM, _ADDRESS),
    )
    return ctypes.PYFUNCTYPE(None, *types)(("baton_cost_terms", library))
