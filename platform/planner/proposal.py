"""Proposals of the planner and their outcomes, for logs and GET /debug/planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from baton.core.replicas import Role
from baton.platform.planner.plan import Decision

Counts = Mapping[Role, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Proposed numbers of replicas, with reasons."""

    decision: Decision
    before: Counts
    counts: Counts
    flips: int
    """Prefill replicas to flip to decode; negative: the other way."""
    started_before: Counts
    """Replicas as the document says, in which flips change nothing."""
    started: Counts
    asked_before: Counts
    """Replicas that nodes are asked for; empty where nobody sees to nodes."""
    asked: Counts
    causes: Mapping[Role, str]
    """What settled each number: a `Cause` of the decision, or `short`, `held`, `nodes`."""
    notes: tuple[str, ...] = ()
    """Why they differ from the decision, or cannot be changed now."""
    is_held: bool = False
    """Whether a number that a person set is left against what was decided."""

    @property
    def is_change(self) -> bool:
        return bool(self.flips) or self.is_told_to_serve

    @property
    def is_told_to_serve(self) -> bool:
        """Whether the application's document changes."""
        after = (dict(self.started), dict(self.asked))
        return after != (dict(self.started_before), dict(self.asked_before))

    @property
    def reasons(self) -> tuple[str, ...]:
        return (*self.decision.reasons, *self.notes)


@dataclass(frozen=True, slots=True)
class DecidedProposal:
    """A proposal and its outcome."""

    proposal: Proposal
    decided_at: float
    """Unix time."""
    outcome: str


def shown(proposal: Proposal) -> str:
    shown = ", ".join(
        f"{role.value} {proposal.before[role]} -> {count}"
        for role, count in proposal.counts.items()
    )
    to = Role.DECODE if proposal.flips > 0 else Role.PREFILL
    return f"{shown}, {abs(proposal.flips)} by flips to {to}" if proposal.flips else shown


def plain(kept: DecidedProposal) -> dict[str, Any]:
    proposal, seen = kept.proposal, kept.proposal.decision.seen
    return {
        "decided_at": kept.decided_at,
        "before": {role.value: count for role, count in proposal.before.items()},
        "after": {role.value: count for role, count in proposal.counts.items()},
        "flips": proposal.flips,
        "outcome": kept.outcome,
        "reasons": list(proposal.reasons),
        "load": None
        if seen is None
        else {
            "rate": seen.now.rate,
            "rate_ahead": seen.ahead.rate,
            "prompt_tokens": seen.now.prompt_tokens,
            "output_tokens": seen.now.output_tokens,
        },
    }
