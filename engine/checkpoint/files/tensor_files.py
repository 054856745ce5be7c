"""The tensors of a model folder, found but not yet read."""

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
    """One tensor. Describing it reads nothing; `piece` and `load` raise CheckpointError."""

    @property
    def dtype(self) -> str:
        """The dtype as safetensors names it, such as BF16."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def num_bytes(self) -> int: ...

    def piece(self, start: int, num_bytes: int) -> bytes:
        """Some of its bytes, row by row, whatever the file they lie in."""

    def load(self, dtype: torch.dtype) -> Tensor:
        """The tensor on the CPU; read-only."""

    def load_matrix(self, matrix: int, dtype: torch.dtype) -> Tensor:
        """One of a stack, so that never all of them are wide at once."""

    def release(self) -> None:
        """Nobody uses what was loaded any more: its memory may go."""


class StoredEntry(TensorEntry, Protocol):
    """One that lies in a file as it is."""

    def stored(self) -> Tensor:
        """The tensor in the dtype of the file; memory-mapped where that can be. Read-only."""


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
