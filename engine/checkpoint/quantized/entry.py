"""A weight that a checkpoint keeps in few bits, under the name that it would have at full width.

    X.qweight, X.qzeros, X.scales ...     become     X.weight     whose numbers are those they mean

Its bytes, of which a fingerprint is made, are a line on how they are read, then those of its parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.files.tensor_files import StoredEntry
from baton.kernels.products.quantized_weight import QuantizedWeight

ITEMS_AT_ONCE = 1 << 18
"""Items that are float32 at a time while a weight is widened: they stay in the caches."""
ROWS_ALIGNED = 128
"""Pieces begin at multiples of it: no word, and no block that shares a scale, is cut."""


class FewBits(Protocol):
    """How the parts of one weight are read."""

    @property
    def parts(self) -> tuple[StoredEntry, ...]:
        """The small ones first: a fingerprint of samples sees the beginning."""

    @property
    def meaning(self) -> str:
        """All that decides what equal bytes stand for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[N, K], or [E, N, K] of a stack."""

    def rows(self, matrix: int, rows: slice) -> Tensor:
        """The values that bits of one matrix of the stack stand for, float32 [rows, K]."""

    def quantized(self, matrix: int, dtype: torch.dtype) -> QuantizedWeight | None:
        """The bits of one as kernels multiply them, on the CPU; None if no kernel does."""


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedEntry:
    """A `TensorEntry`."""

    bits: FewBits
    is_transposed: bool = False
    """Its name stands for [.., K, N]."""
    _header: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_header", f"{self.bits.meaning}\n".encode())

    @property
    def dtype(self) -> str:
        """The dtype of its scales, if they are as wide as weights may be; else F32."""
        wide = (part.dtype for part in self.bits.parts if part.dtype in ("F16", "BF16"))
        return next(wide, "F32")

    @property
    def shape(self) -> tuple[int, ...]:
        *lead, rows, width = self.bits.shape
        return (*lead, width, rows) if self.is_transposed else self.bits.shape

    @property
    def num_bytes(self) -> int:
        return len(self._header) + sum(part.num_bytes for part in self.bits.parts)

    def piece(self, start: int, num_bytes: int) -> bytes:
        found = self._header[start : start + num_bytes]
        start = max(0, start - len(self._header))
        for part in self.bits.parts:
            wanted = min(num_bytes - len(found), part.num_bytes - start)
            if wanted > 0:
                found += part.piece(start, wanted)
            start = max(0, start - part.num_bytes)
        return found

    def load(self, dtype: torch.dtype) -> Tensor:
        *lead, rows, width = self.bits.shape
        wide = torch.empty(math.prod(lead), rows, width, dtype=dtype)
        for matrix in range(len(wide)):
            self._widen(matrix, wide[matrix])
        wide = wide.view(self.bits.shape)
        return wide.transpose(-1, -2) if self.is_transposed else wide

    def load_matrix(self, matrix: int, dtype: torch.dtype) -> Tensor:
        """One of a stack, so that never all of them are wide at once."""
        wide = torch.empty(self.bits.shape[-2:], dtype=dtype)
        self._widen(matrix, wide)
        return wide.T if self.is_transposed else wide

    def quantized(self, dtype: torch.dtype, matrix: int = 0) -> QuantizedWeight | None:
        """[N, K], to multiply x of `dtype`; None if it has to be widened."""
        return self.bits.quantized(matrix, dtype)

    def release(self) -> None:
        for part in self.bits.parts:
            part.release()

    def _widen(self, matrix: int, into: Tensor) -> None:
        for rows in row_slices(*into.shape):
            into[rows] = self.bits.rows(matrix, rows)


def row_slices(num_rows: int, width: int) -> Iterator[slice]:
    step = max(1, ITEMS_AT_ONCE // max(width, 1) // ROWS_ALIGNED) * ROWS_ALIGNED
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


def expect(entry: StoredEntry, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    """Raises CheckpointError unless a part is what its layout says."""
    if entry.shape != shape or entry.dtype not in dtypes:
        raise CheckpointError(
            f"{name} is {entry.dtype} {list(entry.shape)}, not {' or '.join(dtypes)} "
            f"{list(shape)}, as `quantization_config` of config.json says; they belong to two "
            "checkpoints, or one of them is damaged"
        )
