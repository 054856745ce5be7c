"""MXFP4 checkpoints (Open Compute's microscaling format), such as the experts of GPT-OSS.

    X_blocks   uint8 [.., N, K / 32, 16]     two e2m1 values per byte, the first in the low half
    X_scales   uint8 [.., N, K / 32]         e8m0: 2 to the power of (byte - 127)

    X [.., K, N]  =  (blocks * scales), transposed

    compressed-tensors stores a single Y.weight [N, K] the same way, as Y.weight_packed [N, K / 2]
    and Y.weight_scale [N, K / 32]; DeepSeek V4 as Y.weight (I8) and Y.scale.

    e2m1      0  0.5  1  1.5  2  3  4  6, and with the highest bit their negatives

A scale of 255, which is NaN, makes its block NaN. Values are exact in bfloat16 and float32, except
for those below their smallest number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.files.tensor_files import StoredEntry
from baton.engine.checkpoint.quantized.entry import QuantizedEntry, expect
from baton.engine.models.config.keys import ConfigKeys
from baton.kernels.products.mxfp4 import GROUP, GROUP_BYTES, widen
from baton.kernels.products.quantized_groups import quantized_fp4
from baton.kernels.products.quantized_weight import QuantizedWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class Mxfp4Stack:
    """A stack of matrices, or one, as `QuantizedParts`."""

    blocks: StoredEntry
    scales: StoredEntry

    @property
    def parts(self) -> tuple[StoredEntry, ...]:
        return self.scales, self.blocks

    @property
    def layout_id(self) -> str:
        return "mxfp4"

    @property
    def shape(self) -> tuple[int, ...]:
        *lead, num_groups = self.scales.shape
        return (*lead, num_groups * GROUP)

    def rows(self, matrix: int, rows: slice) -> Tensor:
        num_columns, num_groups = self.scales.shape[-2:]
        scales = self.scales.stored().view(-1, num_columns, num_groups)[matrix, rows]
        return widen(self._blocks()[matrix, rows], scales)

    def quantized(self, matrix: int, dtype: torch.dtype) -> QuantizedWeight | None:
        num_columns, num_groups = self.scales.shape[-2:]
        scales = self.scales.stored().view(-1, num_columns, num_groups)
        return quantized_fp4(self._blocks()[matrix], scales[matrix], dtype)

    def _blocks(self) -> Tensor:
        """The packed values, uint8 [E, N, K / 32, 16]."""
        num_columns, num_groups = self.scales.shape[-2:]
        bits = self.blocks.stored().view(torch.uint8)
        return bits.view(-1, num_columns, num_groups, GROUP_BYTES)


@dataclass(frozen=True, slots=True)
class Mxfp4Layout:
    """A `QuantizedLayout`."""

    def find(self, entries: Mapping[str, StoredEntry]) -> Iterator[tuple[str, QuantizedEntry]]:
        for full_name, blocks in entries.items():
            if not full_name.endswith("_blocks"):
                continue
            name = full_name.removesuffix("_blocks")
            scales = entries.get(f"{name}_scales")
            if scales is None:
                raise CheckpointError(f"{full_name} has no {name}_scales beside it")
            if len(blocks.shape) < 3:
                raise CheckpointError(
                    f"{full_name} has shape {list(blocks.shape)}, not that of a matrix of blocks"
                )
            expect(blocks, full_name, (*blocks.shape[:-1], GROUP_BYTES), ("U8",))
            expect(scales, f"{name}_scales", blocks.shape[:-1], ("U8", "F8_E8M0"))
            yield name, QuantizedEntry(Mxfp4Stack(blocks=blocks, scales=scales), is_transposed=True)


def packed_mxfp4(entries: Mapping[str, StoredEntry], name: str) -> Mxfp4Stack:
    """The matrix `name` of a compressed-tensors checkpoint. Raises CheckpointError if its scales
    are missing or do not fit."""
    return mxfp4_matrix(entries, f"{name}_packed", f"{name}_scale")


def mxfp4_matrix(
    entries: Mapping[str, StoredEntry], blocks_name: str, scales_name: str
) -> Mxfp4Stack:
    """The matrix with these names of its parts. Raises CheckpointError if its scales are missing or
    do not fit."""
    blocks, scales = entries[blocks_name], entries.get(scales_name)
    if scales is None or len(blocks.shape) != 2:
        raise CheckpointError(f"{blocks_name} {list(blocks.shape)} is no matrix with {scales_name}")
    num_rows, num_bytes = blocks.shape
    expect(scales, scales_name, (num_rows, num_bytes // GROUP_BYTES), ("U8", "F8_E8M0"))
    expect(blocks, blocks_name, (num_rows, scales.shape[1] * GROUP_BYTES), ("U8", "I8"))
    return Mxfp4Stack(blocks=blocks, scales=scales)


def parse_mxfp4(keys: ConfigKeys) -> Mxfp4Layout:
    """The layout of a quantization section, which has no options."""
    return Mxfp4Layout()
