"""Which numbers of requests there are graphs for: as many as their memory allows, small ones first.

Passes of few requests gain most of a graph: theirs are the last to go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_GRAPH_BYTES = 2 << 30
"""Bytes of the device, for all graphs."""


@dataclass(frozen=True, slots=True)
class GraphCosts:
    """Bytes of a device."""

    largest: int
    """The graph of the most requests, and the memory that all others compute in."""
    each_more: int

    def of(self, sizes: Sequence[int], max_requests: int) -> int:
        """What `sizes` take together: the largest in proportion to its requests."""
        if not sizes:
            return 0
        return -(-self.largest * max(sizes) // max_requests) + self.each_more * (len(sizes) - 1)


def graph_sizes(max_requests: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then in steps of 8, of 16 from 64 on and of 32 from 256 on; the last of all."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_requests + 1, 32)]
    return (*(size for size in sizes if size < max_requests), max_requests)


def sizes_within(
    max_requests: int, costs: GraphCosts, max_bytes: int = MAX_GRAPH_BYTES
) -> tuple[int, ...]:
    """The finest steps that fit, those in which a pass is at most doubled being the coarsest.

    If not even they do, the largest sizes go: such passes are computed for longer than it takes to
    launch them one kernel at a time.
    """
    top = max_requests
    while top:
        for sizes in (graph_sizes(top), _doubling_from((1, 3), top), _doubling_from((1,), top)):
            if costs.of(sizes, max_requests) <= max_bytes:
                return sizes
        top = (1 << (top - 1).bit_length()) // 2 if top > 1 else 0  # the power of two below
    return ()


def _doubling_from(first: Sequence[int], last: int) -> tuple[int, ...]:
    """These, twice, four times as many and so on, below the last; and that."""
    sizes = {start << power for start in first for power in range(last.bit_length())}
    return (*sorted(size for size in sizes if size < last), last)
