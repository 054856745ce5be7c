"""One safetensors file: which tensors lie where in it, and the way to them.

A file is 8 bytes N (little-endian), N bytes of JSON {tensor: {dtype, shape, data_offsets}}, data.
"""

from __future__ import annotations

import json
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

MAX_HEADER_BYTES = 100_000_000
"""What the safetensors library accepts."""


class SafetensorsFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, start: int, num_bytes: int) -> bytes:
        """Raises CheckpointError."""
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                return file.read(num_bytes)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error}") from error

    def load(self, name: str) -> Tensor:
        """Memory-mapped: a page is read when it is first used. Raises CheckpointError."""
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
    file: SafetensorsFile
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    """Its bytes in the file."""

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
    """The tensors of one file. Raises CheckpointError if it is missing, cut short or malformed."""
    file = SafetensorsFile(path)
    try:
        with path.open("rb") as stream:
            header_bytes = int.from_bytes(stream.read(8), "little")
            if header_bytes > MAX_HEADER_BYTES:
                raise CheckpointError(f"{path} is no safetensors file")
            header = json.loads(stream.read(header_bytes))
        data_start = 8 + header_bytes
        entries = {
            name: SafetensorsEntry(
                file=file,
                name=name,
                dtype=str(entry["dtype"]),
                shape=tuple(entry["shape"]),
                start=data_start + entry["data_offsets"][0],
                end=data_start + entry["data_offsets"][1],
            )
            for name, entry in header.items()
            if name != "__metadata__"
        }
        file_bytes = path.stat().st_size
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} is broken or cut short: {error}") from error
    expected = max((entry.end for entry in entries.values()), default=data_start)
    if file_bytes != expected:
        raise CheckpointError(f"{path} has {file_bytes} bytes where {expected} are needed")
    return entries
