"""Sums of steps' times, FLOPs and bytes, for Prometheus.

    flops    2 a weight and token, 4 a head's width and pair of a token and one before it
    bytes    the weights once a step (of experts, those that tokens choose, if evenly), and the KV
             that decoding requests read and all tokens write

This is the least that a perfect kernel needs, so its rate is a share of the device's limit. Layers
with a window are counted as if they saw everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from baton.core.metrics import Family, Histogram, Sample
from baton.core.step_times import StepWork
from baton.engine.request.step_report import StepReport

STEP_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 5.0)


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """The weights of the experts of all layers that have so many."""

    num_experts: int
    num_choices: int
    num_bytes: int
    """Bytes of the experts that this rank has."""
    num_places: int = 1
    """Data places whose tokens choose among them."""

    def bytes_read(self, num_tokens: int) -> float:
        missed = 1 - self.num_choices / self.num_experts
        return self.num_bytes * (1 - missed ** (num_tokens * self.num_places))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """The cost of a step by its content; 0 for an unknown model."""

    token_flops: float = 0.0
    request_flops: float = 0.0
    """FLOPs of the head, which answers for one token of each request."""
    pair_flops: float = 0.0
    weight_bytes: float = 0.0
    """Bytes of the weights that every step reads."""
    experts: tuple[ExpertWeights, ...] = ()
    token_kv_bytes: float = 0.0

    def flops(self, work: StepWork) -> float:
        return (
            work.num_tokens * self.token_flops
            + work.num_requests * self.request_flops
            + (work.num_pairs + work.num_context) * self.pair_flops
        )

    def bytes_moved(self, work: StepWork) -> float:
        experts = sum(some.bytes_read(work.num_tokens) for some in self.experts)
        kv = (work.num_context + work.num_tokens) * self.token_kv_bytes
        return self.weight_bytes + experts + kv


class StepMeter:
    """`ran` belongs to the engine's thread, the rest is for any."""

    def __init__(self) -> None:
        self.cost = StepCost()
        """Set by the owner, before the first step."""
        self._seconds = Histogram(
            "baton_replica_step_seconds",
            "Steps of the engine, with a prompt in them or without",
            STEP_BOUNDS_S,
            ("phase",),
        )
        self._flops = 0.0
        self._bytes = 0.0

    def ran(self, report: StepReport) -> None:
        work = report.work
        if not work.num_tokens:
            return
        phase = "prompt" if work.num_pairs else "decode"
        self._seconds.observe(report.seconds, phase)
        self._flops += self.cost.flops(work)
        self._bytes += self.cost.bytes_moved(work)

    def families(self) -> Iterator[Family]:
        yield self._seconds.family()
        if self.cost == StepCost():
            return
        yield Family(
            "baton_replica_model_flops_total",
            "counter",
            "Floating-point operations that the model's passes need at least",
            [Sample({}, self._flops)],
        )
        yield Family(
            "baton_replica_model_bytes_total",
            "counter",
            "Bytes of weights and KV that the model's passes move at least",
            [Sample({}, self._bytes)],
        )
