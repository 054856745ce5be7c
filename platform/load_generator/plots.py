"""A run as one picture: latencies over time and as distributions, and what was in flight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from baton.platform.load_generator.outcome import Ending, Outcome
from baton.platform.load_generator.slo import Slo
from baton.platform.load_generator.summary import Summary

NUM_BINS = 60


def draw(outcomes: Sequence[Outcome], summary: Summary, slo: Slo, title: str, file: Path) -> None:
    from matplotlib.figure import Figure

    complete = [outcome for outcome in outcomes if outcome.is_complete]
    figure = Figure(figsize=(14, 8), layout="constrained")
    (over_time, spread), (flight, tokens) = figure.subplots(2, 2)
    figure.suptitle(title)
    _draw_over_time(over_time, outcomes, complete, slo)
    _draw_distributions(spread, complete)
    _draw_in_flight(flight, summary)
    _draw_tokens(tokens, complete)
    figure.savefig(file, dpi=110, format="png")


def _draw_over_time(
    axes: Any, outcomes: Sequence[Outcome], complete: Sequence[Outcome], slo: Slo
) -> None:
    xs = [outcome.sent_s for outcome in complete]
    axes.semilogy(xs, [outcome.ttft_s for outcome in complete], ".", label="TTFT")
    axes.semilogy(xs, [outcome.e2e_s for outcome in complete], ".", label="E2E", alpha=0.5)
    missed = [
        (outcome.sent_s, outcome.ended_s - outcome.sent_s)
        for outcome in outcomes
        if not outcome.is_complete and outcome.ending is not Ending.INTERRUPTED
    ]
    if missed:
        axes.semilogy(*zip(*missed, strict=True), "x", color="red", label="missed")
    if slo.ttft_s is not None:
        axes.axhline(slo.ttft_s, linestyle="--", color="grey", label="SLO of TTFT")
    axes.set(xlabel="sent at, s", ylabel="s", title="each request")
    axes.grid(visible=True, alpha=0.2)
    if outcomes:
        axes.legend(fontsize=8)


def _draw_distributions(axes: Any, complete: Sequence[Outcome]) -> None:
    values: tuple[tuple[str, Iterable[float]], ...] = (
        ("ITL", (gap for outcome in complete for gap in outcome.gaps_s)),
        ("TTFT", (outcome.ttft_s for outcome in complete)),
        ("E2E", (outcome.e2e_s for outcome in complete)),
    )
    for name, of_name in values:
        ordered = np.sort(np.fromiter(of_name, dtype=np.float64))
        if ordered.size:
            shares = np.arange(1, ordered.size + 1) / ordered.size
            axes.semilogx(np.maximum(ordered, 1e-5), shares * 100, label=name)
    axes.set(xlabel="s", ylabel="% of all are at most", title="latencies")
    axes.grid(visible=True, which="both", alpha=0.2)
    if complete:
        axes.legend(fontsize=8)


def _draw_in_flight(axes: Any, summary: Summary) -> None:
    axes.step(
        [at_s for at_s, _ in summary.concurrency],
        [num for _, num in summary.concurrency],
        where="post",
    )
    axes.set(xlabel="s", ylabel="requests", title="in flight")
    axes.grid(visible=True, alpha=0.2)


def _draw_tokens(axes: Any, complete: Sequence[Outcome]) -> None:
    times = [time for outcome in complete for time in outcome.token_s]
    if times:
        counts, edges = np.histogram(times, bins=NUM_BINS)
        axes.stairs(counts / np.diff(edges), edges)
    axes.set(xlabel="s", ylabel="events of output a second", title="throughput")
    axes.grid(visible=True, alpha=0.2)
