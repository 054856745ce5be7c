"""The memory through which torch.distributed carries pieces: buffers that are used again.

    P: lent blocks -> outgoing -> send          D: recv -> incoming -> landed -> views

Gloo moves host memory, NCCL a device's. On a device, streams of each pair's own do all of it,
beside the model's and those of other pairs, so none waits for another's peer. A further stream
waits for what was sent, because no piece is announced before those announced with it are copied,
and D takes none before that. A piece lands in pinned host memory, where D verifies it. An event
loop only launches; waiting for a device is done on a thread.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.distributed import Work

from baton.core.block_views import stretches
from baton.core.kv_arena import KvArena
from baton.kernels.gpu.upload import uploaded
from baton.kv_transfer.handoff.transport import LentPiece

MIN_BUFFER_BYTES = 1 << 16
MAX_SPARE_BYTES = 64 << 20
"""Kept for later; what is in use is bounded by the pieces under way."""
P_RANK, D_RANK = 0, 1
ONE_TAG = 0


class PointToPoint(Protocol):
    """What is used of a process group of torch.distributed."""

    def send(self, tensors: list[Tensor], to_rank: int, tag: int, /) -> Work: ...

    def recv(self, tensors: list[Tensor], from_rank: int, tag: int, /) -> Work: ...


Copied = Callable[[], object]
"""Blocks until a copy is made; for a thread that may."""


class Staging(Protocol):
    """Tensors are flat, of bytes."""

    def of_pair(self) -> Staging:
        """The staging of one pair: nothing it does waits for another pair's peer."""

    def outgoing(self, piece: LentPiece) -> tuple[Tensor, Copied | None]:
        """A copy of a piece's bytes, end to end, and what tells when it is made: until then the
        piece's blocks are looked at. None: it is made already."""

    def incoming(self, num_bytes: int) -> Tensor:
        """A tensor to receive a piece in."""

    def send(self, group: PointToPoint, data: Tensor) -> Work: ...

    def receive(self, group: PointToPoint, data: Tensor) -> Work: ...

    def sent(self, work: Work) -> None:
        """Wait for it. Raises RuntimeError."""

    def landed(self, work: Work, data: Tensor) -> Tensor:
        """Wait for it; return the bytes in host memory. Raises RuntimeError."""

    def reuse(self, data: Tensor) -> None:
        """A tensor from here is not needed any more. From any thread."""


class Buffers:
    """Host memory by powers of two: fresh pages cost as much as a copy."""

    def __init__(self, *, is_pinned: bool = False) -> None:
        self._is_pinned = is_pinned
        self._spare: defaultdict[int, list[Tensor]] = defaultdict(list)
        self._spare_bytes = 0
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> Tensor:
        capacity = max(MIN_BUFFER_BYTES, 1 << (num_bytes - 1).bit_length())
        with self._lock:
            spare = self._spare[capacity]
            whole = spare.pop() if spare else None
            self._spare_bytes -= capacity if whole is not None else 0
        if whole is None:
            whole = torch.empty(capacity, dtype=torch.uint8, pin_memory=self._is_pinned)
        return whole[:num_bytes]

    def give(self, data: Tensor) -> None:
        capacity = data.untyped_storage().nbytes()
        whole = data.as_strided((capacity,), (1,), 0)
        with self._lock:
            if self._spare_bytes + capacity <= MAX_SPARE_BYTES:
                self._spare[capacity].append(whole)
                self._spare_bytes += capacity


class HostStaging:
    def __init__(self) -> None:
        self._buffers = Buffers()

    def of_pair(self) -> HostStaging:
        return self

    def outgoing(self, piece: LentPiece) -> tuple[Tensor, Copied | None]:
        data = self._buffers.take(piece.num_bytes)
        parts = [np.frombuffer(view, np.uint8) for view in stretches(piece.views)]
        np.concatenate(parts, out=data.numpy())
        return data, None

    def incoming(self, num_bytes: int) -> Tensor:
        return self._buffers.take(num_bytes)

    def send(self, group: PointToPoint, data: Tensor) -> Work:
        return group.send([data], D_RANK, ONE_TAG)

    def receive(self, group: PointToPoint, data: Tensor) -> Work:
        return group.recv([data], P_RANK, ONE_TAG)

    def sent(self, work: Work) -> None:
        work.wait()

    def landed(self, work: Work, data: Tensor) -> Tensor:
        work.wait()
        return data

    def reuse(self, data: Tensor) -> None:
        self._buffers.give(data)


def gathered(arena: KvArena, piece: LentPiece) -> Tensor:
    """The piece's bytes, end to end, on the arena's device. Only launches."""
    size, start = piece.views[0].nbytes, piece.block_offset
    plane = arena.planes[piece.plane].view(torch.uint8).flatten(1)  # [blocks][bytes]
    blocks = uploaded(torch.tensor(piece.blocks), plane.device)
    data: Tensor = plane[:, start : start + size].index_select(0, blocks).flatten()
    return data


class DeviceStaging:
    """Staging on a CUDA device: pieces are gathered on it, straight from the arena."""

    def __init__(self, arena: KvArena | None, pinned: Buffers | None = None) -> None:
        self._arena = arena
        here = torch.cuda.current_device() if arena is None else torch.device(arena.device)
        self._stream = torch.cuda.Stream(here)  # type: ignore[no-untyped-call]
        self._sent = torch.cuda.Stream(here)  # type: ignore[no-untyped-call]
        """Waits for D to take pieces: nothing that makes the next one comes behind it."""
        self._pinned = pinned or Buffers(is_pinned=True)

    def of_pair(self) -> DeviceStaging:
        return DeviceStaging(self._arena, self._pinned)

    def outgoing(self, piece: LentPiece) -> tuple[Tensor, Copied | None]:
        assert self._arena is not None, "only P sends, and P has an arena"
        with torch.cuda.stream(self._stream):
            data = gathered(self._arena, piece)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        return data, copied.synchronize

    def incoming(self, num_bytes: int) -> Tensor:
        with torch.cuda.stream(self._stream):
            return torch.empty(num_bytes, dtype=torch.uint8, device=self._stream.device)

    def send(self, group: PointToPoint, data: Tensor) -> Work:
        with torch.cuda.stream(self._stream):
            return group.send([data], D_RANK, ONE_TAG)

    def receive(self, group: PointToPoint, data: Tensor) -> Work:
        with torch.cuda.stream(self._stream):
            return group.recv([data], P_RANK, ONE_TAG)

    def sent(self, work: Work) -> None:
        with torch.cuda.stream(self._sent):
            work.wait()  # only makes the stream wait
        self._sent.synchronize()

    def landed(self, work: Work, data: Tensor) -> Tensor:
        host = self._pinned.take(data.numel())
        with torch.cuda.stream(self._stream):
            work.wait()
            host.copy_(data, non_blocking=True)
        self._stream.synchronize()
        return host

    def reuse(self, data: Tensor) -> None:
        if not data.is_cuda:  # a device's memory has an allocator that keeps it
            self._pinned.give(data)
