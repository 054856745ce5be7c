"""The median time of each phase of a step, for prefill and decode.

around the model    drafting, schedule, batch, bookkeeping, sampling, rest
the model           its parts, if they can be told apart, else the pass as a whole
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE
from rich.table import Table

from baton.platform.instruments.step_watch import StepTime
from baton.platform.models.model_shape import Part

DRAFTING, SCHEDULE, BATCH, BOOKKEEPING, SAMPLING, REST = (
    "drafting", "schedule", "batch, Python", "bookkeeping", "sampling", "rest",
)  # fmt: skip
PASS = "the pass, up to the head"
HEAD = str(Part.HEAD)


def phases(step: StepTime) -> dict[str, float]:
    """Seconds by phase, in order; they add up to the step."""
    parts = {part: took for part, took in step.part_s.items() if part is not Part.HEAD}
    model = {str(part): parts[part] for part in Part if part in parts}
    if parts:
        model = {BATCH: step.batch_s, **model}
    elif step.pass_s:
        model = {PASS: step.pass_s}
    return {
        **({DRAFTING: step.draft_s} if step.draft_s else {}),
        SCHEDULE: step.schedule_s,
        **model,
        HEAD: step.head_s,
        BOOKKEEPING: step.bookkeeping_s,
        SAMPLING: step.sample_s,
        REST: step.rest_s,
    }


def typical_phases(steps: Sequence[StepTime]) -> dict[str, float]:
    """Median seconds by phase, since other work on the machine disturbs single steps."""
    all_phases = [phases(step) for step in steps]
    names = dict.fromkeys(phase for one in all_phases for phase in one)
    return {name: statistics.median(one.get(name, 0.0) for one in all_phases) for name in names}


def by_kind(steps: Sequence[StepTime]) -> dict[str, Sequence[StepTime]]:
    """Steps with prompts in them, and those that only decode; kinds without steps left out."""
    kinds = {
        "prefill": [step for step in steps if step.is_prefill],
        "decode": [step for step in steps if not step.is_prefill],
    }
    return {kind: chosen for kind, chosen in kinds.items() if chosen}


def step_table(steps: Sequence[StepTime], title: str) -> Table:
    table = Table(title=title, box=SIMPLE, pad_edge=False, title_justify="left")
    table.add_column("median ms", no_wrap=True)
    typical = {kind: typical_phases(chosen) for kind, chosen in by_kind(steps).items()}
    for kind, chosen in by_kind(steps).items():
        table.add_column(f"{len(chosen)} {kind}", justify="right", no_wrap=True)
        table.add_column("%", justify="right", no_wrap=True)
    for phase in _in_order(typical):
        table.add_row(phase, *_cells(typical, phase))
    table.add_section()
    totals = {kind: sum(one.values()) for kind, one in typical.items()}
    table.add_row("step", *[cell for took in totals.values() for cell in (_ms(took), "")])
    return table


def _in_order(typical: Mapping[str, Mapping[str, float]]) -> list[str]:
    """All phases, in the order of the kind with the most; phases that it lacks come last."""
    longest = max(typical.values(), key=len)
    others = [phase for one in typical.values() for phase in one if phase not in longest]
    return [*longest, *dict.fromkeys(others)]


def _cells(typical: Mapping[str, Mapping[str, float]], phase: str) -> list[str]:
    cells: list[str] = []
    for one in typical.values():
        took = one.get(phase, 0.0)
        cells += [_ms(took), f"{took / sum(one.values()):.1%}"]
    return cells


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f}"
