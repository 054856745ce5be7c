"""A file written by `torch.save`: the older checkpoint format, `pytorch_model.bin`.

The file is a pickle, which could run arbitrary code. So it is read with
`torch.load(weights_only=True)`, and only plain tensors are accepted. The tensors are memory-mapped
and read when they are used; files from before torch 1.6 cannot be mapped and are read whole.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.files.mapped_pages import give_back

STORED_NAMES: Mapping[torch.dtype, str] = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
}
"""Names of dtypes in safetensors, so that the same weights have the same fingerprint in both
formats."""
_AS_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


@dataclass(frozen=True, slots=True, eq=False)
class BinEntry:
    """A `StoredEntry` in a `.bin` file."""

    tensor: Tensor
    is_mapped: bool

    @property
    def dtype(self) -> str:
        dtype = self.tensor.dtype
        return STORED_NAMES.get(dtype, str(dtype).removeprefix("torch."))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def num_bytes(self) -> int:
        return self.tensor.nbytes

    def piece(self, start: int, num_bytes: int) -> bytes:
        size = self.tensor.element_size()
        first, end = start // size, -(-(start + num_bytes) // size)
        bits = self.tensor.view(_AS_BITS[size])  # `take` does not support 8-bit floats
        elements = bits.take(torch.arange(first, end))  # copies only these, whatever the strides
        data = bytes(elements.view(torch.uint8).tolist())
        return data[start - first * size :][:num_bytes]

    def stored(self) -> Tensor:
        return self.tensor

    def load(self, dtype: torch.dtype) -> Tensor:
        return self.tensor.to(dtype)

    def load_matrix(self, matrix: int, dtype: torch.dtype) -> Tensor:
        return self.tensor[matrix].to(dtype)

    def release(self) -> None:
        if self.is_mapped:
            give_back(self.tensor)


def read_bin(path: Path) -> Mapping[str, BinEntry]:
    """The tensors of one file, by name. Raises CheckpointError if the file is missing or broken, or
    holds anything but tensors."""
    try:
        is_zip = zipfile.is_zipfile(path)
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except UnpicklingError as error:
        raise CheckpointError(
            f"{path} was not loaded, because it holds something other than tensors, which could "
            "run code; if you trust it, convert it to safetensors"
        ) from error
    except Exception as error:  # unpickling broken bytes may raise anything
        reason = str(error).split("\n", 1)[0]
        raise CheckpointError(f"{path} is broken or cut short: {reason}") from error
    if not isinstance(found, dict) or not all(map(_is_named_tensor, found.items())):
        raise CheckpointError(f"{path} is no checkpoint: it must hold a dict of names and tensors")
    return {name: BinEntry(tensor.detach(), is_zip) for name, tensor in found.items()}


def _is_named_tensor(item: tuple[object, object]) -> bool:
    name, tensor = item
    return (
        isinstance(name, str)
        and isinstance(tensor, Tensor)
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
    )
