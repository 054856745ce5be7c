"""Asynchronous copies from the host to a device.

A copy from pageable memory waits on the host until all earlier launches are done; one from pinned
memory is queued like a launch.
"""

from __future__ import annotations

import torch
from torch import Tensor


def uploaded(values: Tensor, device: torch.device | str) -> Tensor:
    """Copies host `values` to `device` asynchronously. `values` may change once this returns,
    unless `device` is the host."""
    place = torch.device(device)
    if place.type != "cuda":
        return values.to(place)
    return values.pin_memory().to(
        place, non_blocking=True
    )  # torch keeps the pages until it is done
