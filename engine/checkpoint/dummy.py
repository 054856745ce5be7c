"""Weights made up from the shapes alone, for benchmarks: no file is read.

A matrix is cut out of one pool of random numbers, from a place that its name decides:

    pool   r0 r1 r2 ... r(P-1)      P is prime, so the rows of a matrix differ though the pool
    row 0     [-----)               is much smaller than it
    row 1           [-----)

That takes as long as copying, and gives every replica the same weights, so KV can be handed over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

import torch
from torch import Tensor

from baton.kernels.cpu import huge_pages

POOL_SIZE = 1_048_573
SEED = 0
ITEM_BYTES = 4


class RandomPool:
    """Uniform in [-1, 1) times a scale, the same in every process."""

    def __init__(self) -> None:
        self._scaled: dict[tuple[float, torch.dtype], Tensor] = {}

    @cached_property
    def _values(self) -> Tensor:
        """[P], drawn for the first weight: who only judges a model has none."""
        generator = torch.Generator().manual_seed(SEED)
        return torch.rand(POOL_SIZE, generator=generator).mul_(2).sub_(1)

    def cut(
        self, start: int, size: int, scale: float = 1.0, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """`size` numbers from place `start` on, around the end as often as it takes."""
        if (scale, dtype) not in self._scaled:
            self._scaled[scale, dtype] = (self._values * scale).to(dtype)
        values = self._scaled[scale, dtype]
        first = values[start : start + size]
        num_laps, rest = divmod(size - len(first), POOL_SIZE)
        cut = huge_pages.empty((size,), dtype)
        return torch.cat([first, *[values] * num_laps, values[:rest]], out=cut)


@dataclass(frozen=True, slots=True)
class DummyEntry:
    name: str
    shape: tuple[int, ...]
    pool: RandomPool = field(repr=False)
    dtype: str = "F32"

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES

    def piece(self, start: int, num_bytes: int) -> bytes:
        """What sets its fingerprint apart from that of any checkpoint."""
        return f"dummy {SEED} {POOL_SIZE}".encode()

    def load(self, dtype: torch.dtype) -> Tensor:
        """Products of unit size for inputs of unit size; norms scale by one, biases are small.

        Whole numbers count the columns: a token's experts, say, which are then different ones.
        """
        if not dtype.is_floating_point:
            return torch.arange(self.shape[-1], dtype=dtype).expand(self.shape).contiguous()
        if len(self.shape) == 1 and not self.name.endswith("bias"):
            return torch.ones(self.shape, dtype=dtype)
        return self._made_up(self.name, self.shape, dtype)

    def load_matrix(self, matrix: int, dtype: torch.dtype) -> Tensor:
        return self._made_up(f"{self.name}.{matrix}", self.shape[1:], dtype)

    def _made_up(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        digest = blake2b(name.encode(), digest_size=8).digest()
        place = int.from_bytes(digest, "little") % POOL_SIZE
        scale = math.sqrt(3 / shape[-1])
        return self.pool.cut(place, math.prod(shape), scale, dtype).view(shape)

    def release(self) -> None:
        """Nothing is kept."""


def dummy_entries(
    shapes: Mapping[str, tuple[int, ...]], integers: tuple[str, ...] = ()
) -> Mapping[str, DummyEntry]:
    """An entry for each tensor that a checkpoint of the model would hold; names that end like
    `integers` are of whole numbers."""
    pool = RandomPool()
    return {
        name: DummyEntry(name, shape, pool, "I64" if name.endswith(integers) else "F32")
        for name, shape in shapes.items()
    }
