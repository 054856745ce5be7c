"""The calls of source/routing/choices.cpp. The interpreter waits meanwhile."""

from __future__ import annotations

import array
import ctypes
from functools import cache
from types import SimpleNamespace

from baton.kernels.routing.addresses import Writable, address

_ADDRESS, _NUM, _DRAW = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64


def least(
    library: ctypes.CDLL,
    costs: Writable,
    draws: Writable,
    rows: Writable | None,
    draw: int,
    num: int,
) -> array.array[int]:
    """Places of the least `num` of the costs, the least first; equals by `draws[rows]` and `draw`.

    `rows`: None, if a place is its row.
    """
    num_costs = len(costs)
    num_found = min(num, num_costs)
    found = array.array("q", bytes(8 * num_found))
    _calls(library).least(
        address(costs),
        num_costs,
        address(draws),
        None if rows is None else address(rows),
        draw,
        num_found,
        found.buffer_info()[0],
    )
    return found


def least_busy(
    library: ctypes.CDLL,
    facts: tuple[Writable, Writable, Writable, Writable],
    rows: Writable | None,
    many: float,
    draw: int,
) -> int:
    """The place of who has least to do. `facts`, by row: tokens it has to compute, tokens of the
    prompt that it has, that are on their way there, draws. `rows`: None, if all are asked."""
    num = len(facts[0]) if rows is None else len(rows)
    at = None if rows is None else address(rows)
    place: int = _calls(library).least_busy(*map(address, facts), at, num, many, draw)
    return place


@cache
def _calls(library: ctypes.CDLL) -> SimpleNamespace:
    of_costs = (_ADDRESS, _NUM, _ADDRESS, _ADDRESS, _DRAW, _NUM, _ADDRESS)
    of_facts = (*[_ADDRESS] * 5, _NUM, ctypes.c_double, _DRAW)
    return SimpleNamespace(
        least=ctypes.PYFUNCTYPE(None, *of_costs)(("baton_least", library)),
        least_busy=ctypes.PYFUNCTYPE(_NUM, *of_facts)(("baton_least_busy", library)),
    )
