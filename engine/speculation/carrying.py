"""Whether what drafting needs of a prompt is sent with its KV, or computed where it is drafted:
whichever takes less time, by bytes and FLOPs.

                  sent                                         computed
    head          a vector a token                             the whole model, once more
    draft model   its KV, which was computed before            its KV

Both times are of one token, and neither overlaps with the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Way = Literal["carry", "compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Rough speeds of a deployment: choices that are near each other cost nearly the same."""

    link_bytes_s: float
    """Bytes a second between replicas."""
    device_flops_s: float
    """FLOP/s of a replica that drafts."""


SPEEDS = {
    "cuda": Speeds(link_bytes_s=1.25e9, device_flops_s=400e12),
    "cpu": Speeds(link_bytes_s=1.25e9, device_flops_s=1e12),
}
"""Speeds by kind of device: 10 Gbit/s, and what a large one computes. A faster link speaks for
carrying still more, and so does a slower device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What drafting needs of a token."""

    carried_bytes: float
    carried_flops: float = 0.0
    """To make what is carried, beside what prefill computes anyway."""
    computed_flops: float

    def seconds(self, way: Way, speeds: Speeds) -> float:
        if way == "compute":
            return self.computed_flops / speeds.device_flops_s
        made_s = self.carried_flops / speeds.device_flops_s
        return made_s + self.carried_bytes / speeds.link_bytes_s

    def cheaper(self, speeds: Speeds) -> Way:
        carries = self.seconds("carry", speeds) <= self.seconds("compute", speeds)
        return "carry" if carries else "compute"
