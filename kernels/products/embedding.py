"""Looks up rows of a table:   y[t] = table[ids[t]] * scale

T tokens, V vocabulary, D width. The scale is rounded to the table's dtype first, as Gemma does.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from baton.kernels.cpu.operators import runs
from baton.kernels.products import embedding_cpu as cpu
from baton.kernels.products.weight import Weight


def embedding(ids: Tensor, table: Weight, scale: float | None = None) -> Tensor:
    """ids [T], table [V, D] -> [T, D]"""
    if not isinstance(table, Tensor):
        return table.embedding(ids, scale)
    if runs(table):
        return cpu.embedding(ids, table, scale)
    return reference(ids, table, scale)


def reference(ids: Tensor, table: Tensor, scale: float | None = None) -> Tensor:
    x = functional.embedding(ids, table)
    return x if scale is None else x * torch.tensor(scale, dtype=x.dtype)
