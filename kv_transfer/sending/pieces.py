"""How computed KV is cut into pieces.

progress  how far one stream has read a transfer, plane by plane
reading   consecutive blocks, still in the sender's pool, that the stream reads next: of one plane,
          or of several consecutive ones that are alike, where the receiver takes such pieces
cut       some of a reading's planes or blocks, bounded in bytes
piece     a cut that is lent to a transport, with the checksums of its bytes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, compress, pairwise
from math import ceil
from operator import lt
from typing import Protocol

from baton.core.block_views import ArrivingBlocks, part_of
from baton.core.errors import TransferError
from baton.core.ids import Epoch, TransferId
from baton.core.kv_layout import KvLayout
from baton.core.kv_pool import BlockSource
from baton.kv_transfer.handoff.messages import BlockRange, OpenTransfer
from baton.kv_transfer.handoff.transport import Carry, LentPiece
from baton.kv_transfer.layouts.integrity import checksums_together

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
        for start, plane in sorted(self._behind(published)):
            if not max_blocks:
                break
            stop = min(published[plane], start + max_blocks, start + MAX_SPAN_BLOCKS)
            self._cursors[plane] = stop
            self._num_left -= stop == self._num_blocks
            max_blocks -= stop - start
            spans.append(BlockRange(plane, start, stop))
        return spans

    def _behind(self, published: Sequence[int]) -> list[tuple[int, int]]:
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


@dataclass(frozen=True, slots=True)
class HeadRange:
    """The heads of a plane that both sides hold: of each of P's blocks, the part that travels."""

    layout: KvLayout
    """The sender's, with these heads and no others."""
    block_offset: int
    """Where their bytes begin in a block."""

    @classmethod
    def between(cls, sender: KvLayout, receiver: KvLayout) -> HeadRange:
        """Raises ValueError if they have no head in common."""
        first = max(sender.first_kv_head, receiver.first_kv_head)
        num_heads = min(sender.stop_kv_head, receiver.stop_kv_head) - first
        if num_heads < 1:
            raise ValueError("sender and receiver hold different heads")
        layout = replace(sender, first_kv_head=first, num_kv_heads=num_heads)
        return cls(layout, (first - sender.first_kv_head) * sender.unit_bytes)

    def of(self, blocks: Sequence[memoryview]) -> Sequence[memoryview]:
        return part_of(blocks, self.block_offset, self.layout.layer_block_bytes)


def head_ranges(
    sender: KvLayout, receiver: KvLayout
) -> tuple[tuple[HeadRange, ...], tuple[int, ...]]:
    """Heads of each plane, and its run number: equal for consecutive planes that are alike on both
    sides.

    Raises ValueError if they have no head in common.
    """
    pairs = tuple(zip(sender.planes, receiver.planes, strict=True))
    heads = tuple(HeadRange.between(ours, theirs) for ours, theirs in pairs)
    changes = (plane != before for before, plane in pairwise(pairs))
    return heads, tuple(accumulate(changes, initial=0))


@dataclass(slots=True, kw_only=True, eq=False)
class SendingStream:
    """One opening of a transfer."""

    transfer_id: TransferId
    heads: tuple[HeadRange, ...]
    """KV heads of each plane that travel."""
    runs: Sequence[int]
    """Run number of each plane: equal for consecutive planes that may be read together."""
    progress: Advancing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockRead:
    """Some blocks of a transfer that are being read; compared by identity.

    The source stays valid until `Sender.end_read` is given this reading.
    """

    transfer_id: TransferId
    sender_epoch: Epoch
    receiver_epoch: Epoch
    heads: HeadRange
    plane: int
    """The first one."""
    num_planes: int = 1
    first_block: int
    blocks: tuple[int, ...]
    """Their numbers in the pool."""
    source: BlockSource
    """The whole blocks in all planes, whichever heads travel."""


@dataclass(frozen=True, slots=True)
class Cut:
    reading: BlockRead
    planes: range
    """Planes within the reading, as are the blocks."""
    start: int
    stop: int

    @property
    def num_bytes(self) -> int:
        num_blocks = len(self.planes) * (self.stop - self.start)
        return num_blocks * self.reading.heads.layout.layer_block_bytes

    @property
    def is_in_memory(self) -> bool:
        """Whether its bytes can be read without waiting for a device."""
        return self.reading.source.is_in_memory

    def views(self) -> Sequence[memoryview]:
        """Views of the heads that travel, by plane and block."""
        whole = self.reading.source.views(self.planes, self.start, self.stop)
        return self.reading.heads.of(whole)

    @property
    def can_be_summed_up_in_place(self) -> bool:
        source, unit_bytes = self.reading.source, self.reading.heads.layout.unit_bytes
        return not source.is_in_memory and source.can_sum_up(unit_bytes)

    def checksums_in_place(self) -> bytes:
        """As of the views, of bytes that stay on their device."""
        heads = self.reading.heads
        part = slice(heads.block_offset, heads.block_offset + heads.layout.layer_block_bytes)
        return self.reading.source.checksums(
            self.planes, self.start, self.stop, part, heads.layout.unit_bytes
        )

    def copy_to(self, targets: Sequence[memoryview]) -> None:
        """Write the views' bytes to memory of as many."""
        data = memoryview(b"".join(self.views()))
        for target in targets:
            target[:], data = data[: target.nbytes], data[target.nbytes :]


