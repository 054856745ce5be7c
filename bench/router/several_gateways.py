"""What several gateways cost in TTFT and hit rate, and what happens when one dies or joins.

    one         a single gateway
    two         each request goes to one of two, which learn of each other's load from replicas
    one dies    one of two dies half-way: its clients send their requests again to the other one,
                and replicas finish the lost requests for nobody
    one joins   a second one joins half-way, and receives each replica's cache

A fleet as in `baton simulate --decode`, on the same requests and arrivals. *Hit there* is the hit
rate of prompts that the new gateway routes in its first `--first` seconds; *before* is that of the
same prompts with a single gateway from beginning to end.

    python -m bench.router.several_gateways TRACE... --device FILE.csv:MODEL,HARDWARE,RANKS
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from baton.platform.cli.runs.simulate import read
from baton.platform.cli.runs.simulate_fleet import devices_from
from baton.platform.simulator.fleet.experiment import at_load
from baton.platform.simulator.fleet.outcome import FleetOutcome, Served
from baton.platform.simulator.fleet.play import Fleet
from baton.platform.simulator.fleet.setup import FleetSetup
from baton.platform.traces.ticks import spread
from baton.platform.traces.trace import Trace
from baton.router.defaults import DEFAULT_POLICY
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table

SLO_S = 10.0
HEAD = ("", "mean, s", "p99, s", "hit", "asked again", "hit there / before", "share")


def cases(setup: FleetSetup, half_s: float) -> Mapping[str, FleetSetup]:
    return {
        "one": setup,
        "two": replace(setup, num_gateways=2),
        "one dies": replace(setup, num_gateways=2, gateway_dies_s=half_s),
        "one joins": replace(setup, gateway_joins_s=half_s),
    }


def rows(
    trace: Trace, setup: FleetSetup, load: float, num_seeds: int, first_s: float
) -> Iterator[tuple[str | float, ...]]:
    played: dict[str, list[FleetOutcome]] = {}
    from_s: list[float] = []
    for seed in range(num_seeds):
        arriving = at_load(spread(trace, seed=seed), load, setup)
        from_s.append(_half_s(arriving))
        for name, case in cases(setup, from_s[-1]).items():
            outcome = Fleet(arriving, case, DEFAULT_POLICY, seed).play()
            played.setdefault(name, []).append(outcome)
    for name, outcomes in played.items():
        figures = [outcome.figures(SLO_S) for outcome in outcomes]
        yield (
            f"{trace.name}: {name}",
            fmean(one.mean_s for one in figures),
            fmean(one.p99_s for one in figures),
            fmean(one.hit for one in figures),
            sum(outcome.num_asked_again for outcome in outcomes),
            *(_hits(played["one"], outcomes, from_s, first_s) if name == "one joins" else ("", "")),
        )


def _half_s(trace: Trace) -> float:
    if trace.is_closed_loop:
        return max(sum(turn.gap_s for turn in turns) for turns in trace.sessions().values()) / 2
    arrivals = [request.arrival_s or 0.0 for request in trace.requests]
    return (min(arrivals) + max(arrivals)) / 2


def _hits(
    alone: list[FleetOutcome], joined: list[FleetOutcome], from_s: list[float], first_s: float
) -> tuple[str, float]:
    """`hit there / before`, the hit rates of the same prompts, and their ratio."""
    there: list[Served] = []
    before: list[Served] = []
    for one, two, begins_s in zip(alone, joined, from_s, strict=True):
        first = {
            served.place: served
            for served in two.served
            if served.gateway and served.arrived_s < begins_s + first_s
        }
        there += first.values()
        before += [served for served in one.served if served.place in first]
    hit, hit_before = _hit(there), _hit(before)
    return f"{hit:.3f} / {hit_before:.3f}", hit / hit_before if hit_before else 1.0


def _hit(served: list[Served]) -> float:
    return sum(one.num_cached for one in served) / max(sum(one.num_tokens for one in served), 1)


def small(trace: Trace, num_requests: int, max_tokens: int, answer: int) -> Trace:
    """The first requests of a trace, without the longest, and with short answers, since only TTFT
    is measured."""
    kept = [request for request in trace.requests if request.input_length <= max_tokens]
    return replace(
        trace,
        requests=tuple(
            replace(request, output_length=min(request.output_length, answer))
            for request in kept[:num_requests]
        ),
    )


def fleet_parser(description: str | None, num_requests: int) -> argparse.ArgumentParser:
    """The options of benchmarks that simulate the first requests of traces on a fleet."""
    parser = benchmark_parser(description)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--device", required=True, help="as of baton simulate")
    parser.add_argument("--prefill", type=int, default=4)
    parser.add_argument("--decode", type=int, default=2)
    parser.add_argument("--load", type=float, default=0.85)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=num_requests)
    parser.add_argument("--max-tokens", type=int, default=30_000)
    parser.add_argument("--answer", type=int, default=8)
    return parser


def main() -> None:
    parser = fleet_parser(__doc__, num_requests=2000)
    parser.add_argument("--first", type=float, default=120.0)
    asked = parser.parse_args()
    devices = devices_from(asked.device)
    setup = FleetSetup(
        num_prefill=asked.prefill,
        num_decode=asked.decode,
        prefill=devices.prefill,
        decode=devices.decode,
        links=devices.links,
    )
    found = [
        row
        for file in asked.traces
        for row in rows(
            small(read(file), asked.requests, asked.max_tokens, asked.answer),
            setup,
            asked.load,
            asked.seeds,
            asked.first,
        )
    ]
    print(surroundings())
    print(table(HEAD, found))


if __name__ == "__main__":
    main()
