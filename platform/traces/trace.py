"""A recorded load: requests with sizes, shared prefixes and arrival times.

open loop     arrival_s, from the trace's first request
closed loop   session, turn, gap_s: a turn comes gap_s after the answer to the turn before it,
              and a session's first turn gap_s after the start
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from baton.core.errors import InvalidConfig

BLOCK_SIZES = (512, 16, 32, 64, 128, 256, 1024, 2048, 4096, 8, 4, 2, 1)
"""Tokens that a hash id may stand for, the likeliest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One request, as it was recorded."""

    input_length: int
    output_length: int
    arrival_s: float | None = None
    """Seconds since the first request; None for a turn of a session."""
    session: str | None = None
    turn: int = 0
    gap_s: float = 0.0
    hash_ids: tuple[int, ...] = ()
    """One for each block of the prompt: equal ids are equal prefixes up to the block's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in the order of their arrival, or sessions one after the other, turn by turn."""

    name: str
    requests: tuple[TraceRequest, ...]
    block_size: int | None
    """Tokens that one hash id stands for; None where no request has any."""
    tick_s: float | None = None
    """What arrivals were rounded to; None where they were not."""

    @property
    def is_closed_loop(self) -> bool:
        return self.requests[0].session is not None

    def sessions(self) -> dict[str, tuple[TraceRequest, ...]]:
        """The turns of each session, in their order. Empty for an open loop."""
        found: dict[str, list[TraceRequest]] = {}
        for request in self.requests:
            if request.session is not None:
                found.setdefault(request.session, []).append(request)
        return {session: tuple(turns) for session, turns in found.items()}

    def arriving_at(self, arrivals_s: Sequence[float]) -> Trace:
        """This trace with request i arriving at `arrivals_s[i]`, sorted by arrival."""
        moved = [
            replace(request, arrival_s=arrival_s)
            for request, arrival_s in zip(self.requests, arrivals_s, strict=True)
        ]
        moved.sort(key=_arrival_s)
        return replace(self, requests=tuple(moved))


def _arrival_s(request: TraceRequest) -> float:
    assert request.arrival_s is not None, "a turn of a session has no place in an open loop"
    return request.arrival_s


def block_size_of(name: str, requests: Sequence[TraceRequest]) -> int | None:
    """Infer how many tokens a hash id stands for, from lengths and numbers of ids.

    The last id may stand for a part of a block, or that part may have none.
    Raises InvalidConfig if no size fits all requests.
    """
    hashed = [request for request in requests if request.hash_ids]
    if not hashed:
        return None
    for size in BLOCK_SIZES:
        if all(_fits(request, size) for request in hashed):
            return size
    raise InvalidConfig(
        f"{name}: hash_ids: no block size from {min(BLOCK_SIZES)} to {max(BLOCK_SIZES)} gives every"
        " input_length its number of ids; leave hash_ids out, or give one id a block"
    )


def _fits(request: TraceRequest, block_size: int) -> bool:
    whole, rest = divmod(request.input_length, block_size)
    return len(request.hash_ids) in (whole, whole + (rest > 0))
