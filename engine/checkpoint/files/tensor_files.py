"""The tensors of a model folder, found but not yet read.

    model.safetensors     model.safetensors.index.json       preferred, if there are both
    pytorch_model.bin     pytorch_model.bin.index.json

An index is {"weight_map": {tensor: file}}; all tensors lie in the one file, or in those it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.files.bin_file import read_bin
from baton.engine.checkpoint.files.safetensors_file import read_safetensors
from baton.engine.models.config.model_config import read_json


class TensorEntry(Protocol):
    """One tensor. Describing it reads nothing; `piece` and `load` raise CheckpointError."""

    @property
    def dtype(self) -> str:
        """As safetensors names it, such as BF16."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def num_bytes(self) -> int: ...

    def piece(self, start: int, num_bytes: int) -> bytes:
        """Some of its bytes, row by row, whatever the file they lie in."""

    def load(self, dtype: torch.dtype) -> Tensor:
        """On the CPU; not to be written to."""

    def load_matrix(self, matrix: int, dtype: torch.dtype) -> Tensor:
        """One of a stack, so that never all of them are wide at once."""

    def release(self) -> None:
        """Nobody uses what was loaded any more: its memory may go."""


class StoredEntry(TensorEntry, Protocol):
    """One that lies in a file as it is."""

    def stored(self) -> Tensor:
        """In the dtype of the file; memory-mapped where that can be. Not to be written to."""


READERS: Mapping[str, Callable[[Path], Mapping[str, StoredEntry]]] = {
    "model.safetensors": read_safetensors,
    "pytorch_model.bin": read_bin,
}


def read_entries(folder: Path) -> Mapping[str, StoredEntry]:
    """All tensors of a folder, by name. Raises CheckpointError on missing or broken files."""
    for name, read in READERS.items():
        if (folder / name).exists():
            return read(folder / name)
        index = folder / f"{name}.index.json"
        if index.exists():
            return _read_shards(index, read)
    names = " nor ".join(f"{name} nor {name}.index.json" for name in READERS)
    raise CheckpointError(f"{folder} holds neither {names}")


def _read_shards(
    index: Path, read: Callable[[Path], Mapping[str, StoredEntry]]
) -> Mapping[str, StoredEntry]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, Mapping):
        raise CheckpointError(f"{index} has no `weight_map`")
    names = {tensor: _checked(index, name) for tensor, name in weight_map.items()}
    shards = {name: read(index.parent / name) for name in sorted(set(names.values()))}
    lost = [tensor for tensor, name in names.items() if tensor not in shards[name]]
    if lost:
        raise CheckpointError(f"{index} promises tensors that its files lack: {', '.join(lost)}")
    return {tensor: shards[name][tensor] for tensor, name in names.items()}


def _checked(index: Path, name: object) -> str:
    if not isinstance(name, str) or Path(name).name != name:
        raise CheckpointError(f"{index} names a file outside its folder: {name!r}")
    return name
