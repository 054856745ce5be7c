"""What a lead has launched on its GPU, and other ranks may only begin behind; none of it on a CPU.

passes     the lead's stream is through with a layer, or a pass, only when all ranks have
           computed theirs, whose results it adds up
clearing   blocks that the lead zeroes in other ranks' memory
"""

from __future__ import annotations

import torch

from baton.engine.memory.kv_cache import KvCache


class LaunchedWork:
    def __init__(self, own: KvCache) -> None:
        """`own`: the lead's share."""
        self._own = own
        self._cleared: torch.cuda.Event | None = None
        """Behind what was last cleared, if that may be amid it."""

    def clears(self, plane: int) -> None:
        """Clearing blocks of that plane has just been launched: whoever reads it waits for that."""
        staging = self._own.staging
        if staging is None:
            return
        self._cleared = staging.launched()
        if plane < len(self._own.planes):  # others are read on the same stream
            staging.mark(plane)

    def await_cleared(self) -> None:
        """Wait until what was cleared is zero with all ranks."""
        if self._cleared is not None:
            self._cleared.synchronize()
            self._cleared = None

    def await_computed(self, planes: range) -> None:
        """Wait, on any thread, until all ranks have computed these planes. Of those of other stages
        the lead was told."""
        cleared = self._cleared
        if self._own.staging is not None:
            self._own.staging.await_computed(planes)
        if cleared is not None:
            cleared.synchronize()

    def await_passes(self) -> None:
        """Wait, on any thread, until no rank computes a pass that was launched before."""
        if self._own.staging is not None:
            self._own.staging.await_passes()
