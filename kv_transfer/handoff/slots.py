"""Which blocks of a stream have arrived, plane by plane, and with which bytes. Pure.

empty --claim--> claimed --record--> there          each with the checksum of what came
  ^_____give_back____|

What came with wrong bytes may come again, but with the same checksum: the sender's own memory may
have changed since it computed the first.

A byte of state and `CHECKSUM_BYTES` of checksum for each (plane, block), a row a plane: what
arrives as a whole, as nearly all does, is a few steps of Python for each plane.
"""

from __future__ import annotations

from collections.abc import Sequence

from baton.kv_transfer.layouts.integrity import CHECKSUM_BYTES

EMPTY, CLAIMED, THERE = range(3)
_IS_TAKEN = bytes(min(state, 1) for state in range(256))


class Slots:
    """One for every (plane, block) of [start, stop)."""

    def __init__(self, start: int, stop: int, num_planes: int) -> None:
        self.start = start
        self.stop = stop
        self.num_missing = (stop - start) * num_planes
        """Empty or claimed."""
        self._states = [bytearray(stop) for _ in range(num_planes)]
        self._checksums = [bytearray(CHECKSUM_BYTES * stop) for _ in range(num_planes)]
        self._expected: dict[tuple[int, int], bytes] = {}
        """The checksums of (plane, block)s that came with other bytes."""

    def claim(self, plane: int, first: int, checksums: bytes) -> Sequence[int]:
        """Which of the blocks `first`, `first + 1`, ... are empty; one checksum each is given.

        They are the caller's to write, then to `record` or to `give_back`. Blocks before `start`
        are nobody's. Raises ValueError if a block has come before with another checksum, also if
        its bytes were wrong then.
        """
        num_blocks = len(checksums) // CHECKSUM_BYTES
        row, stop = self._states[plane], first + num_blocks
        if self._expected or first < self.start or row.count(EMPTY, first, stop) != num_blocks:
            found = self._empty(plane, first, checksums)
            for block in found:
                row[block] = CLAIMED
                self._checksums[plane][_span(block)] = checksums[_span(block - first)]
            return found
        row[first:stop] = bytes((CLAIMED,)) * num_blocks
        self._checksums[plane][CHECKSUM_BYTES * first : CHECKSUM_BYTES * stop] = checksums
        return range(first, stop)

    def are_alike(self, planes: range, first: int, num_blocks: int) -> bool:
        """Whether the same ones of these blocks are empty in all of the planes."""
        rows = self._states[planes.start : planes.stop]
        return (
            len({bytes(row[first : first + num_blocks].translate(_IS_TAKEN)) for row in rows}) <= 1
        )

    def record(self, plane: int, blocks: Sequence[int]) -> None:
        """Claimed blocks have been written and verified."""
        self._put(plane, blocks, THERE)
        self.num_missing -= len(blocks)

    def give_back(self, plane: int, blocks: Sequence[int]) -> None:
        """Claimed blocks were not written, or not with the right bytes."""
        self._put(plane, blocks, EMPTY)

    def expect(self, plane: int, block: int, checksum: bytes) -> None:
        """Should this block come again, it must have this checksum."""
        self._expected[plane, block] = checksum

    def first_missing(self) -> int:
        """The first block that is not there in all planes; `stop` if all are."""
        there = bytes((THERE,))
        return self.stop - max(
            (len(row[self.start :].lstrip(there)) for row in self._states), default=0
        )

    def _put(self, plane: int, blocks: Sequence[int], state: int) -> None:
        row = self._states[plane]
        if isinstance(blocks, range):
            row[blocks.start : blocks.stop] = bytes((state,)) * len(blocks)
            return
        for block in blocks:
            row[block] = state

    def _empty(self, plane: int, first: int, checksums: bytes) -> tuple[int, ...]:
        """See `claim`."""
        row, found = self._states[plane], list[int]()
        for block in range(max(first, self.start), first + len(checksums) // CHECKSUM_BYTES):
            checksum = checksums[_span(block - first)]
            if row[block] == EMPTY:
                known = self._expected.get((plane, block), checksum)
            else:
                known = bytes(self._checksums[plane][_span(block)])
            if known != checksum:
                raise ValueError(f"block {block} has arrived before, with other bytes")
            if row[block] == EMPTY:
                found.append(block)
        return tuple(found)


def _span(block: int) -> slice:
    """The bytes of its checksum."""
    return slice(CHECKSUM_BYTES * block, CHECKSUM_BYTES * (block + 1))
