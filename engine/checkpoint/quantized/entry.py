"""A quantized weight of a checkpoint, under the name that it would have unquantized.

    X.qweight, X.qzeros, X.scales ...     become     X.weight     with the dequantized values

The bytes from which its fingerprint is made are a line that describes the layout, followed by the
bytes of its parts.
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
"""Number of values that are dequantized at a time, so that they stay in the CPU's caches."""
ROWS_ALIGNED = 128
"""Pieces begin at multiples of this many rows, so that no packed word, and no block that shares a
scale, is cut."""


class QuantizedParts(Protocol):
    """The parts of one quantized weight, and how they are read."""

    @property
    def parts(self) -> tuple[StoredEntry, ...]:
        """The parts, small ones first, so that a fingerprint of samples covers them."""

    @property
    def layout_id(self) -> str:
        """A text with everything that determines how the bytes are interpreted."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[N, K], or [E, N, K] for a stack."""

    def rows(self, matrix: int, rows: slice) -> Tensor:
        """Dequantized rows of one matrix of the stack, float32 [rows, K]."""

    def quantized(self, matrix: int, dtype: torch.dtype) -> QuantizedWeight | None:
        """One matrix [N, K] in the format of the kernels, on the CPU, to multiply inputs of
        `dtype`; None if no kernel supports it."""


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedEntry:
    """A `TensorEntry` of a quantized weight."""

    stored: QuantizedParts
    is_transposed: bool = False
    """Whether the unquantized weight of this name has shape [.., K, N]."""
    _header: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_header", f"{self.stored.layout_id}\n".encode())

    @property
    def dtype(self) -> str:
        """The dtype of its scales if that is F16 or BF16, otherwise F32."""
        wide = (part.dtype for part in self.stored.parts if part.dtype in ("F16", "BF16"))
        return next(wide, "F32")

    @property
    def shape(self) -> tuple[int, ...]:
        *lead, rows, width = self.stored.shape
        return (*lead, width, rows) if self.is_transposed else self.stored.shape

    @property
    def num_bytes(self) -> int:
        return len(self._header) + sum(part.num_bytes for part in self.stored.parts)

    def piece(self, start: int, num_bytes: int) -> bytes:
        found = self._header[start : start + num_bytes]
        start = max(0, start - len(self._header))
        for part in self.stored.parts:
            wanted = min(num_bytes - len(found), part.num_bytes - start)
            if wanted > 0:
                found += part.piece(start, wanted)
            start = max(0, start - part.num_bytes)
        return found

    def load(self, dtype: torch.dtype) -> Tensor:
        *lead, rows, width = self.stored.shape
        wide = torch.empty(math.prod(lead), rows, width, dtype=dtype)
        for matrix in range(len(wide)):
            self._widen(matrix, wide[matrix])
        wide = wide.view(self.stored.shape)
        return wide.transpose(-1, -2) if self.is_transposed else wide

    def load_matrix(self, matrix: int, dtype: torch.dtype) -> Tensor:
        """See `TensorEntry.load_matrix`."""
        wide = torch.empty(self.stored.shape[-2:], dtype=dtype)
        self._widen(matrix, wide)
        return wide.T if self.is_transposed else wide

    def quantized(self, dtype: torch.dtype, matrix: int = 0) -> QuantizedWeight | None:
        """One matrix [N, K] as kernels multiply it with inputs of `dtype`; None if it must be
        dequantized."""
        return self.stored.quantized(matrix, dtype)

    def release(self) -> None:
        for part in self.stored.parts:
            part.release()

    def _widen(self, matrix: int, into: Tensor) -> None:
        for rows in row_slices(*into.shape):
            into[rows] = self.stored.rows(matrix, rows)


def row_slices(num_rows: int, width: int) -> Iterator[slice]:
    """Slices of rows with about `ITEMS_AT_ONCE` values each."""
    step = max(1, ITEMS_AT_ONCE // max(width, 1) // ROWS_ALIGNED) * ROWS_ALIGNED
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


def expect(entry: StoredEntry, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    """Raise CheckpointError unless a part has this shape and one of these dtypes."""
    if entry.shape != shape or entry.dtype not in dtypes:
        raise CheckpointError(
            f"{name} is {entry.dtype} {list(entry.shape)}, not {' or '.join(dtypes)} "
            f"{list(shape)}, as `quantization_config` of config.json says; config.json and the "
            "weights are of different checkpoints, or one of them is damaged"
        )
