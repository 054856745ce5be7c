"""Random weights made from a model's shapes alone, for benchmarks (load format `dummy`): only
config.json is read.

A matrix is a run of numbers from one pool of random numbers, beginning at a hash of its name:

    pool   r0 r1 r2 ... r(P-1)      P is prime, so the rows of a matrix differ although the pool
    row 0     [-----)               is much smaller than the matrix
    row 1           [-----)

That takes no longer than copying. Every replica gets the same weights, so KV can be handed over.
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
    """Random numbers, uniform in [-1, 1) times a scale, the same in every process."""

    def __init__(self) -> None:
        self._scaled: dict[tuple[float, torch.dtype], Tensor] = {}

    @cached_property
    def _values(self) -> Tensor:
        """The unscaled numbers [P]. Drawn on first use: checking a model needs none."""
        generator = torch.Generator().manual_seed(SEED)
        return torch.rand(POOL_SIZE, generator=generator).mul_(2).sub_(1)

    def cut(
        self, start: int, size: int, scale: float = 1.0, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """`size` numbers from index `start` on, wrapping around at the end of the pool."""
        if (scale, dtype) not in self._scaled:
            self._scaled[scale, dtype] = (self._values * scale).to(dtype)
        values = self._scaled[scale, dtype]
        first = values[start : start + size]
        num_laps, rest = divmod(size - len(first), POOL_SIZE)
        cut = huge_pages.empty((size,), dtype)
        return torch.cat([first, *[values] * num_laps, values[:rest]], out=cut)


@dataclass(frozen=True, slots=True)
class DummyEntry:
    """A `TensorEntry` whose tensor is made up."""

    name: str
    shape: tuple[int, ...]
    pool: RandomPool = field(repr=False)
    dtype: str = "F32"

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES

    def piece(self, start: int, num_bytes: int) -> bytes:
        """Bytes for the fingerprint, which differ from those of any checkpoint."""
        return f"dummy {SEED} {POOL_SIZE}".encode()

    def load(self, dtype: torch.dtype) -> Tensor:
        """The made-up tensor. Matrices are scaled so that inputs of variance 1 give outputs of
        variance 1; norms are ones. Integers are the column numbers, so that, for example, the
        experts of a token in a routing table differ."""
        if not dtype.is_floating_point:
            return torch.arange(self.shape[-1], dtype=dtype).expand(self.shape).contiguous()
        if len(self.shape) == 1 and not self.name.endswith("bias"):
            return torch.ones(self.shape, dtype=dtype)
        return self._made_up(self.name, self.shape, dtype)

    def load_matrix(self, matrix: int, dtype: torch.dtype) -> Tensor:
        """One matrix of a stack."""
        return self._made_up(f"{self.name}.{matrix}", self.shape[1:], dtype)

    def _made_up(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        digest = blake2b(name.encode(), digest_size=8).digest()
        place = int.from_bytes(digest, "little") % POOL_SIZE
        scale = math.sqrt(3 / shape[-1])
        return self.pool.cut(place, math.prod(shape), scale, dtype).view(shape)

    def release(self) -> None:
        """Does nothing: there are no pages of a file to release."""


def dummy_entries(
    shapes: Mapping[str, tuple[int, ...]], integers: tuple[str, ...] = ()
) -> Mapping[str, DummyEntry]:
    """An entry for each tensor of `shapes`, by name. Tensors whose name ends in one of `integers`
    hold integers."""
    pool = RandomPool()
    return {
        name: DummyEntry(name, shape, pool, "I64" if name.endswith(integers) else "F32")
        for name, shape in shapes.items()
    }
