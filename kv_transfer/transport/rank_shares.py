"""Which bytes of a block which rank of a sender keeps, where its blocks are in pieces.

block b of plane p   | heads 0 1 | heads 2 3 |
                       rank 0      rank 1
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from baton.core.errors import TransferCut


class RankShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank keeps of each block, in some consecutive planes."""

    first_plane: int = 0
    block_bytes: list[int]
    """Bytes that it keeps of one block, by plane."""
    starts: list[int]
    """Where these begin in a block of the whole, by plane."""

    def __post_init__(self) -> None:
        """Raises ValueError: what a sender says of itself is held against this when it is read."""
        has_negative = any(number < 0 for number in (*self.starts, *self.block_bytes))
        if has_negative or len(self.starts) != len(self.block_bytes):
            raise ValueError("a rank's share of blocks that no block could have")

    @classmethod
    def of_all(cls, block_bytes: list[int]) -> RankShare:
        """The share of a rank that has all of so long blocks."""
        return cls(block_bytes=block_bytes, starts=[0] * len(block_bytes))

    def span(self, plane: int) -> range:
        """The bytes that it keeps of a block of that plane; none of one that it does not have."""
        own = plane - self.first_plane
        if not 0 <= own < len(self.block_bytes):
            return range(0)
        return range(self.starts[own], self.starts[own] + self.block_bytes[own])


def kept_by(shares: Sequence[RankShare], plane: int, wanted: range) -> list[tuple[int, range]]:
    """Ranks to read these bytes of a block from, by number, and which of them from each.

    What several ranks keep is read from the first: the sender's checksums are of its memory, and
    others may write theirs a moment later. Raises TransferCut for bytes that no rank keeps.
    """
    found, at = [], wanted.start
    while at < wanted.stop:
        spans = enumerate(share.span(plane) for share in shares)
        number, span = next(((each, span) for each, span in spans if at in span), (0, range(0)))
        if at not in span:
            raise TransferCut(f"no rank of the sender keeps byte {at} of plane {plane}")
        found.append((number, range(at, min(span.stop, wanted.stop))))
        at = span.stop
    return found
