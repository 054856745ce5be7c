"""Which blocks of a lease have arrived, layer by layer, and with which bytes.

blocks   0 .. first_block          in D's own prefix cache: never written, always there
         first_block .. num_blocks  one slot per layer: empty, or the checksum of what came
"""

from __future__ import annotations

from collections.abc import Sequence


class Filling:
    def __init__(self, first_block: int, num_blocks: int, num_layers: int) -> None:
        self.first_block = first_block
        self.num_blocks = num_blocks
        self.num_missing = (num_blocks - first_block) * num_layers
        """(layer, block) slots that are still empty."""
        self._checksums: list[list[int | None]] = [[None] * num_blocks for _ in range(num_layers)]

    def missing(self, layer: int, start: int, checksums: Sequence[int]) -> list[int]:
        """Which of the blocks `start`, `start + 1`, ... are missing; one checksum each is given.

        Raises ValueError if a block has arrived before with another checksum.
        """
        found = []
        for block, checksum in enumerate(checksums, start):
            known = self._checksums[layer][block]
            if block >= self.first_block and known is None:
                found.append(block)
            elif block >= self.first_block and known != checksum:
                raise ValueError(f"block {block} has arrived before, with other bytes")
        return found

    def record(self, layer: int, block: int, checksum: int) -> None:
        """A block found `missing` has been written."""
        self._checksums[layer][block] = checksum
        self.num_missing -= 1

    def first_missing(self) -> int:
        """The first block that is not there in all layers; the number of blocks if all are."""
        if not self.num_missing:
            return self.num_blocks
        for block in range(self.first_block, self.num_blocks):
            if any(layer[block] is None for layer in self._checksums):
                return block
        return self.num_blocks
