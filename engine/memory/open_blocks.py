"""Memory for int4 KV blocks that are still being filled, and so not quantised yet.

    open rows, per layer and slot     one block in the dtype of the model; two if drafts, of which
                                      some are wrong, may fill one and begin the next
    pass rows, shared by all layers   the tokens of one pass, and those of the blocks that were open
                                      before (kernels/paging/int4_arena.py)

Each running request has a slot (`Request.open_slot`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton.core.kv_layout import ITEM_BYTES, KvLayout
from baton.engine.batch.static_batch import PassLimits
from baton.kernels.paging.int4_arena import Int4Arena


def num_open(limits: PassLimits) -> int:
    """Unquantised blocks of each request."""
    return 2 if limits.max_drafted else 1


def int4_arenas(
    units: Sequence[Tensor], layout: KvLayout, dtype: str, limits: PassLimits
) -> list[Int4Arena]:
    """The arenas of all layers, with their 4-bit `units`."""
    items: torch.dtype = getattr(torch, dtype)
    device = units[0].device
    open_shape, pass_shape = _shapes(layout, limits)
    pass_rows = torch.zeros(pass_shape, dtype=items, device=device)
    return [
        Int4Arena(each, torch.zeros(open_shape, dtype=items, device=device), pass_rows)
        for each in units
    ]


def open_bytes(layout: KvLayout, dtype: str, limits: PassLimits) -> int:
    """Bytes of `int4_arenas`, without the units."""
    open_shape, pass_shape = _shapes(layout, limits)
    num_items = torch.Size(open_shape).numel() * layout.num_layers + torch.Size(pass_shape).numel()
    return num_items * ITEM_BYTES[dtype]


def _shapes(layout: KvLayout, limits: PassLimits) -> tuple[tuple[int, ...], tuple[int, ...]]:
    heads, size, width = layout.num_kv_heads, layout.block_size, layout.head_dim
    num_rows = limits.max_tokens + limits.max_requests * (size - 1)
    open_shape = limits.max_requests, num_open(limits), heads, 2, size, width
    return open_shape, (num_rows, 2, heads, width)
