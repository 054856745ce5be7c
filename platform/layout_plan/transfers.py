"""A kind of message between ranks, and the bytes that a rank sends.

kind          x, whose bytes are counted            a rank sends, n of them in a ring
all-reduce    the sum, on every rank                2 (n-1)/n x
all-gather    what each brings                      (n-1) x
broadcast     what one has                          x
all-to-all    what each has, a part for each        (n-1)/n x
send          what another then has                 x
receive       what another had                      0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum


class Kind(Enum):
    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    BROADCAST = "broadcast"
    ALL_TO_ALL = "all-to-all"
    SEND = "send"
    RECEIVE = "receive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """All equal calls of a rank in a pass."""

    what: str
    kind: Kind
    num_ranks: int
    """Ranks of the group."""
    count: int = 1
    num_bytes: int
    """The bytes of x, each time."""

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank sends in all these calls."""
        others = self.num_ranks - 1
        match self.kind:
            case Kind.ALL_REDUCE:
                once = 2 * others * self.num_bytes // self.num_ranks
            case Kind.ALL_GATHER:
                once = others * self.num_bytes
            case Kind.ALL_TO_ALL:
                once = others * self.num_bytes // self.num_ranks
            case Kind.BROADCAST | Kind.SEND:
                once = self.num_bytes
            case Kind.RECEIVE:
                once = 0
        return self.count * once


def sent_bytes(transfers: Iterable[Transfer]) -> int:
    return sum(each.sent_bytes for each in transfers)


def merged(transfers: Iterable[Transfer]) -> list[Transfer]:
    """Merge transfers that only differ in their counts, in order of first occurrence."""
    counts: Counter[Transfer] = Counter()
    for each in transfers:
        counts[replace(each, count=1)] += each.count
    return [replace(each, count=count) for each, count in counts.items()]
