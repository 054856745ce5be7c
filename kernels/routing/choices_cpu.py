"""Calls source/routing/choices.cpp, holding the GIL."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Sequence
from functools import cache
from struct import Struct
from types import SimpleNamespace
from typing import NamedTuple

from baton.kernels.routing.addresses import Writable, address
from baton.kernels.routing.cost_terms_cpu import Rows

_ASKED_TO_DECODE, _LENDER = Struct("11d"), Struct("7d")
_ADDRESS, _NUM, _DRAW = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64


def least(
    library: ctypes.CDLL,
    costs: Writable,
    draws: int,
    rows: Writable | None,
    draw: int,
    num: int,
) -> array.array[int]:
    """Indices of the least `num` costs, the least first; ties are broken by `draws[rows]` and
    `draw`.

    `draws`: their address. `rows`: the row of each index; None: they are equal.
    """
    num_costs = len(costs)
    num_found = min(num, num_costs)
    found = array.array("q", bytes(8 * num_found))
    _calls(library).least(
        address(costs),
        num_costs,
        draws,
        None if rows is None else address(rows),
        draw,
        num_found,
        found.buffer_info()[0],
    )
    return found


class Decoders(NamedTuple):
    """The replicas that might decode a request."""

    columns: Rows
    facts: Rows
    cached: Writable
    """By row: leading tokens of the prompt in the replica's cache."""
    expected: Writable
    """By row: leading tokens of the prompt that it is about to receive."""
    draws: int
    """Address of their draws, by row."""
    places: Writable | None
    """Row of each; None: the first `columns.num` rows."""


def least_to_decode(
    library: ctypes.CDLL, asked: Sequence[float], decoders: Decoders, draw: int, out: Writable
) -> array.array[int]:
    """Indices of the replicas where decoding a request costs least, the least first; ties are
    broken by `draws` and `draw`. `out`: [term, index], their sum, and last the tokens of the prompt
    that each has or will have."""
    columns, facts, cached, expected, draws, places = decoders
    num = columns.num if places is None else len(places)
    num_found = len(out[0])
    found = array.array("q", bytes(8 * num_found))
    _calls(library).least_to_decode(
        _ASKED_TO_DECODE.pack(*asked),
        *(columns.address, columns.stride, facts.address, facts.stride),
        *(address(cached), address(expected), draws),
        *(None if places is None else address(places), num),
        *(draw, num_found, found.buffer_info()[0], address(out)),
    )
    return found


def most_of(
    library: ctypes.CDLL,
    cached: Writable,
    can_lend: tuple[Writable, Writable],
    draws: int,
    draw: int,
    least: float,
) -> int:
    """The row of the pool's replica with most of a prompt, among those that can lend it; ties are
    broken by draw. -1 if none has `least` tokens.

    `can_lend`: whether each is connected, and whether it is away. `draws`: their address.
    """
    is_connected, is_away = can_lend
    row: int = _calls(library).most_of(
        *(address(cached), address(is_connected), address(is_away), len(cached)),
        *(draws, draw, least),
    )
    return row


def fetches(library: ctypes.CDLL, lender: Sequence[float], tokens: Writable, out: Writable) -> int:
    """The number of replicas, with these tokens of a prompt, for which fetching the rest pays.
    `out`: [usable tokens, seconds to fetch them; by replica]."""
    num_paid: int = _calls(library).fetches(
        _LENDER.pack(*lender), address(tokens), len(tokens), address(out)
    )
    return num_paid


@cache
def _calls(library: ctypes.CDLL) -> SimpleNamespace:
    of_costs = (_ADDRESS, _NUM, _ADDRESS, _ADDRESS, _DRAW, _NUM, _ADDRESS)
    of_decoders = (
        *(ctypes.c_char_p, _ADDRESS, _NUM, _ADDRESS, _NUM, *[_ADDRESS] * 4, _NUM),
        *(_DRAW, _NUM, _ADDRESS, _ADDRESS),
    )
    of_lenders = (_ADDRESS, _ADDRESS, _ADDRESS, _NUM, _ADDRESS, _DRAW, ctypes.c_double)
    return SimpleNamespace(
        least=ctypes.PYFUNCTYPE(None, *of_costs)(("baton_least", library)),
        least_to_decode=ctypes.PYFUNCTYPE(None, *of_decoders)(("baton_least_to_decode", library)),
        fetches=ctypes.PYFUNCTYPE(_NUM, ctypes.c_char_p, _ADDRESS, _NUM, _ADDRESS)(
            ("baton_fetches", library)
        ),
        most_of=ctypes.PYFUNCTYPE(_NUM, *of_lenders)(("baton_most_of", library)),
    )
