"""Policies against each other on one fleet: each on each trace, at each load, with each seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from baton.platform.simulator.experiment import Row
from baton.platform.simulator.fleet.fleet_view import pull_rates
from baton.platform.simulator.fleet.play import Fleet
from baton.platform.simulator.fleet.setup import FleetSetup
from baton.platform.traces.ticks import spread
from baton.platform.traces.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCase:
    trace: Trace
    load: float | None
    """Share of the prefilling replicas' time that prompts would take without a cache. None: as
    recorded."""
    policy: str
    seed: int
    setup: FleetSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetExperiment:
    traces: Sequence[Trace]
    policies: Sequence[str]
    loads: Sequence[float]
    """None: arrivals and gaps are as recorded."""
    num_seeds: int
    setup: FleetSetup

    def cases(self) -> list[FleetCase]:
        return [
            FleetCase(trace=trace, load=load, policy=name, seed=seed, setup=self.setup)
            for trace, load, name in product(self.traces, self.loads or (None,), self.policies)
            for seed in range(self.num_seeds)
        ]


def play_fleet(case: FleetCase) -> Row:
    trace, setup = spread(case.trace, seed=case.seed), case.setup
    if case.load is not None:
        trace = at_load(trace, case.load, setup)
    outcome = Fleet(trace, setup, case.policy, case.seed).play()
    return Row(
        trace=trace.name,
        policy=case.policy,
        load=case.load,
        seed=case.seed,
        tokens_per_s=pull_rates(setup).tokens_per_s,
        figures=outcome.figures(setup.slo_ttft_s),
    )


def at_load(trace: Trace, load: float, setup: FleetSetup) -> Trace:
    """The trace with its arrivals stretched so that computing every prompt whole takes the share
    `load` of the prefilling replicas' time."""
    device = setup.prefill if setup.num_prefill else setup.decode
    chunk = device.scheduler.max_chunk
    work_s = sum(
        device.step_times.prefill_s(request.input_length, 0, chunk) for request in trace.requests
    )
    wanted_s = work_s / (load * (setup.num_prefill or setup.num_decode))
    if trace.is_closed_loop:
        lasts_s = max(sum(turn.gap_s for turn in turns) for turns in trace.sessions().values())
        scale = wanted_s / max(lasts_s, 1.0)
        turns = tuple(replace(turn, gap_s=turn.gap_s * scale) for turn in trace.requests)
        return replace(trace, requests=turns)
    arrivals = [request.arrival_s or 0.0 for request in trace.requests]
    scale = wanted_s / max(max(arrivals) - min(arrivals), 1.0)
    return trace.arriving_at([arrival * scale for arrival in arrivals])
