"""Measures the gain and cost of drafting: alternating runs with and without drafts.

round    plain, with drafts      different prompts each; the first round does not count
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median
from typing import NamedTuple

from rich.box import SIMPLE
from rich.table import Table

from baton.core.sampling import SamplingParams
from baton.engine.engine import Engine
from baton.engine.request.request import Request
from baton.engine.speculation.draft_tally import DraftCounts
from baton.engine.speculation.speculation import Speculation
from baton.platform.instruments.loaded_engine import LoadedEngine

PROMPT_TOKENS, OUTPUT_TOKENS, NUM_ROUNDS = 128, 96, 3
REQUEST_TOKENS = PROMPT_TOKENS + OUTPUT_TOKENS
SHOWN_POSITIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftUse:
    """Counts of drafts in some steps."""

    num_proposed: int
    num_verified: int
    """Rows of passes that verified drafts."""
    num_accepted: int
    acceptance_at: Sequence[float]
    """Share of verified draft tokens that were accepted, by position in the draft."""
    tokens_per_step: float
    """Tokens per request and step."""
    draft_s: float
    """Seconds spent on drafting."""
    seconds: float
    """Seconds of all steps."""

    @property
    def num_wasted(self) -> int:
        """Verified rows of rejected draft tokens."""
        return self.num_verified - self.num_accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationPoint:
    batch: int
    plain_tokens_s: float
    ratio: float
    """Throughput with drafts over throughput without; the median of rounds."""
    use: DraftUse


class _Run(NamedTuple):
    seconds: float
    num_tokens: int
    num_decodes: int
    """Requests of all steps."""
    draft_s: float


def draft_use(
    before: DraftCounts, after: DraftCounts, *, num_decodes: int, draft_s: float, seconds: float
) -> DraftUse:
    """Draft use between two counts; `num_decodes`: request steps in between."""
    verified = _difference(before.num_verified_at, after.num_verified_at)
    accepted = _difference(before.num_accepted_at, after.num_accepted_at)
    return DraftUse(
        num_proposed=after.num_proposed - before.num_proposed,
        num_verified=sum(verified),
        num_accepted=sum(accepted),
        acceptance_at=[
            right / num for right, num in zip_longest(accepted, verified, fillvalue=0) if num
        ],
        tokens_per_step=1 + sum(accepted) / max(1, num_decodes),
        draft_s=draft_s,
        seconds=seconds,
    )


def speculation_point(
    loaded: LoadedEngine, speculation: Speculation, batch: int
) -> SpeculationPoint:
    """`speculation` is set on the engine only during the measurement."""
    ratios, rates, runs = [], [], []
    before = speculation.counts()
    for number in range(NUM_ROUNDS + 1):
        prompts = [loaded.prompt(PROMPT_TOKENS, f"{batch} {number} {i}") for i in range(batch)]
        plain = _run(loaded.engine, None, prompts)
        if number == 1:
            before = speculation.counts()
        drafting = _run(loaded.engine, speculation, prompts)
        if number:
            rates.append(plain.num_tokens / plain.seconds)
            ratios.append(drafting.num_tokens / drafting.seconds / rates[-1])
            runs.append(drafting)
    return SpeculationPoint(
        batch=batch,
        plain_tokens_s=median(rates),
        ratio=median(ratios),
        use=draft_use(
            before,
            speculation.counts(),
            num_decodes=sum(run.num_decodes for run in runs),
            draft_s=sum(run.draft_s for run in runs),
            seconds=sum(run.seconds for run in runs),
        ),
    )


def speculation_table(points: Sequence[SpeculationPoint], title: str) -> Table:
    table = _table(title, ("batch", "plain\ntokens/s", "times\nthat"))
    for point in points:
        cells = f"{point.batch}", f"{point.plain_tokens_s:,.0f}", f"{point.ratio:.2f}"
        table.add_row(*cells, *_cells(point.use))
    return table


def use_table(use: DraftUse) -> Table:
    table = _table("what became of drafts", ())
    table.add_row(*_cells(use))
    return table


def _table(title: str, first: Sequence[str]) -> Table:
    table = Table(title=title, box=SIMPLE, pad_edge=False, padding=0, title_justify="left")
    of_use = (
        "tokens\na step", "proposed", "verified", "wasted", "drafting\nof time",
        "right, by\nposition",
    )  # fmt: skip
    for column in (*first, *of_use):
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _cells(use: DraftUse) -> list[str]:
    wasted = f"{use.num_wasted / use.num_verified:.0%}" if use.num_verified else "-"
    shares = [f"{share:.2f}".removeprefix("0") for share in use.acceptance_at[:SHOWN_POSITIONS]]
    return [
        f"{use.tokens_per_step:.2f}",
        f"{use.num_proposed:,}",
        f"{use.num_verified:,}",
        wasted,
        f"{use.draft_s / use.seconds:.1%}" if use.seconds else "-",
        "\n".join(" ".join(shares[i : i + 4]) for i in range(0, len(shares), 4)) or "-",
    ]


def as_tree(points: Sequence[SpeculationPoint]) -> Iterator[dict[str, object]]:
    for point in points:
        use = point.use
        yield {
            "batch": point.batch,
            "plain_tokens_s": point.plain_tokens_s,
            "times_plain": point.ratio,
            "tokens_per_step": use.tokens_per_step,
            "proposed": use.num_proposed,
            "verified": use.num_verified,
            "accepted": use.num_accepted,
            "wasted": use.num_wasted,
            "acceptance_by_position": list(use.acceptance_at),
            "draft_share_of_time": use.draft_s / use.seconds,
        }


def _run(engine: Engine, speculation: Speculation | None, prompts: Sequence[Sequence[int]]) -> _Run:
    """Run all prompts at once, and count decoding only."""
    engine.speculation = speculation
    sampling = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    requests = [Request(str(i), prompt, sampling=sampling) for i, prompt in enumerate(prompts)]
    for request in requests:
        engine.add(request)
    while any(not request.output for request in requests):
        engine.step()
    num_before, started = sum(len(request.output) for request in requests), time.perf_counter()
    num_decodes, draft_ms = 0, 0.0
    while engine.has_work:
        report = engine.step()
        num_decodes += report.num_requests
        draft_ms += report.draft_ms
    seconds = time.perf_counter() - started
    engine.speculation = None
    num_tokens = sum(len(request.output) for request in requests) - num_before
    return _Run(seconds, num_tokens, num_decodes, draft_ms / 1e3)


def _difference(before: Sequence[int], after: Sequence[int]) -> list[int]:
    return [late - early for early, late in zip_longest(before, after, fillvalue=0)]
