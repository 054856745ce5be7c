"""Low-rank updates of a product (LoRA), with another adapter for each row:

    y[t, columns of part p] += (x[t] D[m, p]^T) U[m, :, columns of part p]    m = numbers[t] - 1

x [T, K], y [T, N], D [M, P, R, K], U [M, R, N]. The parts are the matrices that are stacked in one
weight (query, key and value: P = 3). Both products are accumulated in float32, and the sum with y
is rounded once. Rows with the number 0 are not touched. On a CPU the bits of a row depend on
nothing but the row and its adapter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.kernels.cpu.operators import runs
from baton.kernels.products import low_rank_cpu as cpu


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """The updates of one weight by all adapters. Raises ValueError if the shapes do not fit."""

    down: Tensor
    """[M, P, R, K]: adapter, part, rank, input. Zero where an adapter has a lower rank, or leaves a
    part as it is."""
    up: Tensor
    """[M, R, N], transposed and scaled. Columns of part p take the R values of that part."""
    parts: tuple[int, ...]
    """Number of outputs of each part; their sum is N."""

    def __post_init__(self) -> None:
        num_adapters, num_parts, rank, _ = self.down.shape
        shape = num_adapters, rank, sum(self.parts)
        if num_parts != len(self.parts) or self.up.shape != shape:
            raise ValueError(
                f"shapes do not fit: {self.down.shape=} {self.up.shape=} {self.parts=}"
            )
        if self.up.dtype is not self.down.dtype or self.up.device != self.down.device:
            raise ValueError(
                f"both matrices must have one dtype and lie on one device: "
                f"{self.down.dtype=} {self.up.dtype=} {self.down.device=} {self.up.device=}"
            )
        if not (self.down.is_contiguous() and self.up.is_contiguous()):
            raise ValueError("both matrices must be contiguous")


def add_low_rank_(y: Tensor, x: Tensor, updates: LowRank, numbers: Tensor) -> Tensor:
    """Add to y [T, N], in place, the update of x [T, K] by each row's adapter; returns y.

    numbers: int64 [>= T] on the same device, 0 for no adapter. It may be longer than T, because it
    stays at one address for tapes and graphs.
    """
    _check(y, x, updates, numbers)
    matrices = updates.down, updates.up, updates.parts
    if x.is_cuda:
        from baton.kernels.products import low_rank_gpu as gpu  # Triton, which CPUs do without

        gpu.add_low_rank_(y, x, *matrices, numbers)
        return y
    if runs(x):
        cpu.add_low_rank_(y, x, *matrices, numbers)
        return y
    return y.copy_(reference(y, x, updates, numbers))


def reference(y: Tensor, x: Tensor, updates: LowRank, numbers: Tensor) -> Tensor:
    """The definition, as a new tensor: what the tests hold every implementation to, and the last
    resort."""
    wide = torch.promote_types(y.dtype, torch.float32)
    numbers, out = numbers[: len(y)], y.clone()
    for number in {*numbers.tolist()} - {0}:
        rows = numbers == number
        inner = torch.einsum("tk,prk->ptr", x[rows].to(wide), updates.down[number - 1].to(wide))
        columns = torch.split(updates.up[number - 1].to(wide), [*updates.parts], dim=1)
        update = torch.cat([of_part @ up for of_part, up in zip(inner, columns, strict=True)], 1)
        out[rows] = (y[rows].to(wide) + update).to(y.dtype)
    return out


def _check(y: Tensor, x: Tensor, updates: LowRank, numbers: Tensor) -> None:
    num_columns, width = updates.up.shape[-1], updates.down.shape[-1]
    dtype, device = updates.up.dtype, updates.up.device
    for name, tensor, items in (("y", y, num_columns), ("x", x, width)):
        if tensor.shape != (len(x), items) or tensor.dtype is not dtype or tensor.device != device:
            raise ValueError(
                f"{name} must be [{len(x)}, {items}] {dtype} on {device}, as the updates are: "
                f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"
            )
    if not y.is_contiguous() or x.stride(1) != 1:
        raise ValueError(
            f"y must be contiguous, and x have adjacent inputs: {y.stride()=} {x.stride()=}"
        )
    if numbers.dim() != 1 or len(numbers) < len(x) or not numbers.is_contiguous():
        raise ValueError(f"a number for each of {len(x)} rows is wanted: {numbers.shape=}")
    if numbers.dtype is not torch.int64 or numbers.device != device:
        raise ValueError(f"numbers must be int64 on {device}: {numbers.dtype=} {numbers.device=}")
