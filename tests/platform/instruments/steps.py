"""Steps as an instrument would have seen them."""

from __future__ import annotations

from collections.abc import Mapping

from baton.platform.instruments.part_clock import Span
from baton.platform.instruments.step_watch import StepTime
from baton.platform.models.model_shape import Part

PARTS = {Part.ATTENTION: 0.002, Part.QKV: 0.003, Part.HEAD: 0.001}


def make_step(
    *,
    started_at: float = 100.0,
    num_tokens: int = 2,
    num_requests: int = 2,
    part_s: Mapping[Part, float] = PARTS,
) -> StepTime:
    """10 ms: schedule 1, pass 6, head 1, bookkeeping 0.5, sample 1, rest 0.5."""
    return StepTime(
        started_at=started_at,
        step_s=0.010,
        draft_s=0.0,
        schedule_s=0.001,
        forward_s=0.0075,
        sample_s=0.001,
        pass_s=0.006,
        head_s=0.001,
        part_s=part_s,
        pass_at=started_at + 0.001,
        spans=[Span("qkv", started_at + 0.002, 0.003)],
        num_tokens=num_tokens,
        num_requests=num_requests,
    )
