"""What came of each client's steps, as the table of docs/clients.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

MODELS = {
    "knows-tools": "Hermes",
    "mistral": "Mistral",
    "qwen3-coder": "Qwen3-Coder",
    "knows-none": "generic",
}
"""What tools are headed by."""
HEADER = f"| client | packages | answer | stream | tools: {' | '.join(MODELS.values())} |"
RULE = "|---" * (4 + len(MODELS)) + "|"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one client before one model."""

    client: str
    version: str
    model: str
    failures: Mapping[str, str]
    """By step: empty if it went as it should, else what the client said."""


ROWS = pytest.StashKey[list[Outcome]]()


def table(outcomes: Sequence[Outcome]) -> str:
    by_client: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_client.setdefault(outcome.client, []).append(outcome)
    return "\n".join([HEADER, RULE, *(_row(of_client) for of_client in by_client.values())])


def _row(outcomes: Sequence[Outcome]) -> str:
    by_model = {outcome.model: outcome for outcome in outcomes}
    cells = [
        outcomes[0].client,
        outcomes[0].version,
        _cell(outcomes, "answer"),
        _cell(outcomes, "stream"),
        *(_cell([by_model[name]] if name in by_model else [], "tools") for name in MODELS),
    ]
    return f"| {' | '.join(cells)} |"


def _cell(outcomes: Sequence[Outcome], step: str) -> str:
    """A step, and those that are the same in another way: `tools`, `tools_streamed`."""
    told = [why for o in outcomes for name, why in o.failures.items() if name.startswith(step)]
    if not told:
        return "-"
    return "no" if any(told) else "yes"
