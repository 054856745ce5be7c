"""Work that a lead has launched on its GPU, for which other ranks must wait; none on a CPU.

passes     the lead's stream has completed a layer, or a pass, only when all ranks have
           computed theirs, because it adds up their results
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
        """Recorded after the last clearing, while that may still be running."""

    def clears(self, plane: int) -> None:
        """Note that clearing blocks of that plane has been launched; reads of the plane must wait
        for it."""
        staging = self._own.staging
        if staging is None:
            return
        self._cleared = staging.launched()
        if plane < len(self._own.planes):  # others are read on the same stream
            staging.mark(plane)

    def await_cleared(self) -> None:
        """Wait until cleared blocks are zero on all ranks."""
        if self._cleared is not None:
            self._cleared.synchronize()
            self._cleared = None

    def await_computed(self, planes: range) -> None:
        """Wait, on any thread, until all ranks have computed these planes. Other stages have
        notified the lead of theirs."""
        cleared = self._cleared
        if self._own.staging is not None:
            self._own.staging.await_computed(planes)
        if cleared is not None:
            cleared.synchronize()

    def await_passes(self) -> None:
        """Wait, on any thread, until all ranks have finished the passes launched so far."""
        if self._own.staging is not None:
            self._own.staging.await_passes()
