"""Detects arrivals that were rounded in the recording, and spreads them again.

Many traces round arrivals (Mooncake's: to 3 s). Replayed unchanged, each tick would be an
artificial burst; spreading arrivals over their tick restores realistic times.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from baton.platform.traces.trace import Trace

MIN_INSTANTS = 20
"""Least instants that are evidence."""
SHARED = 0.05
"""Least share of requests that arrive at the same instant as another."""
ALIGNED = 0.95
"""Least share of the gaps between instants that are whole ticks."""
SLACK = 0.02
"""Tolerated error of a gap, as a share of a tick: clocks ran while the trace was recorded."""


def tick_of(arrivals_s: Sequence[float]) -> float | None:
    """Seconds that all arrivals are multiples of, or None if they were not rounded."""
    instants = sorted(set(arrivals_s))
    is_shared = len(arrivals_s) - len(instants) >= SHARED * len(arrivals_s)
    if len(instants) < MIN_INSTANTS or not is_shared:
        return None
    gaps = sorted(later - sooner for sooner, later in pairwise(instants))
    smallest = gaps[len(gaps) // 10]  # the very smallest may be a clock's slip
    tick = median(gap for gap in gaps if 0.5 * smallest <= gap <= 1.5 * smallest)
    num_aligned = sum(abs(gap / tick - round(gap / tick)) <= SLACK for gap in gaps)
    return round(tick, 6) if num_aligned >= ALIGNED * len(gaps) else None


def spread(trace: Trace, *, seed: int) -> Trace:
    """Each arrival later by a random part of the tick, evenly from none to all of it.

    A trace that was not rounded, or has sessions, is returned as it is.
    """
    if trace.tick_s is None:
        return trace
    random_ = random.Random(seed)
    arrivals = [
        (request.arrival_s or 0.0) + random_.uniform(0.0, trace.tick_s)
        for request in trace.requests
    ]
    return replace(trace.arriving_at(arrivals), tick_s=None)
