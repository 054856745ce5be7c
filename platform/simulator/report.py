"""Prints the results of an experiment: a table for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from statistics import fmean
from textwrap import fill
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from baton.core.wording import count_of
from baton.platform.simulator.experiment import LIMIT, Experiment, Row
from baton.router.fairness.slo import Slo

BEST = "*"


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    figure: str
    format: str
    best: str = "least"
    """Or most."""
    unit: float = 1.0


COLUMNS = (
    Column("mean s", "mean_s", ".2f"),
    Column("p99 s", "p99_s", ".2f"),
    Column("hit", "hit", ".3f", "most"),
    Column("imbalance", "imbalance", ".2f"),
    Column("goodput", "goodput", ".3f", "most"),
    Column("rejected", "rejected", ".0f"),
)


def show(console: Console, experiment: Experiment, rows: Sequence[Row]) -> None:
    """A table for each trace and load; a policy's line is the mean over its seeds."""
    setup = experiment.setup
    show_tables(console, rows, COLUMNS)
    console.print(
        f"{count_of(setup.num_replicas, 'replica')} with {setup.num_blocks:,} blocks of "
        f"{count_of(setup.block_size, 'token')}; mean of {count_of(experiment.num_seeds, 'seed')}; "
        f"seconds of wait and prefill, goodput within {setup.slo_ttft_s:g} s",
    )
    for one in setup.slo_classes:
        console.print(goodput_of(one.slo, rows))
    console.print(f"{BEST} best in its column; {LIMIT}: no wait, one endless cache")


def goodput_of(slo: Slo, rows: Sequence[Row]) -> str:
    """The share in time of one class, by load and policy."""
    told = []
    for (_, load, policy), found in groupby(
        rows, key=lambda row: (row.trace, row.load, row.policy)
    ):
        shares = [row.figures.goodput_by_class.get(slo.name, 1.0) for row in found]
        told.append(f"{policy} {'' if load is None else f'at {load:.0%} '}{fmean(shares):.3f}")
    return f"goodput of {slo.name}, within {slo.ttft_s:g} s: {', '.join(told)}"


POLICY_WIDTH = 13
"""Width of policy names; longer ones continue in a second line, so that a table fits into 80
columns."""


def show_tables(console: Console, rows: Sequence[Row], columns: Sequence[Column]) -> None:
    for (trace, load), found in groupby(rows, key=lambda row: (row.trace, row.load)):
        group = list(found)
        rate = f"{group[0].tokens_per_s:,.0f} tokens/s a replica"
        offered = rate if load is None else f"offered {load:.0%} of {rate}"
        console.print(
            f"{trace}: {count_of(group[0].figures.num_requests, 'request', form=',')}, {offered}"
        )
        console.print(_table(group, columns))


def _table(rows: Sequence[Row], columns: Sequence[Column]) -> Table:
    table = Table(box=SIMPLE, padding=0, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for column in columns:
        table.add_column(column.title.replace(" ", "\n"), justify="right", no_wrap=True)
    cells_of = {
        policy: _cells(list(found), columns)
        for policy, found in groupby(rows, key=lambda row: row.policy)
    }
    limit = cells_of.pop(LIMIT, None)
    marked = [_marked(texts, column) for texts, column in zip(
        zip(*cells_of.values(), strict=True), columns, strict=True
    )]  # fmt: skip
    for policy, cells in zip(cells_of, zip(*marked, strict=True), strict=True):
        table.add_row(fill(policy, POLICY_WIDTH), *cells)
    if limit is not None:
        table.add_section()
        table.add_row(LIMIT, *(f"{text} " for text in limit), style="dim")
    return table


def _cells(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    return [
        format(fmean(getattr(row.figures, one.figure) for row in rows) / one.unit, one.format)
        for one in columns
    ]


def _marked(texts: Sequence[str], column: Column) -> list[Text]:
    """A column whose cells are all alike has no best."""
    best = (min if column.best == "least" else max)(texts, key=float)
    is_told = len(set(texts)) > 1
    return [
        Text(f"{text}{BEST}", style="bold green") if is_told and text == best else Text(f"{text} ")
        for text in texts
    ]


def tree(experiment: Experiment, rows: Sequence[Row]) -> dict[str, Any]:
    """The set-up, a row a policy and seed, and a limit a seed in rows of its own."""
    setup = asdict(experiment.setup)
    del setup["tokens_per_s"]  # stands in each row
    flattened = [flat(row) for row in rows]
    return {
        "setup": {**setup, "num_seeds": experiment.num_seeds},
        "rows": [row for row in flattened if row["policy"] != LIMIT],
        "limits": [row for row in flattened if row["policy"] == LIMIT],
    }


def flat(row: Row) -> dict[str, Any]:
    found = asdict(row)
    figures = found.pop("figures")
    return {**found, **figures}
