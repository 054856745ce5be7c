"""Copies KV between a GPU and host memory while the GPU computes.

    compute stream   layer 0 |e0| layer 1 |e1| layer 2 ...        an event after each layer
    copy stream               wait e0, gather, copy |  wait e1, ...
    any thread                     `- waits for its copy, then reads pinned memory
    write stream     copy, or sum up, wait for what passes have launched by now, scatter
    any thread                     `- waits for it

The engine's thread only records events and never waits, so the compute stream is not delayed. The
caller must keep the blocks from being reused meanwhile; earlier launches may still write to blocks
that were released since.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from baton.core.kv_layout import KvLayout
from baton.engine.batch.batch import OnLayer
from baton.kernels.gpu.upload import uploaded
from baton.kernels.paging.block_copy import gather_blocks

T = TypeVar("T")


class KvStaging:
    """Staging copies of the planes of one device, [blocks][...] each."""

    def __init__(self, planes: Sequence[Tensor], layout: KvLayout) -> None:
        self._planes = [plane.view(torch.uint8).flatten(1) for plane in planes]  # [blocks, bytes]
        self._layout = layout
        self._device = planes[0].device
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._writing = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._computed: list[torch.cuda.Event | None] = [None] * len(planes)
        self._passes = torch.cuda.current_stream(self._device)
        """The stream of the passes, independent of the calling thread's current stream."""

    def marking(self, on_layer: OnLayer) -> OnLayer:
        """`on_layer` preceded by a mark, for a pass on the current stream."""
        self._passes = torch.cuda.current_stream(self._device)

        def mark(layer: int) -> None:
            for plane in self._layout.planes_of(layer):
                self.mark(plane)
            on_layer(layer)

        return mark

    def mark(self, plane: int) -> None:
        """Let later reads of `plane` wait for all present work on the current stream."""
        self._computed[plane] = self.launched()

    def launched(self) -> torch.cuda.Event:
        """An event after all present work on the current stream."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def await_computed(self, planes: range) -> None:
        """Wait, on this thread, until these planes are computed."""
        for computed in self._computed[planes.start : planes.stop]:
            if computed is not None:
                computed.synchronize()

    def await_passes(self) -> None:
        """Wait, on this thread, until all launched passes are over."""
        with torch.cuda.device(self._device):
            launched = torch.cuda.Event()  # type: ignore[no-untyped-call]
            launched.record(self._passes)
            launched.synchronize()

    def views(self, blocks: Sequence[int], planes: range) -> tuple[memoryview, ...]:
        """Copies of the blocks' bytes in equal planes, once they are computed."""
        layers = [self._planes[plane] for plane in planes]
        return self.read(
            blocks, planes, lambda numbers: gather_blocks(layers, numbers).flatten(0, 1)
        )

    def read(
        self, blocks: Sequence[int], planes: range, gather: Callable[[Tensor], Tensor]
    ) -> tuple[memoryview, ...]:
        """As `views`, of `gather(block numbers)`: bytes [rows, bytes]."""

        def launch(numbers: Tensor) -> tuple[Tensor, torch.cuda.Event]:
            rows = gather(numbers)
            pinned = torch.empty(rows.shape, dtype=torch.uint8, pin_memory=True)
            pinned.copy_(rows, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
            return pinned, copied

        pinned, copied = self.look(blocks, planes, launch)
        copied.synchronize()
        return rows_of(pinned)

    def look(self, blocks: Sequence[int], planes: range, launch: Callable[[Tensor], T]) -> T:
        """The result of `launch(block numbers)` on the copy stream, after these planes are
        computed."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            for computed in self._computed[planes.start : planes.stop]:
                if computed is not None:
                    self._stream.wait_event(computed)
            return launch(uploaded(torch.tensor(blocks), self._device))

    def write(self, prepare: Callable[[], T], scatter: Callable[[T], None]) -> None:
        """On the write stream: `scatter(prepare())`, after all launched passes. Waits until it is
        done."""
        with torch.cuda.device(self._device):
            launched = torch.cuda.Event()  # type: ignore[no-untyped-call]
            launched.record(self._passes)
            with torch.cuda.stream(self._writing):
                try:
                    staged = prepare()
                    self._writing.wait_event(launched)
                    scatter(staged)
                finally:  # the device still reads the caller's memory
                    self._writing.synchronize()


def rows_of(tensor: Tensor) -> tuple[memoryview, ...]:
    """Read-only views of the rows of a host tensor [rows, bytes]."""
    whole, size = bytes_of(tensor), tensor.shape[1]
    return tuple(whole[at : at + size] for at in range(0, len(whole), size))


def bytes_of(tensor: Tensor) -> memoryview:
    """As `look_into`, read-only."""
    return look_into(tensor).toreadonly()


def look_into(tensor: Tensor) -> memoryview:
    """A memoryview of a contiguous host tensor, which it keeps alive."""
    buffer: Any = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    buffer.owner = tensor
    return memoryview(buffer).cast("B")
