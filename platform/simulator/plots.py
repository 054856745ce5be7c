"""An experiment, drawn: a row of panels a trace, a panel a load, a line a policy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from baton.platform.simulator.experiment import LIMIT, Row


def draw(rows: Sequence[Row], file: Path) -> None:
    """Mean and 99th percentile of wait and prefill, in seconds; the limit's are dashed."""
    from matplotlib.figure import Figure

    panels = [
        [list(panel) for _, panel in groupby(of_trace, key=lambda row: row.load)]
        for _, of_trace in groupby(rows, key=lambda row: row.trace)
    ]
    num_policies = len({row.policy for row in rows})
    width, height = 5.5 * len(panels[0]), (1.2 + 0.3 * num_policies) * len(panels)
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(len(panels), len(panels[0]), squeeze=False)
    for axes_of_trace, of_trace in zip(grid, panels, strict=True):
        for axes, panel in zip(axes_of_trace, of_trace, strict=True):
            _draw_panel(axes, panel)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(file, dpi=110, format="png")


def _draw_panel(axes: Any, rows: Sequence[Row]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    by_policy = {
        policy: [row.figures for row in of_policy]
        for policy, of_policy in groupby(rows, key=lambda row: row.policy)
    }
    limit = by_policy.pop(LIMIT, None)
    names = list(reversed(by_policy))  # the first on top
    means = [fmean(one.mean_s for one in by_policy[name]) for name in names]
    tails = [fmean(one.p99_s for one in by_policy[name]) for name in names]
    axes.hlines(names, means, tails, color="C0", alpha=0.35)
    axes.plot(means, names, "o", color="C0", label="mean")
    axes.plot(tails, names, "D", color="C1", label="p99")
    if limit is not None:
        axes.axvline(fmean(one.mean_s for one in limit), ls="--", color="C0", label="limit of mean")
        axes.axvline(fmean(one.p99_s for one in limit), ls="--", color="C1", label="limit of p99")
    load = (
        f"{rows[0].tokens_per_s:,.0f} tokens/s" if rows[0].load is None else f"{rows[0].load:.0%}"
    )
    axes.set_title(f"{rows[0].trace}, {load}", fontsize=9)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("wait + prefill, s")
    axes.tick_params(labelsize=8)
    axes.grid(visible=True, axis="x", alpha=0.2)
