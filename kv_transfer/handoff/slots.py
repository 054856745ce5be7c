"""Which blocks of a stream have arrived, plane by plane, and with which checksums. Pure.

empty --claim--> claimed --agree, record--> there      each with the checksum of what arrived
  ^_______give_back______|

A block that arrived with wrong bytes may arrive again, but with the same checksum: the sender's own
memory may have changed since it computed the first one.

A byte of state and a checksum for each (plane, block), in rows of one memory. What arrives as a
whole, as nearly everything does, takes one operation a row, and one operation for whole rows.
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
        self._width = stop - start
        self._states = bytearray(self.num_missing)
        self._checksums = bytearray(CHECKSUM_BYTES * self.num_missing)
        self._expected: dict[tuple[int, int], bytes] = {}
        """The checksums of (plane, block)s that came with other bytes."""

    def claim(self, planes: range, first: int, num_blocks: int) -> Sequence[int]:
        """Which of the blocks `first`, `first + 1`, ... are empty, the same ones in all planes.

        They are the caller's to write, then to `record` or to `give_back`. Blocks before `start`
        are nobody's. Raises ValueError, and claims nothing, if not the same ones are empty in all
        planes.
        """
        blocks = range(first, first + num_blocks)
        spans = self._spans(planes, blocks)
        if spans and all(self._are_empty(span) for span in spans):
            self._fill(spans, CLAIMED)
            return blocks
        found = [self._empty(plane, blocks) for plane in planes]
        if any(each != found[0] for each in found):
            raise ValueError("of some planes blocks have arrived before")
        self._put(planes, found[0], CLAIMED)
        return found[0]

    def agree(self, planes: range, first: int, checksums: bytes, claimed: Sequence[int]) -> None:
        """The checksums of blocks from `first` on, one each by plane and block, of which `claimed`
        are the caller's and keep theirs.

        Raises ValueError if a block has come before with another checksum, also if its bytes were
        wrong then.
        """
        num_blocks = len(checksums) // (CHECKSUM_BYTES * len(planes))
        blocks = range(first, first + num_blocks)
        spans = self._spans(planes, blocks) if claimed == blocks and not self._expected else ()
        given = 0
        for span in spans:
            start, stop = CHECKSUM_BYTES * span.start, CHECKSUM_BYTES * span.stop
            self._checksums[start:stop] = checksums[given : given + stop - start]
            given += stop - start
        if spans:
            return
        ours = frozenset(claimed)
        kept: list[tuple[slice, bytes]] = []
        for row, plane in enumerate(planes):
            for block in blocks[max(0, self.start - first) :]:
                span = _span(self._at(plane, block))
                checksum = checksums[_span(row * num_blocks + block - first)]
                known = bytes(self._checksums[span])
                if block in ours:
                    known = self._expected.get((plane, block), checksum)
                    kept.append((span, checksum))
                if known != checksum:
                    raise ValueError(f"block {block} has arrived before, with other bytes")
        for span, checksum in kept:
            self._checksums[span] = checksum

    def are_alike(self, planes: range, first: int, num_blocks: int) -> bool:
        """Whether the same ones of these blocks are empty in all of the planes."""
        blocks = range(max(first, self.start), first + num_blocks)
        taken = [self._states[span].translate(_IS_TAKEN) for span in self._spans(planes, blocks)]
        if len(taken) == 1 and len(planes) > 1:  # whole rows
            return bytes(taken[0]) == bytes(taken[0][: self._width]) * len(planes)
        return all(row == taken[0] for row in taken)

    def record(self, planes: range, blocks: Sequence[int]) -> None:
        """Claimed blocks have been written and verified."""
        self._put(planes, blocks, THERE)
        self.num_missing -= len(planes) * len(blocks)

    def give_back(self, planes: range, blocks: Sequence[int]) -> None:
        """Claimed blocks were not written, or not with the right bytes."""
        self._put(planes, blocks, EMPTY)

    def expect(self, plane: int, block: int, checksum: bytes) -> None:
        """Should this block come again, it must have this checksum."""
        self._expected[plane, block] = checksum

    def first_missing(self) -> int:
        """The first block that is not there in all planes; `stop` if all are."""
        if not self.num_missing:
            return self.stop
        there, width = bytes((THERE,)), self._width
        rows = [self._states[at : at + width] for at in range(0, len(self._states), width)]
        return self.stop - max(len(row.lstrip(there)) for row in rows)

    def _put(self, planes: range, blocks: Sequence[int], state: int) -> None:
        if isinstance(blocks, range):
            self._fill(self._spans(planes, blocks), state)
            return
        for plane in planes:
            for block in blocks:
                self._states[self._at(plane, block)] = state

    def _spans(self, planes: range, blocks: range) -> Sequence[slice]:
        """Where they lie: in each row, or in all at once; nowhere, if some are nobody's."""
        if not self.start <= blocks.start <= blocks.stop <= self.stop:
            return ()
        if len(blocks) == self._width:
            return (slice(planes.start * self._width, planes.stop * self._width),)
        begins = [self._at(plane, blocks.start) for plane in planes]
        return [slice(begin, begin + len(blocks)) for begin in begins]

    def _are_empty(self, span: slice) -> bool:
        num_slots: int = span.stop - span.start
        return self._states.count(EMPTY, span.start, span.stop) == num_slots

    def _fill(self, spans: Sequence[slice], state: int) -> None:
        for span in spans:
            self._states[span] = bytes((state,)) * (span.stop - span.start)

    def _at(self, plane: int, block: int) -> int:
        return plane * self._width + block - self.start

    def _empty(self, plane: int, blocks: range) -> tuple[int, ...]:
        wanted = blocks[max(0, self.start - blocks.start) :]
        return tuple([each for each in wanted if self._states[self._at(plane, each)] == EMPTY])


def _span(block: int) -> slice:
    """The bytes of its checksum."""
    return slice(CHECKSUM_BYTES * block, CHECKSUM_BYTES * (block + 1))
