"""How a tensor of a checkpoint lies. Rows of ours are outputs: all queries, then keys, then values.

TRANSPOSED     [inputs, outputs]                      GPT-2's Conv1D
BY_KV_HEAD     rows [K][G queries, key, value][H]     Falcon: a KV head behind its queries
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.layers.attention import HeadShape


class Arrangement(Protocol):
    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape in a checkpoint of what is `shape` here."""

    def ours(self, stored: Tensor, heads: HeadShape) -> Tensor:
        """A stored tensor as ours lie; may be a view."""


@dataclass(frozen=True, slots=True)
class AsIs:
    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape

    def ours(self, stored: Tensor, heads: HeadShape) -> Tensor:
        return stored


@dataclass(frozen=True, slots=True)
class Transposed:
    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[::-1]

    def ours(self, stored: Tensor, heads: HeadShape) -> Tensor:
        return stored.T


@dataclass(frozen=True, slots=True)
class ByKvHead:
    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape

    def ours(self, stored: Tensor, heads: HeadShape) -> Tensor:
        group = heads.num_heads // heads.num_kv_heads
        rows = stored.reshape(heads.num_kv_heads, group + 2, heads.head_dim, *stored.shape[1:])
        parts = (rows[:, :group], rows[:, group], rows[:, group + 1])
        return torch.cat([part.reshape(-1, *stored.shape[1:]) for part in parts])


AS_IS, TRANSPOSED, BY_KV_HEAD = AsIs(), Transposed(), ByKvHead()
