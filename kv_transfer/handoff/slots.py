"""Which blocks of a stream have arrived, plane by plane, and with which bytes. Pure.

empty --claim--> claimed --record--> there          each with the checksum of what came
  ^_____give_back____|

What came with wrong bytes may come again, but with the same checksum: the sender's own memory may
have changed since it computed the first.
"""

from __future__ import annotations

from collections.abc import Sequence


class Slots:
    """One for every (plane, block) of [start, stop)."""

    def __init__(self, start: int, stop: int, num_planes: int) -> None:
        self.start = start
        self.stop = stop
        self.num_missing = (stop - start) * num_planes
        """Empty or claimed."""
        self._checksums: list[list[int | None]] = [[None] * stop for _ in range(num_planes)]
        self._claimed: list[set[int]] = [set() for _ in range(num_planes)]
        """Blocks, by plane."""
        self._expected: dict[tuple[int, int], int] = {}
        """The checksums of (plane, block)s that came with other bytes."""

    def claim(self, plane: int, first: int, checksums: Sequence[int]) -> tuple[int, ...]:
        """Which of the blocks `first`, `first + 1`, ... are empty; one checksum each is given.

        They are the caller's to write, then to `record` or to `give_back`. Blocks before `start`
        are nobody's. Raises ValueError if a block has come before with another checksum, also if
        its bytes were wrong then.
        """
        row, stop = self._checksums[plane], first + len(checksums)
        if self._expected or first < self.start or row[first:stop] != [None] * len(checksums):
            found = self._empty(plane, first, checksums)
            for block in found:
                row[block] = checksums[block - first]
        else:  # as nearly always: in as few steps of Python as for one block
            found = tuple(range(first, stop))
            row[first:stop] = checksums
        self._claimed[plane].update(found)
        return found

    def are_alike(self, planes: range, first: int, num_blocks: int) -> bool:
        """Whether the same ones of these blocks are empty in all of the planes."""
        rows = self._checksums[planes.start : planes.stop]
        parts = [row[first : first + num_blocks] for row in rows]
        return len({tuple([each is None for each in part]) for part in parts}) <= 1

    def record(self, plane: int, blocks: Sequence[int]) -> None:
        """Claimed blocks have been written and verified."""
        self._claimed[plane].difference_update(blocks)
        self.num_missing -= len(blocks)

    def give_back(self, plane: int, blocks: Sequence[int]) -> None:
        """Claimed blocks were not written, or not with the right bytes."""
        for block in blocks:
            self._checksums[plane][block] = None
            self._claimed[plane].remove(block)

    def expect(self, plane: int, blocks: Sequence[int], checksums: Sequence[int]) -> None:
        """Should these blocks come again, they must have these checksums; one each is given."""
        for block, checksum in zip(blocks, checksums, strict=True):
            self._expected[plane, block] = checksum

    def first_missing(self) -> int:
        """The first block that is not there in all planes; `stop` if all are."""
        if not self.num_missing:
            return self.stop
        for block in range(self.start, self.stop):
            if any(
                row[block] is None or block in self._claimed[plane]
                for plane, row in enumerate(self._checksums)
            ):
                return block
        return self.stop

    def _empty(self, plane: int, first: int, checksums: Sequence[int]) -> tuple[int, ...]:
        """See `claim`."""
        row, found = self._checksums[plane], list[int]()
        for block, checksum in enumerate(checksums, first):
            if block < self.start:
                continue
            known = self._expected.get((plane, block)) if row[block] is None else row[block]
            if row[block] is None and known in (None, checksum):
                found.append(block)
            elif known != checksum:
                raise ValueError(f"block {block} has arrived before, with other bytes")
        return tuple(found)
