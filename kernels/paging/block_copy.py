"""Copies KV blocks of several layers into one contiguous buffer, or back, for transfers.

    staging[l, i] = layers[l][blocks[i]]          gather, L layers, B blocks of as many bytes each
    layers[l][blocks[i]] = staging[l, i]          scatter

One launch for all layers, so that a device copies or sends one piece of memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def gather_blocks(layers: Sequence[Tensor], blocks: Tensor) -> Tensor:
    """Layers uint8 [blocks, bytes], contiguous; blocks [B] int64 -> uint8 [L, B, bytes]."""
    staging = _checked_staging(layers, blocks)
    if layers[0].is_cuda:
        from baton.kernels.paging import block_copy_gpu as gpu

        gpu.gather_blocks(layers, blocks, staging)
    else:
        for layer, part in zip(layers, staging, strict=True):
            torch.index_select(layer, 0, blocks, out=part)
    return staging


def scatter_blocks(staging: Tensor, layers: Sequence[Tensor], blocks: Tensor) -> None:
    """Copies uint8 [L, B, bytes] to layers uint8 [blocks, bytes]. The blocks must be distinct."""
    if staging.shape != _checked_staging(layers, blocks).shape:
        raise ValueError(f"{tuple(staging.shape)} for {len(layers)} layers of {len(blocks)} blocks")
    if layers[0].is_cuda:
        from baton.kernels.paging import block_copy_gpu as gpu

        gpu.scatter_blocks(staging, layers, blocks)
        return
    for layer, part in zip(layers, staging, strict=True):
        layer.index_copy_(0, blocks, part)


def _checked_staging(layers: Sequence[Tensor], blocks: Tensor) -> Tensor:
    """An uninitialized staging buffer, after checks of the arguments."""
    first = layers[0]
    if any(each.shape != first.shape or not each.is_contiguous() for each in layers):
        raise ValueError("layers must be alike and contiguous")
    if first.dtype is not torch.uint8 or first.dim() != 2:
        raise ValueError(f"layers are uint8 [blocks, bytes], not {first.dtype} {first.shape}")
    return torch.empty(
        len(layers), len(blocks), first.shape[1], dtype=torch.uint8, device=first.device
    )
