"""What would make a host wait for a GPU, found without one: tensors of a CPU say they are there.

reading      item, tolist, cpu, bool(tensor) ...
sizes        nonzero, masks as indices, repeat_interleave: as long as the device says
uploads      torch.tensor(.., device=..): out of pageable memory, behind all that was launched
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.kernels.gpu.pretended_gpu import tensors_on_a_gpu
from torch.utils._python_dispatch import TorchDispatchMode

READING = (
    *("tolist", "item", "cpu", "numpy"),
    *("__bool__", "__int__", "__float__", "__index__"),
)
SIZES = ("nonzero", "masked_select", "repeat_interleave", "_unique2")
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")


@contextmanager
def waits() -> Iterator[list[str]]:
    """The names of what would have waited, as it is called."""
    found: list[str] = []
    with tensors_on_a_gpu(), pytest.MonkeyPatch.context() as patch, _Sizes(found):
        for name in READING:
            patch.setattr(torch.Tensor, name, _told(name, getattr(torch.Tensor, name), found))
        made = torch.tensor

        def tensor(*args: Any, **options: Any) -> torch.Tensor:
            if options.get("device") is not None and not _is_interpreting():
                found.append("tensor")
            return made(*args, **options)

        patch.setattr(torch, "tensor", tensor)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        yield found


class _Sizes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, found: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name in INDEXING and any(
            index is not None and index.dtype is torch.bool for index in args[1]
        )
        is_told_size = name == "repeat_interleave" and (kwargs or {}).get("output_size") is not None
        if by_mask or (name in SIZES and not is_told_size):
            self._found.append(name)
        return func(*args, **(kwargs or {}))


def _told(name: str, read: Callable[..., Any], found: list[str]) -> Callable[..., Any]:
    def reading(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        if not _is_interpreting():
            found.append(name)
        return read(tensor, *args, **options)

    return reading


def _is_interpreting() -> bool:
    """Triton's interpreter reads what a device would."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("triton."):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
