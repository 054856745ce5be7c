"""From the host to a device, without waiting for what the device still has to do.

A copy out of pageable memory begins only when all that was launched before it is done, and the host
stands still until then; one out of pinned memory is one more thing to do, in its turn.
"""

from __future__ import annotations

import torch
from torch import Tensor


def uploaded(values: Tensor, device: torch.device | str) -> Tensor:
    """`values` of the host, which may change once this returns, unless `device` is the host."""
    place = torch.device(device)
    if place.type != "cuda":
        return values.to(place)
    return values.pin_memory().to(
        place, non_blocking=True
    )  # torch keeps the pages until it is done
