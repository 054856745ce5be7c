"""The KV of a model on several ranks as one cache, in the lead's process.

    block b of layer l     | heads 0 1 | heads 2 3 |      as peers, tiers and checksums see it
                             rank 0      rank 1           as the ranks keep it

The memory of every rank is mapped into the lead's process, so whoever reads or writes a block need
not know of ranks. Heads that several ranks keep (more ranks than heads, or latents) are written to
all of them, and read from the first. The ranks themselves only read and write KV within a pass,
which the lead begins: what it wrote before is there by then.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from baton.core.kv_arena import KvArena
from baton.core.kv_layout import SCALE_BYTES, KvLayout
from baton.engine.kv_cache import KvCache
from baton.engine.kv_staging import bytes_of


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """The memory of one rank, as the lead has it."""

    layout: KvLayout
    layers: Sequence[Tensor]
    """Bytes [blocks, bytes of its heads], one a layer."""


class SharedMemory:
    """An anonymous file for a rank's KV, which it opens by a path of this process."""

    def __init__(self, layout: KvLayout, num_blocks: int) -> None:
        layer_bytes = num_blocks * layout.layer_block_bytes
        num_bytes = layer_bytes * layout.num_layers
        self._fd = os.memfd_create("baton-kv-rank", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, num_bytes)
        memory = memoryview(mmap.mmap(self._fd, num_bytes))
        rows = torch.frombuffer(memory, dtype=torch.uint8).view(layout.num_layers, num_blocks, -1)
        self.share = Share(layout, list(rows))

    @property
    def place(self) -> tuple[int, int]:
        """Process and descriptor, for `open_place`."""
        return os.getpid(), self._fd

    def close(self) -> None:
        """Once the rank has opened it; what is mapped stays."""
        os.close(self._fd)


def open_place(place: tuple[int, int]) -> int:
    """A descriptor of the memory that another process of this host shares. Raises OSError."""
    pid, fd = place
    return os.open(Path("/proc") / str(pid) / "fd" / str(fd), os.O_RDWR | os.O_CLOEXEC)


class ShardedCache:
    """What `KvCache` is to a pool and to transports; `own` is the lead's share."""

    is_in_memory = False
    """A block is in pieces: none can be looked at as it lies."""

    def __init__(self, layout: KvLayout, own: KvCache, others: Sequence[Share]) -> None:
        """`layout` is that of the whole. Raises ValueError if a head of it is kept nowhere."""
        self.layout = layout
        self.own = own
        self.num_blocks = own.num_blocks
        self.device = own.device
        bytes_of_own = [layer.view(torch.uint8).flatten(1) for layer in own.layers]
        self._shares = [Share(own.layout, bytes_of_own), *others]
        self._read = list(self._cover())

    @property
    def arena(self) -> KvArena:
        """Nobody but the lead can read it by itself."""
        return KvArena(
            num_layers=self.layout.num_layers,
            num_blocks=self.num_blocks,
            layer_block_bytes=self.layout.layer_block_bytes,
            layers=(),
            device=str(self.device),
            fd=None,
        )

    def view(self, block: int, layer: int) -> memoryview:
        """A copy of the bytes of one block in one layer, all heads."""
        data = torch.empty(self.layout.layer_block_bytes, dtype=torch.uint8)
        for share, heads in self._read:
            whole, part = self._spans(share, heads)
            data[whole] = share.layers[layer][block, part].cpu()
        return bytes_of(data)

    def views(self, blocks: Sequence[int], layer: int) -> tuple[memoryview, ...]:
        return tuple([self.view(block, layer) for block in blocks])

    def write(self, block: int, layer: int, data: memoryview) -> None:
        """Raises ValueError unless `data` are all bytes of one block in one layer."""
        if data.nbytes != self.layout.layer_block_bytes:
            raise ValueError(
                f"{data.nbytes} bytes for a block of {self.layout.layer_block_bytes} bytes"
            )
        self.write_part(block, layer, 0, data)

    def write_part(self, block: int, layer: int, offset: int, data: memoryview) -> None:
        """Replace some bytes of one block in one layer. Raises ValueError beyond its end."""
        stop = offset + data.nbytes
        if not 0 <= offset <= stop <= self.layout.layer_block_bytes:
            raise ValueError(f"bytes {offset} to {stop} of {self.layout.layer_block_bytes}")
        if not data.nbytes:
            return
        new = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        for share in self._shares:
            whole, part = self._spans(share, _heads_of(share.layout))
            first, last = max(offset, whole.start), min(stop, whole.stop)
            if first < last:
                place = part.start + first - whole.start
                target = share.layers[layer][block, place : place + last - first]
                target.copy_(new[first - offset : last - offset])

    def writable(self, block: int, layer: int) -> memoryview:
        raise ValueError("blocks on several ranks are in pieces; they are written to")

    def clear_tail(self, block: int, layer: int, num_used: int) -> None:
        """Zero the slots of one block in one layer behind its first `num_used` tokens."""
        for share in self._shares:
            for start, stop in _tail_spans(share.layout, num_used):
                share.layers[layer][block, start:stop] = 0

    def _cover(self) -> Iterator[tuple[Share, range]]:
        """Each head of the whole once, by whom it is read from."""
        head = 0
        while head < self.layout.num_kv_heads:
            share = next((each for each in self._shares if head in _heads_of(each.layout)), None)
            if share is None:
                raise ValueError(f"no rank keeps KV head {head}")
            yield share, range(head, share.layout.stop_kv_head)
            head = share.layout.stop_kv_head

    def _spans(self, share: Share, heads: range) -> tuple[slice, slice]:
        """Where the bytes of `heads` are in a block of the whole, and in one of the share."""
        size, first = self.layout.unit_bytes, share.layout.first_kv_head
        return (
            slice(heads.start * size, heads.stop * size),
            slice((heads.start - first) * size, (heads.stop - first) * size),
        )


def _heads_of(layout: KvLayout) -> range:
    return range(layout.first_kv_head, layout.stop_kv_head)


def _tail_spans(layout: KvLayout, num_used: int) -> Iterator[tuple[int, int]]:
    """Bytes of the slots behind `num_used` in a block of one layer: of items, and of scales."""
    parts = [(0, layout.token_bytes)]
    if layout.has_scales:
        parts.append((layout.items_bytes, SCALE_BYTES))
    for head in range(layout.num_kv_heads):
        for begin, size in parts:
            for vector in range(layout.num_vectors):
                start = head * layout.unit_bytes + begin + vector * layout.block_size * size
                yield start + num_used * size, start + layout.block_size * size
