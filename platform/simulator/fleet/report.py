"""Prints the results of an experiment on a fleet: a table for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from statistics import fmean
from typing import Any

import msgspec
from rich.console import Console

from baton.core.wording import count_of
from baton.platform.simulator.experiment import Row
from baton.platform.simulator.fleet.experiment import FleetExperiment
from baton.platform.simulator.fleet.figures import FleetFigures
from baton.platform.simulator.report import BEST, Column, flat, goodput_of, show_tables

FLEET_COLUMNS = (
    Column("TTFT ms", "p50_s", ".0f", unit=1e-3),
    Column("p99 ms", "p99_s", ".0f", unit=1e-3),
    Column("ITL ms", "itl_p50_s", ".1f", unit=1e-3),
    Column("p99 ms", "itl_p99_s", ".1f", unit=1e-3),
    Column("hit", "hit", ".3f", "most"),
    Column("imbalance", "imbalance", ".2f"),
    Column("goodput", "goodput", ".3f", "most"),
    Column("rejected", "rejected", ".0f"),
)


def show_fleet(console: Console, experiment: FleetExperiment, rows: Sequence[Row]) -> None:
    """A table for each trace and load; a policy's line is the mean over its seeds."""
    setup = experiment.setup
    show_tables(console, rows, FLEET_COLUMNS)
    makes = f"{setup.num_prefill} prefill and " if setup.num_prefill else ""
    without = f", without {', '.join(sorted(setup.without))}" if setup.without else ""
    console.print(
        f"{makes}{count_of(setup.num_decode, 'decode replica')}, "
        f"{count_of(setup.num_gateways, 'gateway')}{without}; mean of "
        f"{count_of(experiment.num_seeds, 'seed')}; median and p99, goodput within "
        f"{setup.slo_ttft_s:g} s; {BEST} best in its column"
    )
    for one in setup.slo_classes:
        console.print(goodput_of(one.slo, rows))
    for tenant in setup.tenants:
        console.print(_tenant_line(tenant.name, rows))


def _tenant_line(name: str, rows: Sequence[Row]) -> str:
    """The results of one tenant, by load and policy."""
    told = []
    for (_, load, policy), found in groupby(
        rows, key=lambda row: (row.trace, row.load, row.policy)
    ):
        its = [
            row.figures.tenants[name]
            for row in found
            if isinstance(row.figures, FleetFigures) and name in row.figures.tenants
        ]
        if its:
            told.append(
                f"{policy} {'' if load is None else f'at {load:.0%} '}"
                f"{fmean(one.mean_s for one in its) * 1e3:.0f} ms, p99 "
                f"{fmean(one.p99_s for one in its) * 1e3:.0f}, goodput "
                f"{fmean(one.goodput for one in its):.3f}, "
                f"{fmean(one.rejected for one in its):.0f} rejected"
            )
    return f"{name}: {'; '.join(told)}"


def fleet_tree(experiment: FleetExperiment, rows: Sequence[Row]) -> dict[str, Any]:
    """The set-up, and a row a policy and seed."""
    setup = msgspec.to_builtins({**asdict(experiment.setup), "num_seeds": experiment.num_seeds})
    setup["without"] = sorted(setup["without"])
    return {"setup": setup, "rows": [flat(row) for row in rows]}
