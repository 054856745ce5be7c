"""What the device found, on its way to the host while both go on."""

from __future__ import annotations

import torch
from torch import Tensor


class Readback:
    """On a GPU an asynchronous copy to pinned memory; what is on the host is there already."""

    def __init__(self, values: Tensor) -> None:
        """`values` are nobody else's to write."""
        self._host = values.to("cpu", non_blocking=values.is_cuda)
        self._arrived: torch.cuda.Event | None = None
        if values.is_cuda:
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(values.device))

    def wait(self) -> list[list[int]]:
        """All that the device had been told to do by then is done, too."""
        if self._arrived is not None:
            self._arrived.synchronize()
        values: list[list[int]] = self._host.tolist()
        return values
