"""Checks a scenario's invariants. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton.core.wording import count_of
from baton.platform.chaos.load import Tally
from baton.platform.chaos.scenario import Scenario

HELD = ("live", "leased", "quarantined")


@dataclass(frozen=True, slots=True)
class Invariant:
    name: str
    holds: bool
    seen: str


def unsettled(leaks: Mapping[str, Any], status: Mapping[str, Any]) -> list[str]:
    """Blocks and tokens still held, lost or unaccounted for; empty once an idle deployment is at
    rest."""
    found = [*leaks["violations"], *(f"{name} is unreachable" for name in leaks["unreachable"])]
    for row in leaks["replicas"]:
        found += [
            f"{row['replica']} holds {count_of(row[term], f'{term} block')}"
            for term in HELD
            if row[term]
        ]
    for rows in status["pools"].values():
        found += [text for row in rows if row["is_reachable"] for text in _books(row)]
    return found


def _books(row: Mapping[str, Any]) -> list[str]:
    """sampled = delivered + discarded, on a replica with nothing in flight."""
    metrics: Mapping[str, float] = row["metrics"]
    sampled = metrics.get("tokens_sampled_total", 0)
    settled = metrics.get("tokens_delivered_total", 0) + metrics.get("tokens_discarded_total", 0)
    if sampled == settled:
        return []
    return [f"{row['replica']} sampled {sampled:.0f} tokens and accounts for {settled:.0f}"]


def judge(scenario: Scenario, tally: Tally, left_over: Sequence[str]) -> list[Invariant]:
    reasons = Counter(text[:120] for text in tally.failed).most_common(1)
    why = f": {reasons[0][0]}" if reasons else ""
    wrong = tally.wrong[0] if tally.wrong else None
    return [
        Invariant("something was asked", tally.num_asked > 0, count_of(tally.num_asked, "request")),
        Invariant(
            "no wrong token",
            not tally.wrong,
            f"{tally.num_right} answers equal their undisturbed ones"
            if wrong is None
            else f"{len(tally.wrong)} wrong, first prompt {wrong.prompt} at token {wrong.position}",
        ),
        Invariant(
            "no hang",
            not tally.num_hung,
            f"{tally.num_hung} over {scenario.load.timeout_s:g} s; longest {tally.longest_s:.1f} s",
        ),
        Invariant(
            "no lost request",
            len(tally.failed) <= scenario.max_failed,
            f"{len(tally.failed)} failed, {scenario.max_failed} may{why}",
        ),
        Invariant(
            "no leak",
            not left_over,
            "every block and token is accounted for"
            if not left_over
            else f"{len(left_over)}: {'; '.join(left_over[:3])}",
        ),
    ]
