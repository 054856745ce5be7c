"""Diagnoses which limit bounds a pass, and suggests a first experiment.

time = floor + excess        floor: each part at the ceiling of what bounds it
                             excess: schedule, sampling and Python around the model, and kernels
                             that are slower than their ceiling

bandwidth bound   most of the floor is reading        the excess is small
compute bound     most of the floor is arithmetic     the excess is small
overhead bound    what surrounds the model takes longer than half of its floor, or half of all
kernel bound      the floor is less than half of the time, and the surroundings are innocent
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import log2

from baton.core.wording import count_of
from baton.platform.instruments.ceilings import Ceilings
from baton.platform.instruments.pass_cost import WorkByPart, floor_s
from baton.platform.models.model_shape import Part

NEAR_THE_LIMIT = 0.5
"""Share of the limit above which the limit explains the time."""
KV_PARTS = (Part.ATTENTION, Part.ROPE)
FLAT = 1.25
"""Throughput counts as flat if doubling the batch gains less than this factor."""


class Regime(StrEnum):
    BANDWIDTH = "bandwidth bound"
    COMPUTE = "compute bound"
    OVERHEAD = "overhead bound"
    KERNEL = "kernel bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """The times of one step."""

    step_s: float
    around_s: float
    """Seconds of the step outside the model: schedule, batch, sampling, Python."""
    part_s: Mapping[Part, float]
    """The time of each part of the model, where it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    regime: Regime
    share: float
    """The share of the limit: floor / time."""
    reason: str
    experiment: str


def diagnose(work: WorkByPart, ceilings: Ceilings, timed: Timed) -> Diagnosis:
    floor = floor_s(work, ceilings)
    share = floor / timed.step_s
    reading = sum(
        ceilings.floor_s(part, one.flops, one.num_bytes)
        for part, one in work.items()
        if one.intensity < ceilings.balance(part)
    )
    if timed.around_s > max(NEAR_THE_LIMIT * floor, 0.1 * timed.step_s) and share < 0.8:
        return _overhead_bound(timed, share)
    if share < NEAR_THE_LIMIT:
        return _kernel_bound(work, ceilings, timed, share)
    if reading >= floor / 2:
        return _bandwidth_bound(work, share)
    return Diagnosis(
        regime=Regime.COMPUTE,
        share=share,
        reason=f"{1 - reading / floor:.0%} of the floor is arithmetic, and {share:.0%} of the "
        "time is floor",
        experiment="lower the number of FLOPs: keep prefixes cached (--prefix-caching), then "
        "narrower products (--quantize, on a CPU), then more devices; a larger batch gives no "
        "more tokens a second",
    )


def _overhead_bound(timed: Timed, share: float) -> Diagnosis:
    return Diagnosis(
        regime=Regime.OVERHEAD,
        share=share,
        reason=f"{timed.around_s / timed.step_s:.0%} of the step is schedule, batch, sampling and "
        "Python around the model",
        experiment="run more requests at once, for this cost is shared by a step's tokens; "
        "`baton profile` shows which of them it is",
    )


def _kernel_bound(work: WorkByPart, ceilings: Ceilings, timed: Timed, share: float) -> Diagnosis:
    excess = {
        part: timed.part_s[part] - ceilings.floor_s(part, one.flops, one.num_bytes)
        for part, one in work.items()
        if part in timed.part_s
    }
    where, experiment = "", "see which part it is with `baton profile`"
    if excess:
        worst = max(excess, key=excess.__getitem__)
        one = work[worst]
        limit = ceilings.floor_s(worst, one.flops, one.num_bytes)
        where = (
            f"; the most is lost in {worst}, which takes {timed.part_s[worst] * 1e3:.2f} ms where "
            f"{limit * 1e3:.2f} ms would do"
        )
        experiment = (
            f"look at the kernel of {worst} at this shape, whether it is compiled "
            "(BATON_CPU_KERNELS, the log) and has the cores to itself"
        )
    return Diagnosis(
        regime=Regime.KERNEL,
        share=share,
        reason=f"the model takes {1 / share:.1f} times its floor, which neither bytes nor FLOPs "
        f"explain{where}",
        experiment=experiment,
    )


def _bandwidth_bound(work: WorkByPart, share: float) -> Diagnosis:
    num_bytes = sum(one.num_bytes for one in work.values())
    kv = sum(work[part].num_bytes for part in KV_PARTS if part in work) / num_bytes
    if kv > NEAR_THE_LIMIT:
        what, experiment = (
            f"{kv:.0%} of the bytes are KV",
            (
                "halve the KV (--kv-cache-dtype int8 or fp8); a larger batch reads as much more, "
                "so it gives hardly more tokens a second"
            ),
        )
    else:
        what, experiment = (
            f"{1 - kv:.0%} of the bytes are weights",
            (
                "run more requests at once, for they share the weights; then narrower weights "
                "(--quantize int8 or int4)"
            ),
        )
    return Diagnosis(
        regime=Regime.BANDWIDTH,
        share=share,
        reason=f"{what}, and {share:.0%} of the time is what reading them takes",
        experiment=experiment,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPoint:
    """Decoding at one batch size and context."""

    batch: int
    tokens_s: float
    work: WorkByPart
    diagnosis: Diagnosis


def flattening(points: Sequence[BatchPoint], ceilings: Ceilings) -> str:
    """The batch size at which throughput flattens, and why."""
    for sooner, later in pairwise(points):
        doublings = log2(later.batch / sooner.batch)
        if later.tokens_s / sooner.tokens_s < FLAT**doublings:
            requests = count_of(sooner.batch, "request")
            return f"flattens from {requests} on: {_why_flat(later, ceilings)}"
    if len(points) < 2:
        return "where it flattens takes more batches to find"
    return f"does not flatten up to {points[-1].batch} requests"


def _why_flat(point: BatchPoint, ceilings: Ceilings) -> str:
    work = point.work
    times = {part: ceilings.floor_s(part, one.flops, one.num_bytes) for part, one in work.items()}
    if point.diagnosis.regime in (Regime.OVERHEAD, Regime.KERNEL):
        return point.diagnosis.reason
    kv = sum(times[part] for part in KV_PARTS if part in times)
    if kv > sum(times.values()) / 2:
        return "each request brings its own KV to read, which is most of the floor by then"
    beyond = [part for part, one in work.items() if one.intensity >= ceilings.balance(part)]
    computing = sum(times[part] for part in beyond)
    if computing > sum(times.values()) / 2:
        ridge = ceilings.balance(max(beyond, key=times.__getitem__))
        return (
            f"products with {point.batch} rows have passed the ridge ({ridge:.0f} FLOPs a byte): "
            "they are bound by arithmetic, no longer by reading the weights"
        )
    whole = sum(times.values())
    return (
        f"with {point.batch} requests {kv / whole:.0%} of the floor is reading their KV and "
        f"{computing / whole:.0%} arithmetic, which grow with the batch; only reading the weights "
        "does not"
    )
