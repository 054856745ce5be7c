"""The safetensors files of a model folder: which tensors lie where.

    model.safetensors                      all of them, or
    model.safetensors.index.json           {"weight_map": {tensor: file}} and the files it names

A file is 8 bytes N (little-endian), N bytes of JSON {tensor: {dtype, shape, data_offsets}}, data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.config import read_json

MAX_HEADER_BYTES = 100_000_000
"""What the safetensors library accepts."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    path: Path
    dtype: str
    """As safetensors names it, such as BF16."""
    shape: tuple[int, ...]
    start: int
    end: int
    """Its bytes in the file."""

    @property
    def num_bytes(self) -> int:
        return self.end - self.start


def read_entries(folder: Path) -> dict[str, TensorEntry]:
    """All tensors of a folder, by name. Raises CheckpointError on missing or broken files."""
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if single.exists():
        return read_header(single)
    if not index.exists():
        raise CheckpointError(
            f"{folder} holds neither model.safetensors nor model.safetensors.index.json"
        )
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, Mapping):
        raise CheckpointError(f"{index} has no `weight_map`")
    headers = {
        name: read_header(_inside(folder, index, name)) for name in sorted(set(weight_map.values()))
    }
    lost = [tensor for tensor, name in weight_map.items() if tensor not in headers[name]]
    if lost:
        raise CheckpointError(f"{index} promises tensors that its files lack: {', '.join(lost)}")
    return {tensor: headers[name][tensor] for tensor, name in weight_map.items()}


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of one file. Raises CheckpointError if it is missing, cut short or malformed."""
    try:
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            if header_bytes > MAX_HEADER_BYTES:
                raise CheckpointError(f"{path} is no safetensors file")
            header = json.loads(file.read(header_bytes))
        data_start = 8 + header_bytes
        entries = {
            name: TensorEntry(
                path=path,
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


def _inside(folder: Path, index: Path, name: object) -> Path:
    if not isinstance(name, str) or Path(name).name != name:
        raise CheckpointError(f"{index} names a file outside its folder: {name!r}")
    return folder / name
