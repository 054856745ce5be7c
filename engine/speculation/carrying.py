"""Whether a drafter's input for a prompt is sent with the prompt's KV or computed again where it
drafts: whichever takes less time, estimated from bytes and FLOPs.

                  sent                                         computed again by
    head          one feature vector per token                 the whole model
    draft model   its own KV, computed by the sender           the draft model

Times are per prompt token. Sending and computing are assumed not to overlap with anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Way = Literal["carry", "compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Rough speeds of a deployment. They need not be exact: where the choice is close, both ways
    take nearly the same time."""

    link_bytes_s: float
    """Bytes a second between replicas."""
    device_flops_s: float
    """FLOP/s of a replica that drafts."""


SPEEDS = {
    "cuda": Speeds(link_bytes_s=1.25e9, device_flops_s=400e12),
    "cpu": Speeds(link_bytes_s=1.25e9, device_flops_s=1e12),
}
"""Assumed speeds by kind of device: a link of 10 Gbit/s, and a large device of that kind. A faster
link or a slower device would favour sending even more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The cost per prompt token of both ways."""

    carried_bytes: float
    carried_flops: float = 0.0
    """FLOPs to compute what is sent, in addition to those of the prefill."""
    computed_flops: float

    def seconds(self, way: Way, speeds: Speeds) -> float:
        """Seconds per prompt token."""
        if way == "compute":
            return self.computed_flops / speeds.device_flops_s
        made_s = self.carried_flops / speeds.device_flops_s
        return made_s + self.carried_bytes / speeds.link_bytes_s

    def cheaper(self, speeds: Speeds) -> Way:
        carries = self.seconds("carry", speeds) <= self.seconds("compute", speeds)
        return "carry" if carries else "compute"
