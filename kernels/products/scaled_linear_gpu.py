"""Products of e4m3 activations with e4m3 weights in tensor cores, for passes bound by arithmetic.

    y [T, N] = (q s) (W S)^T            torch's `scaled_mm`

    scales of W                            scales of x
    one per weight or per some outputs     one per row; S is repeated per output        row-wise
    one per 128 x 128 block                one per 128 items of a row                   block-wise

The library needs the number of rows padded to a multiple of 4, the scales of x stored column by
column, and those of W transposed, with K / 128 padded to a multiple of 4. Scales that were not
padded have given wrong results without an error.
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
    """Whether this device and this version of torch support the product."""
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
    """x [T, K] -> [T, N] bfloat16, if `takes` is true."""
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
    """[N / 128, K / 128] -> [K / 128 padded to 4, N / 128], with contiguous columns."""
    return functional.pad(scales, (0, -scales.shape[1] % PADDING)).t()
