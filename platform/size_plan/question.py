"""The input of the sizing: a model on accelerators, a load, and promised latencies."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, pvariance

from baton.core.errors import InvalidConfig
from baton.engine.models.config.model_config import ModelConfig
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.machine.accelerators import Accelerator
from baton.platform.planner.capacity import Load, Promise
from baton.platform.size_plan.efficiency import ON_CPU, ON_GPU, Efficiency
from baton.platform.traces.trace import Trace

FRONT_S = 0.005
"""Seconds from a client to a replica and back: HTTP, a template, tokens, messages. Assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    config: DeploymentConfig
    """Settings of the dtype, the cache and what else does not follow from the load."""
    model: ModelConfig
    accelerator: Accelerator
    precision: str
    stored_bits: int | None = None
    """Bits of a weight, where the model's files have them quantised."""
    load: Load
    promise: Promise
    max_ranks: int = 8
    """Most ranks of one replica."""
    price: float | None = None
    """Price of an accelerator for an hour, in whatever money."""
    is_disaggregated: bool | None = None
    """None: whatever takes fewer accelerators."""

    @property
    def efficiencies(self) -> tuple[Efficiency, Efficiency, Efficiency]:
        """Low, expected, high."""
        return ON_CPU if self.accelerator.is_cpu else ON_GPU


def load_of(trace: Trace, rate: float | None) -> Load:
    """The load of all requests of a trace; a closed loop has no rate of its own. Raises
    InvalidConfig."""
    lengths = [request.input_length for request in trace.requests]
    mean = fmean(lengths)
    if rate is None:
        arrivals = [request.arrival_s for request in trace.requests]
        known = [one for one in arrivals if one is not None]
        lasts_s = max(known) - min(known) if len(known) == len(arrivals) else 0.0
        if lasts_s <= 0:
            raise InvalidConfig(f"--trace {trace.name}: its arrivals give no rate; give --rate")
        rate = len(known) / lasts_s
    return Load(
        rate=rate,
        prompt_tokens=mean,
        prompt_cv2=pvariance(lengths) / mean**2,
        output_tokens=fmean(request.output_length for request in trace.requests),
    )
