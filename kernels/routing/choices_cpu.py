"""The calls of source/routing/choices.cpp. The interpreter waits meanwhile."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Sequence
from functools import cache
from struct import Struct
from types import SimpleNamespace

from baton.kernels.routing.addresses import Writable, address
from baton.kernels.routing.cost_terms_cpu import Rows

_ASKED_TO_DECODE = Struct("8d")
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


def decode_costs(
    library: ctypes.CDLL,
    asked: Sequence[float],
    facts: Rows,
    by_row: tuple[Writable, Writable, Writable],
    places: Writable | None,
    out: Writable,
) -> None:
    """Write what decoding a request costs at each of `places`, or at all rows if that is None.
    `by_row`: seconds until it is free, tokens of the prompt that it has, that are on their way
    there. `out`: [term, place], the sum last."""
    at = None if places is None else address(places)
    num = facts.num if places is None else len(places)
    _calls(library).decode_costs(
        _ASKED_TO_DECODE.pack(*asked),
        *(facts.address, facts.stride),
        *map(address, by_row),
        *(at, num, address(out)),
    )


@cache
def _calls(library: ctypes.CDLL) -> SimpleNamespace:
    of_costs = (_ADDRESS, _NUM, _ADDRESS, _ADDRESS, _DRAW, _NUM, _ADDRESS)
    of_facts = (ctypes.c_char_p, _ADDRESS, _NUM, *[_ADDRESS] * 4, _NUM, _ADDRESS)
    return SimpleNamespace(
        least=ctypes.PYFUNCTYPE(None, *of_costs)(("baton_least", library)),
        decode_costs=ctypes.PYFUNCTYPE(None, *of_facts)(("baton_decode_costs", library)),
    )
