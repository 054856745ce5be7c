"""Efficiency of engines relative to data sheets: low, expected and high.

A pass takes, part after part, the larger of its arithmetic and its reading at these shares, what
ranks say to each other, and a constant. `EXPECTED` lies in the middle of what was published of
engines on A100 and H100 (docs/sizing.md has the table); `LOW` is what careful engines still beat,
`HIGH` what the best published reached.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    name: str
    arithmetic: float
    """Share of the data sheet's dense rate, of products with many rows."""
    read: float
    link: float
    call_s: float
    """Seconds of latency of a message between ranks, whatever its size."""
    pass_s: float
    """Seconds of overhead of a pass, whatever is in it: planning, launches, sampling."""
    is_overlapped: bool = False
    """Ranks talk while they compute."""


LOW = Efficiency(name="low", arithmetic=0.35, read=0.5, link=0.4, call_s=30e-6, pass_s=6e-3)
EXPECTED = Efficiency(
    name="expected", arithmetic=0.55, read=0.7, link=0.6, call_s=15e-6, pass_s=2.5e-3
)
HIGH = Efficiency(
    name="high",
    arithmetic=0.75,
    read=0.88,
    link=0.8,
    call_s=8e-6,
    pass_s=0.5e-3,
    is_overlapped=True,
)
ON_GPU = (LOW, EXPECTED, HIGH)
ON_CPU = (
    Efficiency(name="low", arithmetic=0.6, read=0.6, link=0.4, call_s=1e-4, pass_s=4e-3),
    Efficiency(name="expected", arithmetic=0.8, read=0.8, link=0.6, call_s=5e-5, pass_s=1e-3),
    Efficiency(name="high", arithmetic=0.95, read=0.95, link=0.8, call_s=2e-5, pass_s=3e-4),
)
"""Shares of rates measured on the spot that Baton reaches (docs/performance.md)."""
