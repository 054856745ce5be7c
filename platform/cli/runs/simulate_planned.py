"""`baton simulate --planner`: simulates a trace with planned and with fixed pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from textwrap import fill
from typing import Any

import msgspec
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from baton.core.errors import InvalidConfig
from baton.platform.cli.runs.simulate import Job, Played, policies_of, read, run
from baton.platform.cli.runs.simulate_fleet import FleetOptions
from baton.platform.cli.terminal.progress import counting_bar
from baton.platform.planner.config import PlannerConfig
from baton.platform.planner.plan import Decision
from baton.platform.simulator.fleet.experiment import at_load
from baton.platform.simulator.fleet.planned import (
    NUM_PLAYED,
    PlannedFigures,
    play_planned,
)
from baton.platform.simulator.fleet.setup import FleetSetup
from baton.router.defaults import DEFAULT_POLICY

MINUTE_S = 60.0
HOUR_S = 3600.0
NAME_WIDTH = 10
"""Width of names; longer ones wrap, so that a table fits into 80 columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOptions:
    fleet: FleetOptions
    """The pools to begin with."""
    rules: PlannerConfig
    flip_s: float


def run_planned(job: Job, options: PlannedOptions) -> None:
    """Raises InvalidConfig that names the option, Unavailable, or BatonError."""
    if job.plot_file is not None:
        raise InvalidConfig("--plot: there is no plot of a run with --planner; leave it out")
    run(job, partial(_play, options))


def _play(options: PlannedOptions, job: Job, console: Console) -> Played:
    devices = options.fleet.devices()
    has_prefill = options.rules.max_prefill > 0
    setup = FleetSetup(
        num_prefill=max(options.fleet.num_prefill, 1) if has_prefill else 0,
        num_decode=options.fleet.num_decode,
        num_gateways=options.fleet.num_gateways,
        prefill=devices.prefill,
        decode=devices.decode,
        links=devices.links,
        without=options.fleet.without,
        max_waiting=job.setup.max_waiting,
        slo_ttft_s=options.rules.ttft_s,
        rules=options.rules,
        cold_start_s=options.rules.cold_start_s,
        flip_s=options.flip_s,
    )
    policies = policies_of(job.policies) if job.policies != ["all"] else (DEFAULT_POLICY,)
    rows: list[dict[str, Any]] = []
    for file in job.traces:
        trace = read(file)
        for load in job.loads or (None,):
            played = trace if load is None else at_load(trace, load, setup)
            for seed in range(job.num_seeds):
                title = f"{trace.name}, seed {seed}"
                found = []
                with counting_bar("simulating", NUM_PLAYED) as advance:
                    for one in play_planned(played, setup, policies[0], seed):
                        found.append(one)
                        advance(f"{title}, {one.name}")
                _show(console, title, found)
                rows += [_row(trace.name, seed, one) for one in found]
    tree = msgspec.to_builtins({"rules": options.rules, "rows": rows})
    return [], tree


def _row(trace: str, seed: int, figures: PlannedFigures) -> dict[str, Any]:
    plain = asdict(replace(figures, decisions=()))
    decisions = [asdict(one) for one in changes(figures.decisions)]
    return {**plain, "trace": trace, "seed": seed, "decisions": decisions}


def changes(decisions: Sequence[Decision]) -> list[Decision]:
    """Decisions that differ from the one before."""
    found: list[Decision] = []
    for one in decisions:
        if not found or (one.prefill, one.decode) != (found[-1].prefill, found[-1].decode):
            found.append(one)
    return found


def _show(console: Console, title: str, found: Sequence[PlannedFigures]) -> None:
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=0, pad_edge=False)
    table.add_column("pools", no_wrap=True)
    for column in ("kept", "TTFT", "ITL", "rejected", "prefill", "decode", "replica\nh",
                   "reversals", "flips"):  # fmt: skip
        table.add_column(column, justify="right", no_wrap=True)
    for one in found:
        table.add_row(
            fill(one.name, NAME_WIDTH),
            f"{one.kept:.1%}",
            f"{one.ttft_kept:.1%}",
            f"{one.itl_kept:.1%}",
            str(one.rejected),
            f"{one.prefill:.2f}",
            f"{one.decode:.2f}",
            f"{one.replica_s / HOUR_S:.2f}",
            str(one.reversals),
            str(one.num_flipped),
        )
    console.print(table)
    for decision in changes(found[0].decisions):
        minute = decision.at_s / MINUTE_S
        console.print(f"{minute:6.2f} min  {decision.prefill} prefill, {decision.decode} decode")
        for reason in decision.reasons:
            console.print(f"            {reason}")
