"""Ablation of the gateway's router: what each part contributes, turned off in turn.

    all             everything on
    late binding    off: prompts are sent at once, and wait at their replica
    step model      off: one prefill rate for all replicas instead of their own step times
    sessions        off: conversations are recognised only by their prefixes
    gossip          off: replicas do not report what other gateways sent them
    pulls           off: prefixes are not fetched from other replicas' caches

A fleet as in `baton simulate --decode`, with two gateways, on the same requests and arrivals: the
first of each trace, without the longest, and with short answers. Times are TTFT in seconds.

    python -m bench.router.ablation TRACE... --device FILE.csv:MODEL,HARDWARE,RANKS
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import fmean

from baton.platform.cli.runs.simulate import read
from baton.platform.cli.runs.simulate_fleet import devices_from
from baton.platform.simulator.fleet.experiment import FleetCase, play_fleet
from baton.platform.simulator.fleet.setup import FleetSetup, Part
from baton.platform.traces.trace import Trace
from baton.router.defaults import DEFAULT_POLICY
from bench.harness.report import surroundings, table
from bench.router.several_gateways import SLO_S, fleet_parser, small

HEAD = ("without", "mean, s", "p99, s", "hit", "imbalance", "goodput", "mean / all")


def cases(setup: FleetSetup) -> Mapping[str, tuple[str, FleetSetup]]:
    """The policy and the fleet setup of each case."""
    return {
        "all": (DEFAULT_POLICY, setup),
        "late binding": ("cost-at-once", setup),
        **{
            part.replace("-", " "): (DEFAULT_POLICY, replace(setup, without=frozenset({part})))
            for part in (Part.STEP_MODEL, Part.SESSIONS, Part.GOSSIP, Part.PULLS)
        },
    }


def rows(
    trace: Trace, setup: FleetSetup, load: float, num_seeds: int
) -> Iterator[tuple[str | float, ...]]:
    of_all = 0.0
    for name, (policy, fleet) in cases(setup).items():
        played = [
            play_fleet(
                FleetCase(trace=trace, load=load, policy=policy, seed=seed, setup=fleet)
            ).figures
            for seed in range(num_seeds)
        ]
        means = [
            fmean(getattr(one, figure) for one in played)
            for figure in ("mean_s", "p99_s", "hit", "imbalance", "goodput")
        ]
        of_all = of_all or means[0]
        yield (f"{trace.name}: {name}", *means, means[0] / of_all)


def main() -> None:
    parser = fleet_parser(__doc__, num_requests=700)
    parser.add_argument("--gateways", type=int, default=2)
    asked = parser.parse_args()
    devices = devices_from(asked.device)
    setup = FleetSetup(
        num_prefill=asked.prefill,
        num_decode=asked.decode,
        num_gateways=asked.gateways,
        prefill=devices.prefill,
        decode=devices.decode,
        links=devices.links,
        slo_ttft_s=SLO_S,
    )
    found = [
        row
        for file in asked.traces
        for row in rows(
            small(read(file), asked.requests, asked.max_tokens, asked.answer),
            setup,
            asked.load,
            asked.seeds,
        )
    ]
    print(surroundings())
    print(table(HEAD, found))


if __name__ == "__main__":
    main()
