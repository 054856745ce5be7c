"""Layouts of checkpoint tensors. In Baton's layout rows are outputs: all queries, keys, then
values.

TRANSPOSED     [inputs, outputs]                      GPT-2's Conv1D
BY_KV_HEAD     rows [K][G queries, key, value][H]     Falcon: a KV head follows its queries
PAIRS_APART    rows of a head 0, 1, 2, 3 ...          Llama 4: adjacent rows rotate together; ours
                                                      are half a head apart, all first ones first
FIRST_HALF     columns of the first of two inputs     heads that join a token and a hidden state:
SECOND_HALF    of the second                          ours is one matrix for each
ALTERNATING    rows gate, up, gate, up ...            GPT-OSS: ours are all gates, then all ups
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.layers.attention import HeadShape


class Arrangement(Protocol):
    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The checkpoint's shape of a tensor with `shape` here."""

    def ours(self, stored: Tensor, heads: HeadShape) -> Tensor:
        """A stored tensor in our layout; may be a view."""


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


@dataclass(frozen=True, slots=True)
class PairsApart:
    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape

    def ours(self, stored: Tensor, heads: HeadShape) -> Tensor:
        pairs = stored.reshape(-1, heads.head_dim // 2, 2, *stored.shape[1:])
        return pairs.transpose(1, 2).reshape(stored.shape)


@dataclass(frozen=True, slots=True)
class Alternating:
    is_transposed: bool

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[::-1] if self.is_transposed else shape

    def ours(self, stored: Tensor, heads: HeadShape) -> Tensor:
        rows = stored.T if self.is_transposed else stored
        return torch.cat([rows[::2], rows[1::2]])


@dataclass(frozen=True, slots=True)
class HalfOfColumns:
    is_second: bool

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return *shape[:-1], 2 * shape[-1]

    def ours(self, stored: Tensor, heads: HeadShape) -> Tensor:
        return stored.chunk(2, dim=-1)[self.is_second].contiguous()


AS_IS, TRANSPOSED, BY_KV_HEAD = AsIs(), Transposed(), ByKvHead()
ALTERNATING, TRANSPOSED_ALTERNATING = Alternating(False), Alternating(True)
PAIRS_APART = PairsApart()
FIRST_HALF, SECOND_HALF = HalfOfColumns(False), HalfOfColumns(True)
