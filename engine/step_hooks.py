"""The hooks of an engine step: what the owner of the engine passes in to take part in it.

held_tenants, reclaim -> on_scheduled -> layer, on_layer, between_layers, layer, ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baton.engine.request.request import Request
from baton.engine.schedule.drafted_chunks import ScheduledChunk
from baton.engine.schedule.scheduler import HeldTenants, Reclaim


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHooks:
    """All are called on the thread that runs the step; none does anything unless it is given."""

    reclaim: Reclaim = lambda tenant: False
    """Called before a request is preempted."""
    held_tenants: HeldTenants = lambda: ()
    """Called before a request that waits takes the blocks of pins."""
    on_scheduled: Callable[[Request], None] = lambda request: None
    """Called with a request that is about to run for the first time; it may be aborted."""
    on_layer: Callable[[int, Sequence[ScheduledChunk]], None] = lambda layer, chunks: None
    """Called in the middle of a pass, or behind it, with the number of a layer and all the chunks:
    their KV of this layer is in the cache. Their blocks must be left alone, but may be shared."""
    between_layers: Callable[[], None] = lambda: None
    """Called after it, under the same law: the engine's thread lets others have a word."""


ALONE = StepHooks()
"""The hooks of an engine on its own."""
