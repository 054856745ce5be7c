"""Tables of simulations are read on 80 columns."""

from __future__ import annotations

from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from baton.platform.cli.runs import simulate_planned
from baton.platform.simulator import report
from baton.platform.simulator.fleet.report import FLEET_COLUMNS
from baton.router.policies.by_name import ABLATIONS, POLICIES

FIGURES = {
    "mean_s": 123.45,
    "p50_s": 12.345,
    "p99_s": 123.456,
    "itl_p50_s": 0.0123,
    "itl_p99_s": 1.2345,
    "hit": 0.123,
    "imbalance": 1.23,
    "goodput": 0.999,
    "rejected": 12345,
    "num_requests": 100_000,
}
PLANNED = {
    "name": "twice the cost",
    "kept": 1.0,
    "ttft_kept": 1.0,
    "itl_kept": 1.0,
    "rejected": 1234,
    "prefill": 12.34,
    "decode": 12.34,
    "replica_s": 3600 * 123.45,
    "reversals": 12,
    "num_flipped": 12,
    "decisions": (),
}


def narrow() -> Console:
    return Console(file=StringIO(), width=80)


def text_of(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("columns", [report.COLUMNS, FLEET_COLUMNS])
def test_every_policy_and_its_figures_are_read_whole(columns: Any) -> None:
    figures = SimpleNamespace(**FIGURES)
    names = [*POLICIES, *ABLATIONS]
    rows: Any = [
        SimpleNamespace(policy=name, trace="t", load=None, tokens_per_s=1e4, figures=figures)
        for name in names
    ]
    console = narrow()

    report.show_tables(console, rows, columns)

    text = text_of(console)
    assert "…" not in text and text.count("12345") >= len(names)
    assert all(len(line) <= 80 for line in text.splitlines())
    parts = {part for name in names for part in name.split("-")}
    assert parts <= set(text.replace("-", " ").split())


def test_pools_that_are_planned_have_their_names_and_all_columns() -> None:
    one: Any = SimpleNamespace(**PLANNED)
    console = narrow()

    simulate_planned._show(console, "a trace", [one])

    text = text_of(console)
    assert "…" not in text and "twice the" in text and "123.45" in text and "flips" in text
