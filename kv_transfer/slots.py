"""Which blocks of a stream have arrived, layer by layer, and with which bytes. Pure.

empty --claim--> claimed --record--> there          each with the checksum of what came
  ^_____give_back____|
"""

from __future__ import annotations

from collections.abc import Sequence


class Slots:
    """One for every (layer, block) of [start, stop)."""

    def __init__(self, start: int, stop: int, num_layers: int) -> None:
        self.start = start
        self.stop = stop
        self.num_missing = (stop - start) * num_layers
        """Empty or claimed."""
        self._checksums: list[list[int | None]] = [[None] * stop for _ in range(num_layers)]
        self._claimed: set[tuple[int, int]] = set()

    def claim(self, layer: int, first: int, checksums: Sequence[int]) -> tuple[int, ...]:
        """Which of the blocks `first`, `first + 1`, ... are empty; one checksum each is given.

        They are the caller's to write, then to `record` or to `give_back`. Blocks before `start`
        are nobody's. Raises ValueError if a block has come before with another checksum.
        """
        row, found = self._checksums[layer], []
        for block, checksum in enumerate(checksums, first):
            if block < self.start:
                continue
            if row[block] is None:
                found.append(block)
            elif row[block] != checksum:
                raise ValueError(f"block {block} has arrived before, with other bytes")
        for block in found:
            row[block] = checksums[block - first]
            self._claimed.add((layer, block))
        return tuple(found)

    def record(self, layer: int, blocks: Sequence[int]) -> None:
        """Claimed blocks have been written and verified."""
        self._claimed.difference_update((layer, block) for block in blocks)
        self.num_missing -= len(blocks)

    def give_back(self, layer: int, blocks: Sequence[int]) -> None:
        """Claimed blocks were not written, or not with the right bytes."""
        for block in blocks:
            self._checksums[layer][block] = None
            self._claimed.remove((layer, block))

    def first_missing(self) -> int:
        """The first block that is not there in all layers; `stop` if all are."""
        if not self.num_missing:
            return self.stop
        for block in range(self.start, self.stop):
            if any(
                row[block] is None or (layer, block) in self._claimed
                for layer, row in enumerate(self._checksums)
            ):
                return block
        return self.stop