@dataclass(frozen=True, slots=True)
class Contents:
    """The bytes of a cut, and their checksums."""

    views: Sequence[memoryview]
    """Views of the heads that travel, by plane and block, [heads] units as bytes."""
    checksums: bytes
    """The checksum of each (plane, block, head), in the order of the views."""
    message: bytes = b""
    """With all of them, where the transport carries pieces."""


def cuts(reading: BlockRead, max_piece_bytes: Callable[[], int]) -> Iterator[Cut]:
    """The pieces to make of a reading: whole planes, or part of one.

    `max_piece_bytes` is asked for the length of each; one block may be longer.
    """
    num_planes, num_blocks = reading.num_planes, len(reading.blocks)
    block_bytes = reading.heads.layout.layer_block_bytes
    plane = start = 0
    while plane < num_planes:
        most, left = max(1, max_piece_bytes() // block_bytes), num_blocks - start
        if not start and most >= num_blocks:
            planes = range(plane, min(plane + most // num_blocks, num_planes))
            yield Cut(reading, planes, 0, num_blocks)
            plane = planes.stop
            continue
        size = ceil(left / ceil(left / most))  # about equally long: none is left over
        yield Cut(reading, range(plane, plane + 1), start, start + size)
        start += size
        if start == num_blocks:
            plane, start = plane + 1, 0


def read(cut: Cut) -> Contents:
    """Look at a cut's bytes and sum them up. May run on any thread while the reading lasts."""
    return read_together((cut,))[0]


def read_together(wanted: Sequence[Cut]) -> list[Contents]:
    """What `read` gives of each, in one compiled call for those whose units are equally long."""
    views = [cut.views() for cut in wanted]
    by_unit: dict[int, list[int]] = {}
    for index, cut in enumerate(wanted):
        by_unit.setdefault(cut.reading.heads.layout.unit_bytes, []).append(index)
    found: dict[int, Contents] = {}
    for unit_bytes, indices in by_unit.items():
        sums = checksums_together([views[index] for index in indices], unit_bytes)
        for index, of_cut in zip(indices, sums, strict=True):
            found[index] = Contents(views[index], of_cut)
    return [found[index] for index in range(len(wanted))]


def read_in_place(wanted: Sequence[Cut]) -> list[Contents]:
    """As `read_together`, but that what is on a device stays there: only its checksums come here.

    Its views are copied from there should somebody look at them.
    """
    here = [cut for cut in wanted if not cut.can_be_summed_up_in_place]
    found = dict(zip(here, read_together(here), strict=True))
    for cut in wanted:
        if cut not in found:
            found[cut] = Contents(_unread(cut), cut.checksums_in_place())
    return [found[cut] for cut in wanted]


def _unread(cut: Cut) -> ArrivingBlocks:
    num_views = len(cut.planes) * (cut.stop - cut.start)
    return ArrivingBlocks(num_views, cut.reading.heads.layout.layer_block_bytes, cut.copy_to)


def read_to_carry(carry: Carry, wanted: Sequence[Cut]) -> list[Contents]:
    """As `read_together`, for a transport that carries pieces: each is in its message then."""
    return [_read_to_carry(carry, cut) for cut in wanted]


def _read_to_carry(carry: Carry, cut: Cut) -> Contents:
    views = cut.views()
    piece = lend(cut, Contents(views, b""), _nothing_to_give_back)
    carried = carry(piece, cut.reading.heads.layout.unit_bytes)
    return Contents(views, carried.checksums, carried.message)


def _nothing_to_give_back() -> None:
    """The reading goes on; its reader gives it back."""


def lend(
    cut: Cut, contents: Contents, give_back: Callable[[], None], *, is_last: bool = False
) -> LentPiece:
    reading = cut.reading
    return LentPiece(
        transfer_id=reading.transfer_id,
        sender_epoch=reading.sender_epoch,
        receiver_epoch=reading.receiver_epoch,
        plane=reading.plane + cut.planes.start,
        num_planes=len(cut.planes),
        first_block=reading.first_block + cut.start,
        views=contents.views,
        blocks=reading.blocks[cut.start : cut.stop],
        block_offset=reading.heads.block_offset,
        checksums=contents.checksums,
        message=contents.message,
        give_back=give_back,
        is_last=is_last,
    )
