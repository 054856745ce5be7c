"""The messages between D and P about one transfer, whatever transport carries it.

    D                               P
      | --- OpenTransfer ---------> |   both epochs, D's layout, the first block D lacks
      | <== KvPiece, as computed == |   each with a checksum per (block, head); D releases it
      | --- OpenTransfer(only) ---> |   pieces that came with wrong bytes: once more, nothing else
      | <== KvPiece ================ |
      | --- SettleTransfer -------> |   SEALED or ABORTED; may be repeated, or ask
      | <-- Outcome --------------- |

Block indices count within the prompt, never within a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from baton.core.block_views import num_bytes_of
from baton.core.ids import Epoch, TransferId
from baton.core.kv_layout import KvLayout

if TYPE_CHECKING:
    from baton.kv_transfer.handoff.transport import Carry


def _nothing_to_release() -> None:
    """A piece whose bytes are its own has nothing to release."""


class Outcome(StrEnum):
    OPEN = "open"
    SEALED = "sealed"
    """All pieces verified and recorded by D; P has released its references or is about to."""
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """P holds nothing for this transfer; D may release what it holds."""


class BlockRange(NamedTuple):
    """Blocks [start, stop) of one plane."""

    plane: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransfer:
    transfer_id: TransferId
    sender_epoch: Epoch
    receiver_epoch: Epoch
    layout: KvLayout
    """The receiver's."""
    first_block: int
    """Counted in the sender's blocks. Those before it D has, or has no use for."""
    joins_planes: bool = False
    """Whether D takes pieces of several planes."""
    reads_sums_behind: bool = False
    """Whether D reads the checksums of a piece behind its bytes: P need not announce them."""
    only: tuple[BlockRange, ...] = ()
    """Only these blocks, which came with wrong bytes before; empty: everything from `first_block`
    on."""
    max_piece_bytes: int = 0
    """Set by P for a transport that does not carry pieces itself; 0: as long as P likes them."""
    carry: Carry | None = None
    """Set by P for a transport that does: makes a piece's message while its bytes are read."""
    reads_in_place: bool = False
    """Set by P for a transport whose receiver reads P's memory by itself, wherever it is: bytes on
    a device are summed up there, and stay there."""


@dataclass(slots=True, eq=False)
class ChecksumsBehind:
    """The checksums of a piece that come behind its bytes."""

    num_bytes: int
    come: bytes = b""
    """Set when the bytes of the piece have been read, unless the checksums were damaged on the
    way: then nothing is known of the bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPiece:
    """Some consecutive blocks of one plane, or of several that are alike, all heads, as D got them.

    The views show the sender's layout. They stay valid until `release` is called, once, from any
    thread: they may look into memory of the sender's, or into a buffer that is used again.
    """

    transfer_id: TransferId
    sender_epoch: Epoch
    receiver_epoch: Epoch
    plane: int
    num_planes: int = 1
    """Planes from `plane` on, each with the same blocks."""
    first_block: int
    views: Sequence[memoryview]
    """Views by plane and block: [KV heads][2][block size][head dim] as bytes."""
    checksums: bytes
    """XXH3-64 of each (plane, block, head), in the order of the views, as in `integrity`. None
    where they come behind the bytes, or were damaged on the way."""
    checksums_behind: ChecksumsBehind | None = None
    """The checksums, where they come behind the bytes."""
    release: Callable[[], None] = _nothing_to_release
    executor: Executor | None = None
    """Threads that may wait for bytes that have yet to come; None: they are there."""
    transport: str = ""
    """Transport by which it came, where there was a choice."""

    @property
    def planes(self) -> range:
        return range(self.plane, self.plane + self.num_planes)

    @property
    def num_blocks(self) -> int:
        """Blocks of each plane."""
        return len(self.views) // self.num_planes

    @property
    def num_checksum_bytes(self) -> int:
        behind = self.checksums_behind
        return len(self.checksums) if behind is None else behind.num_bytes

    @property
    def has_checksums(self) -> bool:
        """False where they come behind the bytes, which have yet to be read, or were damaged."""
        return bool(self.known_checksums)

    @property
    def known_checksums(self) -> bytes:
        """The checksums, however they came; none where they are yet to come, or were damaged."""
        return self.checksums if self.checksums_behind is None else self.checksums_behind.come

    def by_plane(self) -> Iterator[KvPiece]:
        """Each plane as a piece, which needs no release of its own. Bytes that have yet to come are
        read first."""
        num_blocks, num_sums = self.num_blocks, self.num_checksum_bytes // self.num_planes
        for index, plane in enumerate(self.planes):
            views = self.views[index * num_blocks : (index + 1) * num_blocks]
            checksums = self.known_checksums[index * num_sums : (index + 1) * num_sums]
            yield replace(
                self,
                plane=plane,
                num_planes=1,
                views=views,
                checksums=checksums,
                checksums_behind=None if self.has_checksums else ChecksumsBehind(num_sums),
                release=_nothing_to_release,
            )

    @property
    def num_bytes(self) -> int:
        return num_bytes_of(self.views)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleTransfer:
    transfer_id: TransferId
    sender_epoch: Epoch
    receiver_epoch: Epoch
    outcome: Outcome | None
    """SEALED or ABORTED tells; None asks."""
