"""Reads the tensors of a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.files.mapped_pages import give_back
from baton.engine.checkpoint.files.safetensors_header import read_header


class SafetensorsFile:
    """One file, opened when it is first used."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, start: int, num_bytes: int) -> bytes:
        """`num_bytes` bytes from offset `start` on. Raises CheckpointError if that fails."""
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                return file.read(num_bytes)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error}") from error

    def load(self, name: str) -> Tensor:
        """The tensor `name`, memory-mapped: a page is read when it is first used. Raises
        CheckpointError if the file cannot be read."""
        try:
            tensor: Tensor = self._mapped.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{self.path} cannot be read: {error}") from error
        return tensor

    @cached_property
    def _mapped(self) -> Any:  # safe_open has no types
        return safe_open(self.path, framework="pt", device="cpu")


@dataclass(frozen=True, slots=True)
class SafetensorsEntry:
    """A `StoredEntry` in a safetensors file."""

    file: SafetensorsFile
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    """Offsets of the tensor's bytes in the file."""

    @property
    def num_bytes(self) -> int:
        return self.end - self.start

    def piece(self, start: int, num_bytes: int) -> bytes:
        return self.file.read(self.start + start, num_bytes)

    def stored(self) -> Tensor:
        return self.file.load(self.name)

    def load(self, dtype: torch.dtype) -> Tensor:
        return self.stored().to(dtype)

    def load_matrix(self, matrix: int, dtype: torch.dtype) -> Tensor:
        return self.stored()[matrix].to(dtype)

    def release(self) -> None:
        give_back(self.file.load(self.name))


def read_safetensors(path: Path) -> Mapping[str, SafetensorsEntry]:
    """The tensors of one file, by name. Raises CheckpointError if it is missing, cut short or
    malformed."""
    file = SafetensorsFile(path)
    return {
        name: SafetensorsEntry(
            file=file,
            name=name,
            dtype=tensor.dtype,
            shape=tensor.shape,
            start=tensor.start,
            end=tensor.end,
        )
        for name, tensor in read_header(path).items()
    }
