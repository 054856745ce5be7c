"""How far one opening of a transfer has read, plane by plane: P's end of a stream.

plane 0    r r r r p p . .     r: read   p: published   .: not computed yet
plane 1    r r p p . . . .     next is the earliest block, of the lowest plane:
plane 2    r r p . . . . .     here plane 1's, then plane 2's, then plane 0's
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from operator import lt
from typing import Protocol

from baton.core.errors import TransferError
from baton.core.ids import TransferId
from baton.kv_transfer.handoff.messages import BlockRange, OpenTransfer
from baton.kv_transfer.sending.pieces import HeadRange

MAX_SPAN_BLOCKS = 128
"""Blocks of a plane that are read before those of the next planes, however many are there: what
comes of a transfer that ends early is worth something only where all planes have come."""


class Advancing(Protocol):
    """How far one stream has read."""

    @property
    def is_done(self) -> bool: ...

    def advance(self, published: Sequence[int], max_blocks: int) -> list[BlockRange]:
        """Pass what may be read now; `published` is by plane. At most `max_blocks` in all."""


class Progress:
    """Where a stream goes on reading: a cursor for each plane.

    Blocks become readable layer by layer as they are computed. A stream takes the earliest first,
    and of those the lowest plane: about the order in which they were computed.
    """

    def __init__(self, first_block: int, num_blocks: int, num_planes: int) -> None:
        self._cursors = [first_block] * num_planes
        self._num_blocks = num_blocks
        self._num_left = num_planes
        """Planes that are not read to their end."""

    @property
    def is_done(self) -> bool:
        return not self._num_left

    def advance(self, published: Sequence[int], max_blocks: int) -> list[BlockRange]:
        """Pass what may be read now; `published` is by plane. At most `max_blocks` in all."""
        spans: list[BlockRange] = []
        for start, plane in sorted(self._readable(published)):
            if not max_blocks:
                break
            stop = min(published[plane], start + max_blocks, start + MAX_SPAN_BLOCKS)
            self._cursors[plane] = stop
            self._num_left -= stop == self._num_blocks
            max_blocks -= stop - start
            spans.append(BlockRange(plane, start, stop))
        return spans

    def _readable(self, published: Sequence[int]) -> list[tuple[int, int]]:
        """Cursor and plane where more may be read.

        Asked after each layer, of which there are as many as planes: nothing of this is a step of
        Python for each plane.
        """
        cursors = self._cursors
        if len(cursors) != len(published):
            raise ValueError(f"{len(published)} planes are published of {len(cursors)}")
        return [
            (cursors[plane], plane)
            for plane in compress(range(len(cursors)), map(lt, cursors, published))
        ]


class Selection:
    """What is left of the blocks that a stream asks for, where it asks for some only."""

    def __init__(self, spans: Sequence[BlockRange]) -> None:
        self._left = list(spans)

    @property
    def is_done(self) -> bool:
        return not self._left

    def advance(self, published: Sequence[int], max_blocks: int) -> list[BlockRange]:
        """See `Advancing.advance`."""
        found: list[BlockRange] = []
        left: list[BlockRange] = []
        for plane, start, end in self._left:
            stop = max(start, min(end, published[plane], start + max_blocks))
            max_blocks -= stop - start
            if start < stop:
                found.append(BlockRange(plane, start, stop))
            if stop < end:
                left.append(BlockRange(plane, stop, end))
        self._left = left
        return found


@dataclass(slots=True, kw_only=True, eq=False)
class SendingStream:
    """One opening of a transfer."""

    transfer_id: TransferId
    heads: tuple[HeadRange, ...]
    """KV heads of each plane that travel."""
    runs: Sequence[int]
    """Run number of each plane: equal for consecutive planes that may be read together."""
    progress: Advancing


def progress_of(request: OpenTransfer, num_blocks: int, num_planes: int) -> Advancing:
    """The progress of a stream that is opened. Raises TransferError for more than there is."""
    if not request.only:
        return Progress(request.first_block, num_blocks, num_planes)
    for plane, start, stop in request.only:
        if not (0 <= plane < num_planes and 0 <= start < stop <= num_blocks):
            raise TransferError(
                f"{request.transfer_id}: blocks {start} to {stop} of plane {plane} asked for, "
                f"there are {num_blocks} of {num_planes} planes"
            )
    if sum(stop - start for _, start, stop in request.only) > num_blocks * num_planes:
        raise TransferError(f"{request.transfer_id}: blocks asked for more than once")
    return Selection(request.only)


def together(spans: Sequence[BlockRange], runs: Sequence[int]) -> list[list[BlockRange]]:
    """The spans, those together that are of the same blocks in consecutive planes of one run.

    `runs` is by plane: a number for each run of planes that are alike.
    """
    found: list[list[BlockRange]] = []
    for span in spans:
        last = found[-1][-1] if found else None
        if (
            last is not None
            and span == (last.plane + 1, last.start, last.stop)
            and runs[span.plane] == runs[last.plane]
        ):
            found[-1].append(span)
        else:
            found.append([span])
    return found
