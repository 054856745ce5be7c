"""Finds the tensors of a model folder without reading them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.checkpoint.files.bin_file import read_bin
from baton.engine.checkpoint.files.safetensors_file import read_safetensors
from baton.engine.checkpoint.files.weight_files import PICKLED, SAFETENSORS, find_weight_files


class TensorEntry(Protocol):
    """One tensor of a checkpoint. Its properties do not read it. The methods raise CheckpointError
    if it cannot be read."""

    @property
    def dtype(self) -> str:
        """The dtype as safetensors names it, such as BF16."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def num_bytes(self) -> int: ...

    def piece(self, start: int, num_bytes: int) -> bytes:
        """`num_bytes` of the tensor's bytes in row-major order, from byte `start` on."""

    def load(self, dtype: torch.dtype) -> Tensor:
        """The tensor in `dtype`, on the CPU; must not be written."""

    def load_matrix(self, matrix: int, dtype: torch.dtype) -> Tensor:
        """One matrix of a stack in `dtype`, so that the whole stack need not be converted at
        once."""

    def release(self) -> None:
        """Release the memory of loaded tensors, which are not used any more."""


class StoredEntry(TensorEntry, Protocol):
    """A tensor as it is stored in a file."""

    def stored(self) -> Tensor:
        """The tensor in the dtype of the file, memory-mapped if possible; must not be written."""


READERS: Mapping[str, Callable[[Path], Mapping[str, StoredEntry]]] = {
    SAFETENSORS: read_safetensors,
    PICKLED: read_bin,
}


def read_entries(folder: Path) -> Mapping[str, StoredEntry]:
    """All tensors of a folder, by name. Raises CheckpointError on missing or broken files."""
    files = find_weight_files(folder)
    found = {path: READERS[files.kind](path) for path in files.paths}
    if files.path_by_tensor is None:
        return found[files.paths[0]]
    files.check_promises(found)
    return {tensor: found[path][tensor] for tensor, path in files.path_by_tensor.items()}
