"""Moves whole blocks of several planes together, on the cache's device.

    host memory  data --copy--> staged ----------------------------.
    the device   rows --checksummed, verified, bad ones zeroed------+--> scattered into the arenas
                 arenas --gathered--> rows --summed up--> checksums alone come to this host

On a GPU all of it runs concurrently with passes, on the streams of `KvStaging`; any thread may
call, and blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from baton.core.kv_pool import DeviceWrite
from baton.engine.memory.kv_staging import KvStaging
from baton.kernels.gpu.upload import uploaded
from baton.kernels.paging.checksum import differing, row_checksums

Gather = Callable[[range, Tensor], Tensor]
"""Equal planes, and block numbers on the device -> uint8 [planes x blocks, bytes]."""
Scatter = Callable[[Tensor, range, Tensor], None]
"""Writes uint8 [planes, blocks, bytes] into equal planes, at block numbers on the device."""


class DeviceRows:
    def __init__(
        self,
        device: torch.device,
        staging: KvStaging | None,
        block_bytes: Sequence[int],
        gather: Gather,
        scatter: Scatter,
    ) -> None:
        """`staging`: None where the device is no GPU. `block_bytes` is by plane."""
        self.device = device
        self._staging = staging
        self._block_bytes = block_bytes
        self._gather = gather
        self._scatter = scatter

    def write_blocks(self, blocks: Sequence[int], planes: range, data: memoryview) -> None:
        """Replace whole blocks with host memory `data`, ordered by plane and block, in one copy and
        one launch. Raises ValueError for a wrong length.
        """
        shape = self._shape(blocks, planes, data.nbytes)
        on_host = torch.frombuffer(data, dtype=torch.uint8).view(shape)

        def copied() -> list[DeviceWrite]:
            there = on_host.to(self.device, non_blocking=True)
            return [DeviceWrite(blocks, planes, there, b"")]

        self._write(copied)

    def takes(self, rows: Any) -> bool:
        """Whether `write_rows` accepts rows with this location."""
        return isinstance(rows, Tensor) and rows.device == self.device

    def write_rows(self, writes: Sequence[DeviceWrite], unit_bytes: int) -> list[list[int]]:
        """See `OwnRows.write_rows`. Raises ValueError for rows of any other length."""
        bad: list[list[int]] = []
        shaped = [
            replace(
                each, rows=each.rows.view(self._shape(each.indices, each.planes, each.rows.nbytes))
            )
            for each in writes
        ]

        def verified() -> list[DeviceWrite]:
            found = row_checksums([each.rows for each in shaped], unit_bytes)
            for each, actual in zip(shaped, found, strict=True):
                wrong = differing(actual, each.checksums)
                num_units = each.rows.shape[2] // unit_bytes
                for row in {unit // num_units for unit in wrong}:
                    each.rows.flatten(0, 1)[row] = 0
                bad.append(wrong)
            return shaped

        self._write(verified)
        return bad

    def checksums(
        self, blocks: Sequence[int], planes: range, part: slice, unit_bytes: int
    ) -> bytes:
        """See `BlockSource.checksums`."""

        def summed_up(numbers: Tensor) -> bytes:
            rows = self._gather(planes, numbers)[:, part]
            return row_checksums((rows.contiguous(),), unit_bytes)[0]

        if self._staging is not None:
            return self._staging.look(blocks, planes, summed_up)
        return summed_up(uploaded(torch.tensor(blocks), self.device))

    def _write(self, prepare: Callable[[], list[DeviceWrite]]) -> None:
        """`prepare` returns writes with rows by plane and block."""

        def scatter(prepared: list[DeviceWrite]) -> None:
            for each in prepared:
                numbers = uploaded(torch.tensor(each.indices), self.device)
                self._scatter(each.rows, each.planes, numbers)

        if self._staging is not None:
            self._staging.write(prepare, scatter)
        else:
            scatter(prepare())

    def _shape(self, blocks: Sequence[int], planes: range, num_bytes: int) -> tuple[int, int, int]:
        shape = len(planes), len(blocks), self._block_bytes[planes[0]]
        if num_bytes != prod(shape):
            raise ValueError(f"{num_bytes} bytes for {shape} planes, blocks and bytes")
        return shape
