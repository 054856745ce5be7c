"""FP8 checkpoints: e4m3 weights with scales per block (DeepSeek, Qwen), per tensor (AutoFP8) or per
output (FBGEMM); and the 4-bit experts of DeepSeek V4.

    X        F8_E4M3 [.., N, K]
    X_scale_inv, or X_scale       one number       for the whole tensor
                                  [N, 1]           for each output
                                  [N / b, K / c]   for each block of b x c, usually 128 x 128

    W = X * scale           (the name says `inv` because quantizing divides by it)

DeepSeek V4 writes Y.weight with Y.scale, and its experts as MXFP4: I8 [N, K / 2], two values per
byte, with one scale for 32 (engine/checkpoint/quantized/mxfp4.py).

Blocks at the edges may be smaller. Static scales of activations are not used: activations are
quantized dynamically, or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.files.tensor_files import StoredEntry
from baton.engine.checkpoint.quantized.entry import QuantizedEntry
from baton.engine.checkpoint.quantized.mxfp4 import Mxfp4Stack, mxfp4_matrix
from baton.engine.models.config.keys import ConfigKeys
from baton.kernels.products.quantized_weight import FP8_BLOCK, QuantizedWeight

E4M3 = "F8_E4M3"
OTHER_FP8 = ("F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
SCALES = ("F32", "BF16", "F16", "F8_E8M0")
PACKED = "I8"
ENDS = ("_scale_inv", "_scale")
WEIGHT, SCALE = ".weight", ".scale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Matrix:
    """One matrix or a stack of them, as `QuantizedParts`."""

    items: StoredEntry
    scale: StoredEntry
    block: tuple[int, int]
    """Outputs and inputs that share a scale."""

    @property
    def parts(self) -> tuple[StoredEntry, ...]:
        return self.scale, self.items

    @property
    def layout_id(self) -> str:
        return f"e4m3 {self.block}"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.items.shape

    def rows(self, matrix: int, rows: slice) -> Tensor:
        num_columns, width = self.shape[-2:]
        items = self.items.stored().view(-1, num_columns, width)[matrix, rows].float()
        row_blocks = torch.arange(rows.start, rows.stop) // self.block[0]
        scales = self._scales()[matrix][row_blocks]  # [rows, K / c]
        return items * scales.repeat_interleave(self.block[1], 1)[:, :width]

    def quantized(self, matrix: int, dtype: torch.dtype) -> QuantizedWeight | None:
        width = self.shape[-1]
        group = (self.block[0], 0 if self.block[1] >= width else self.block[1])
        if group[1] and (group != (FP8_BLOCK, FP8_BLOCK) or width % FP8_BLOCK):
            return None
        items = self.items.stored().view(-1, *self.shape[-2:])[matrix]
        return QuantizedWeight(items, self._scales()[matrix].contiguous(), group, dtype)

    def _scales(self) -> Tensor:
        """The scales, float32 [E, N / b, K / c]."""
        num_columns, width = self.shape[-2:]
        grid = (-(-num_columns // self.block[0]), -(-width // self.block[1]))
        wide = self.scale.stored().float()
        if wide.numel() == 1:
            return wide.view(1, 1, 1).expand(math.prod(self.items.shape[:-2]), 1, 1)
        return wide.view(-1, *grid)


@dataclass(frozen=True, slots=True)
class Fp8Layout:
    """A `QuantizedLayout`."""

    block: tuple[int, int] | None
    """Outputs and inputs that share a scale; None for one scale per tensor or per output, whichever
    the shape of the scales shows."""

    def find(self, entries: Mapping[str, StoredEntry]) -> Iterator[tuple[str, QuantizedEntry]]:
        for name, entry in entries.items():
            if entry.dtype in OTHER_FP8:
                raise CheckpointError(f"{name} is {entry.dtype}; of FP8 only {E4M3} is supported")
            if entry.dtype == E4M3:
                yield name, QuantizedEntry(fp8_matrix(entries, name, self.block))
            if entry.dtype == PACKED and _scale_of(entries, name) is not None:
                yield name, QuantizedEntry(_fp4_matrix(entries, name))


def fp8_matrix(
    entries: Mapping[str, StoredEntry], name: str, block: tuple[int, int] | None
) -> Fp8Matrix:
    """The e4m3 matrix `name`. Raises CheckpointError if it has no scale, or one that does not
    fit."""
    items = entries[name]
    found = _scale_of(entries, name)
    if found is None:
        raise CheckpointError(
            f"{name} is {items.dtype} but there is neither {' nor '.join(name + e for e in ENDS)}"
        )
    scale = entries[found]
    *lead, num_columns, width = items.shape if len(items.shape) > 1 else (0, 0)
    options = [(num_columns, width), (1, width), *([block] if block else [])]
    for rows, inputs in options if num_columns and width else []:
        grid = (*lead, -(-num_columns // rows), -(-width // inputs))
        is_one = (rows, inputs) == options[0] and scale.shape in ((), (1,), (1, 1))
        is_row = rows == 1 and scale.shape == (*lead, num_columns)
        if scale.dtype in SCALES and (is_one or is_row or scale.shape == grid):
            return Fp8Matrix(items=items, scale=scale, block=(rows, inputs))
    blocks = f" or for each {block[0]} x {block[1]}" if block else ""
    raise CheckpointError(
        f"{found} is {scale.dtype} {list(scale.shape)} for a weight {list(items.shape)}; "
        f"scales must be {', '.join(SCALES)}: one, or one for each output{blocks}; see "
        "`quantization_config` of config.json"
    )


def _fp4_matrix(entries: Mapping[str, StoredEntry], name: str) -> Mxfp4Stack:
    """The MXFP4 matrix `name`. Raises CheckpointError if its scales do not fit."""
    scale = _scale_of(entries, name)
    assert scale is not None
    return mxfp4_matrix(entries, name, scale)


def _scale_of(entries: Mapping[str, StoredEntry], name: str) -> str | None:
    """The name of a weight's scale; None if there is none."""
    names = [name + end for end in ENDS]
    if name.endswith(WEIGHT):
        names.append(name.removesuffix(WEIGHT) + SCALE)
    return next((each for each in names if each in entries), None)


def parse_fp8(keys: ConfigKeys) -> Fp8Layout:
    """The layout of a quantization section. Raises CheckpointError if it is not supported."""
    keys.choice("fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    return Fp8Layout(parse_block(keys, "weight_block_size"))


def parse_block(keys: ConfigKeys, key: str) -> tuple[int, int] | None:
    """The outputs and inputs of a block, by the value of `key`; None if it is absent or null."""
    match keys.value(key):
        case None:
            return None
        case [int(rows), int(inputs)] if rows > 0 and inputs > 0:
            return rows, inputs
        case _:
            raise keys.complaint(key, "must be two positive numbers, or null")
