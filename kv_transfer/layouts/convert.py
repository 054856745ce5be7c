"""Converts KV from one dtype to another: computed in one, read in the other.

    arriving bytes [heads] units --> float32 [heads, K or V, tokens, head_dim] --> units as wanted

Narrowing loses precision as described in `kernels/paging/kv_quantize.py` and by the formats.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from baton.core.kv_layout import SCALE_BYTES, KvLayout
from baton.kernels.paging.kv_quantize import QUANTIZED_DTYPES, dequantize, quantize

MAX_ITEMS = (1 << 15) - 1
"""At once: for more torch would take its other threads, which are the engine's."""


def converted(data: memoryview, layout: KvLayout, dtype: str) -> memoryview:
    """The units of `data`, which has `layout`, in the same layout but for the dtype."""
    target = replace(layout, dtype=dtype)
    num_units = len(data) // layout.unit_bytes
    result = bytearray(num_units * target.unit_bytes)
    units = torch.frombuffer(result, dtype=torch.uint8).view(-1, target.unit_bytes)
    step = max(1, MAX_ITEMS // (layout.num_vectors * layout.block_size * layout.head_dim))
    for start in range(0, num_units, step):
        stop = min(start + step, num_units)
        part = data[start * layout.unit_bytes : stop * layout.unit_bytes]
        _write(_read(part, layout), units[start:stop], target)
    return memoryview(result)


def _read(data: memoryview, layout: KvLayout) -> Tensor:
    """As float32 [units, vectors, tokens, head_dim]."""
    # torch wants a buffer it may write, though it only reads this one.
    buffer = bytearray(data) if data.readonly else data
    units = torch.frombuffer(buffer, dtype=torch.uint8).view(-1, layout.unit_bytes)
    items = _items(units, layout)
    return dequantize(items, _scales(units, layout)) if layout.has_scales else items.float()


def _write(x: Tensor, units: Tensor, layout: KvLayout) -> None:
    dtype = _torch_dtype(layout)
    if layout.has_scales:
        items, scales = quantize(x, dtype)
        _scales(units, layout).copy_(scales)
    else:
        limits = torch.finfo(dtype)
        items = x.clamp(limits.min, limits.max).to(dtype)  # float16 ends early: rather not at inf
    _items(units, layout).copy_(items)


def _items(units: Tensor, layout: KvLayout) -> Tensor:
    """[units, vectors, tokens, head_dim]; shows the memory of `units`."""
    items = units[:, : layout.items_bytes].view(_torch_dtype(layout))
    return items.view(-1, layout.num_vectors, layout.block_size, layout.head_dim)


def _scales(units: Tensor, layout: KvLayout) -> Tensor:
    """[units, vectors, tokens]; shows the memory of `units`."""
    stop = layout.items_bytes + layout.num_vectors * layout.block_size * SCALE_BYTES
    scales = units[:, layout.items_bytes : stop].view(torch.float32)
    return scales.view(-1, layout.num_vectors, layout.block_size)


def _torch_dtype(layout: KvLayout) -> torch.dtype:
    dtype: torch.dtype = QUANTIZED_DTYPES.get(layout.dtype) or getattr(torch, layout.dtype)
    return dtype
