"""Products of e4m3 by e4m3 in tensor cores, for as many rows as arithmetic is the limit of.

    y [T, N] = (q s) (W S)^T            torch's `scaled_mm`

    one scale a weight       a scale a row of x; S for every output                  row-wise
    or some outputs
    one each 128 x 128       a scale for 128 neighbours of a row of x                block-wise

The library wants rows padded to 4, the scales of x with rows as neighbours, and those of W
transposed, with K / 128 padded to 4: scales that are not padded have given silently wrong answers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from baton.kernels.products.fp8_rows_gpu import quantize_rows

FP8_BLOCK = 128
PADDING = 4
ROW_ALIGNMENT = 16
MIN_CUDA_OF_BLOCKS = (12, 9)


def takes(x: Tensor, items: Tensor, group: tuple[int, int], dtype: torch.dtype) -> bool:
    """Whether this device, and this torch, can."""
    if not x.is_cuda or torch.cuda.get_device_capability(x.device) < (9, 0):
        return False
    if dtype is not torch.bfloat16 or items.dtype is not torch.float8_e4m3fn:
        return False
    num_columns, width = items.shape
    if not group[1]:
        return num_columns % ROW_ALIGNMENT == 0 and width % ROW_ALIGNMENT == 0
    version = tuple(map(int, (torch.version.cuda or "0.0").split(".")[:2]))
    is_hopper = torch.cuda.get_device_capability(x.device) == (9, 0)
    are_whole = num_columns % FP8_BLOCK == 0 and width % FP8_BLOCK == 0
    is_square = group == (FP8_BLOCK, FP8_BLOCK)
    return is_hopper and is_square and are_whole and version >= MIN_CUDA_OF_BLOCKS


def scaled_linear(x: Tensor, items: Tensor, scales: Tensor, group: tuple[int, int]) -> Tensor:
    """x [T, K] -> [T, N] bfloat16; see `takes`."""
    num_rows, (num_columns, width) = len(x), items.shape
    padded = -(-num_rows // PADDING) * PADDING
    kinds = functional.ScalingType
    quantized, row_scales = quantize_rows(x, group[1] or width, padded)
    if group[1]:
        kind, other = kinds.BlockWise1x128, kinds.BlockWise128x128
        weight_scales = padded_scales(scales)
    else:
        kind = other = kinds.RowWise
        row_scales = row_scales.contiguous()
        weight_scales = scales_of_columns(scales, group[0], num_columns)
    y = functional.scaled_mm(
        quantized, items.t(), row_scales, kind, weight_scales, other, output_dtype=torch.bfloat16
    )
    return y[:num_rows]


def scales_of_columns(scales: Tensor, rows: int, num_columns: int) -> Tensor:
    """[N / rows, 1] -> [1, N]"""
    spread = scales.expand(-1, rows).reshape(1, -1)
    return spread[:, :num_columns].contiguous()


def padded_scales(scales: Tensor) -> Tensor:
    """[N / 128, K / 128] -> [K / 128 padded to 4, N / 128], its columns contiguous."""
    return functional.pad(scales, (0, -scales.shape[1] % PADDING)).t()
