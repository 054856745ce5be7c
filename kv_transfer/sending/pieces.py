"""How computed KV is cut into pieces.

reading   consecutive blocks, still in the sender's pool, that a stream reads next: of one plane,
          or of several consecutive ones that are alike, where the receiver takes such pieces
cut       some of a reading's planes or blocks, bounded in bytes
piece     a cut that is lent to a transport, with the checksums of its bytes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from math import ceil

from baton.core.block_views import ArrivingBlocks, part_of
from baton.core.ids import Epoch, TransferId
from baton.core.kv_layout import KvLayout
from baton.core.kv_pool import BlockSource
from baton.kv_transfer.handoff.messages import OpenTransfer
from baton.kv_transfer.handoff.transport import Carry, LentPiece
from baton.kv_transfer.layouts.integrity import checksums_together


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
    def can_checksum_in_place(self) -> bool:
        source, unit_bytes = self.reading.source, self.reading.heads.layout.unit_bytes
        return not source.is_in_memory and source.can_sum_up(unit_bytes)

    def checksums_in_place(self) -> bytes:
        """The checksums of the views, of bytes that stay on their device."""
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
    """The checksum of each (plane, block, head), in the order of the views; none where the
    transport sums them up."""
    message: bytes = b""
    """The piece's message with all of its bytes, where the transport carries pieces."""


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


def reading_for(request: OpenTransfer) -> Callable[[Sequence[Cut]], list[Contents]]:
    """How cuts become contents for the transport of this stream."""
    if request.carry is not None:
        return partial(read_to_carry, request.carry)
    if request.reads_sums_behind:
        return look_at
    return read_in_place if request.reads_in_place else read_together


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


def look_at(wanted: Sequence[Cut]) -> list[Contents]:
    """The contents of cuts for a transport that computes checksums as it sends them: none here."""
    return [Contents(cut.views(), b"") for cut in wanted]


def read_in_place(wanted: Sequence[Cut]) -> list[Contents]:
    """`read_together`, except that bytes on a device stay there: only their checksums come here.

    Its views are copied from there should somebody look at them.
    """
    here = [cut for cut in wanted if not cut.can_checksum_in_place]
    found = dict(zip(here, read_together(here), strict=True))
    for cut in wanted:
        if cut not in found:
            found[cut] = Contents(_unread(cut), cut.checksums_in_place())
    return [found[cut] for cut in wanted]


def _unread(cut: Cut) -> ArrivingBlocks:
    num_views = len(cut.planes) * (cut.stop - cut.start)
    return ArrivingBlocks(num_views, cut.reading.heads.layout.layer_block_bytes, cut.copy_to)


def read_to_carry(carry: Carry, wanted: Sequence[Cut]) -> list[Contents]:
    """The contents of cuts for a transport that carries pieces: each is in its message then."""
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
        unit_bytes=0 if contents.checksums else reading.heads.layout.unit_bytes,
        message=contents.message,
        give_back=give_back,
        is_last=is_last,
    )
