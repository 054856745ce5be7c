"""Reads the header of a safetensors file: names, dtypes, shapes and offsets. Does not import torch.

A file is 8 bytes N (little-endian), N bytes of JSON {tensor: {dtype, shape, data_offsets}}, data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from baton.core.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000
"""Limit of the safetensors library."""


@dataclass(frozen=True, slots=True)
class DescribedTensor:
    """A tensor as the header describes it."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    """Offsets of the tensor's bytes in the file."""


def read_header(path: Path) -> Mapping[str, DescribedTensor]:
    """The tensors of one file, by name. Raises CheckpointError if it is missing, cut short or
    malformed."""
    try:
        with path.open("rb") as stream:
            header_bytes = int.from_bytes(stream.read(8), "little")
            if header_bytes > MAX_HEADER_BYTES:
                raise CheckpointError(f"{path} is no safetensors file")
            header = json.loads(stream.read(header_bytes))
        data_start = 8 + header_bytes
        tensors = {
            name: DescribedTensor(
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
        raise CheckpointError(f"{path} is broken or cut short: {error}; fetch it again") from error
    expected = max((tensor.end for tensor in tensors.values()), default=data_start)
    if file_bytes != expected:
        cut = "; it was cut short: fetch it again" if file_bytes < expected else ""
        raise CheckpointError(f"{path} has {file_bytes} bytes where {expected} are needed{cut}")
    return tensors
