"""A run as tables for a terminal, as one JSON document, and as a line a request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from baton.core.wording import count_of
from baton.platform.load_generator.outcome import Ending, Outcome
from baton.platform.load_generator.slo import Slo
from baton.platform.load_generator.summary import (
    NUM_SAMPLES,
    PERCENTS,
    Distribution,
    Summary,
)

LATENCIES = (
    ("TTFT", "ttft"),
    ("ITL", "itl"),
    ("TPOT", "tpot"),
    ("E2E", "e2e"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The settings of the run."""

    url: str
    endpoint: str
    model: str
    load: str
    sizing: str
    seed: int
    slo: Slo
    notes: Sequence[str]
    """Notes on fields that the server does not accept or report."""


def show(
    console: Console, setting: Setting, summary: Summary, doubts: Sequence[str], why: Iterable[str]
) -> None:
    """`why`: messages of failed requests."""
    for line in (
        f"{setting.model} at {setting.url}, {setting.endpoint}: {setting.load}",
        f"prompts {setting.sizing}; seed {setting.seed}",
    ):
        console.print(line, soft_wrap=True, markup=False)
    console.print(_latencies(summary))
    for name, value in _facts(setting, summary):
        console.print(f"{name:<12}{value}", soft_wrap=True, markup=False)
    for name, sentences in (("misses", why), ("note", setting.notes), ("DOUBT", doubts)):
        for sentence in sentences:
            console.print(f"{name:<12}{sentence}", soft_wrap=True, markup=False)


def _latencies(summary: Summary) -> Table:
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("ms", no_wrap=True)
    for name in ("mean", *(f"p{percent}" for percent in PERCENTS), "max"):
        table.add_column(name, justify="right", no_wrap=True)
    for label, name in LATENCIES:
        found: Distribution | None = getattr(summary, name)
        if found is not None:
            cells = (found.mean, *found.by_percent.values(), found.max)
            table.add_row(label, *(_ms(cell) for cell in cells))
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.{1 if seconds < 1.0 else 0}f}"


def _facts(setting: Setting, summary: Summary) -> Iterator[tuple[str, str]]:
    counts = ", ".join(f"{num} {ending}" for ending, num in _sorted(summary.endings))
    retries = (
        f"; {count_of(summary.num_retries, 'retry', 'retries')} after a 429"
        if summary.num_retries
        else ""
    )
    yield "requests", f"{counts or 'none'} in {summary.duration_s:.1f} s{retries}"
    yield (
        "throughput",
        f"{summary.requests_s:.2f} requests/s, {summary.output_tokens_s:,.0f} output tokens/s,"
        f" {summary.input_tokens_s:,.0f} prompt tokens/s",
    )
    if summary.good_requests_s is not None and summary.good_share is not None:
        yield (
            "goodput",
            f"{summary.good_requests_s:.2f} requests/s, {summary.good_share:.1%} of all within"
            f" {_objectives(setting.slo)}",
        )
    hit = (
        "the server does not report it" if summary.hit_ratio is None else f"{summary.hit_ratio:.1%}"
    )
    yield "cache hits", f"{hit}; at most {summary.possible_hit_ratio:.1%} of prompt tokens"
    yield (
        "in flight",
        f"{summary.mean_concurrency:.1f} on average, {summary.max_concurrency} at most",
    )
    if summary.late is not None and summary.loop_late is not None:
        yield (
            "generator",
            f"sent {_ms(summary.late.p99)} ms late (p99; {_ms(summary.late.max)} at most); its loop"
            f" woke {_ms(summary.loop_late.p99)} ms late",
        )


def _sorted(endings: Mapping[Ending, int]) -> list[tuple[Ending, int]]:
    return [(ending, endings[ending]) for ending in Ending if endings.get(ending)]


def _objectives(slo: Slo) -> str:
    limits = (("TTFT", slo.ttft_s), ("ITL", slo.itl_s), ("TPOT", slo.tpot_s), ("E2E", slo.e2e_s))
    return ", ".join(f"{name} {limit:g} s" for name, limit in limits if limit is not None)


def why_missed(outcomes: Iterable[Outcome]) -> list[str]:
    """One sentence for each kind of failure, with the first message."""
    first: dict[Ending, str] = {}
    for outcome in outcomes:
        if not outcome.is_complete and outcome.detail:
            first.setdefault(outcome.ending, outcome.detail)
    return [f"{ending}: {detail}" for ending, detail in first.items()]


def as_json(setting: Setting, summary: Summary, doubts: Sequence[str]) -> dict[str, Any]:
    """Everything but single requests. Times are seconds."""
    facts = msgspec.to_builtins(summary, str_keys=True)
    step = max(len(summary.concurrency) // NUM_SAMPLES, 1)
    return {
        "setting": msgspec.to_builtins(setting),
        **facts,
        "concurrency": [list(sample) for sample in summary.concurrency[::step]],
        "doubts": list(doubts),
    }


def raw_lines(outcomes: Iterable[Outcome]) -> Iterator[bytes]:
    """A line of JSON for each request, in the order that they were sent."""
    for outcome in sorted(outcomes, key=lambda outcome: outcome.sent_s):
        request = outcome.request
        line = {
            "index": request.index,
            "session": request.session,
            "turn": request.turn,
            "ending": outcome.ending,
            "detail": outcome.detail,
            "due_s": outcome.due_s,
            "sent_s": outcome.sent_s,
            "ended_s": outcome.ended_s,
            "ttft_s": outcome.ttft_s if outcome.token_s else None,
            "gaps_s": outcome.gaps_s,
            "retries": outcome.num_retries,
            "input_length": request.input_length,
            "output_length": request.output_length,
            **msgspec.to_builtins(outcome.usage),
        }
        yield msgspec.json.encode(line) + b"\n"
