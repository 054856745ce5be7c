"""The summary of a run: latencies, throughput, goodput, hit ratio, concurrency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from baton.platform.load_generator.generator import Record
from baton.platform.load_generator.outcome import Ending, Outcome
from baton.platform.load_generator.slo import Slo

PERCENTS = (50, 90, 95, 99)
NUM_SAMPLES = 200
"""Samples of each series shown over time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A distribution of durations, in seconds."""

    num: int
    mean: float
    max: float
    by_percent: Mapping[int, float]

    @property
    def p50(self) -> float:
        return self.by_percent[50]

    @property
    def p99(self) -> float:
        return self.by_percent[99]


def distribution(values: Iterable[float]) -> Distribution | None:
    """The distribution; None without values."""
    found = np.fromiter(values, dtype=np.float64)
    if not found.size:
        return None
    percentiles = np.percentile(found, PERCENTS).tolist()
    return Distribution(
        num=found.size,
        mean=float(found.mean()),
        max=float(found.max()),
        by_percent=dict(zip(PERCENTS, percentiles, strict=True)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    duration_s: float
    """Seconds from the first request sent to the end of the last answer."""
    endings: Mapping[Ending, int]
    ttft: Distribution | None
    itl: Distribution | None
    tpot: Distribution | None
    e2e: Distribution | None
    requests_s: float
    input_tokens_s: float
    output_tokens_s: float
    good_requests_s: float | None
    """None where no objective was given."""
    good_share: float | None
    """Share of requests that met the objectives, of all that were not interrupted."""
    hit_ratio: float | None
    """Cached tokens of prompt tokens; None where the server does not report it."""
    possible_hit_ratio: float
    """Hit ratio of an unlimited prefix cache that every replica shares."""
    mean_concurrency: float
    max_concurrency: int
    concurrency: Sequence[tuple[float, int]]
    """Seconds since the start, and requests in flight."""
    late: Distribution | None
    """How late the generator sent."""
    loop_late: Distribution | None
    """How late its event loop woke."""
    num_retries: int

    @property
    def num_counted(self) -> int:
        return sum(self.endings.values()) - self.endings.get(Ending.INTERRUPTED, 0)


def summarize(record: Record, slo: Slo) -> Summary:
    outcomes = sorted(record.outcomes, key=lambda outcome: outcome.sent_s)
    counted = [outcome for outcome in outcomes if outcome.ending is not Ending.INTERRUPTED]
    complete = [outcome for outcome in counted if outcome.is_complete]
    begins = min((outcome.sent_s for outcome in outcomes), default=0.0)
    ends = max((outcome.ended_s for outcome in outcomes), default=0.0)
    duration_s = max(ends - begins, 1e-9)
    num_good = None if slo.is_empty else sum(map(slo.is_met_by, counted))
    concurrency = in_flight(outcomes)
    return Summary(
        duration_s=duration_s,
        endings=Counter(outcome.ending for outcome in outcomes),
        ttft=distribution(outcome.ttft_s for outcome in complete),
        itl=distribution(gap for outcome in complete for gap in outcome.gaps_s),
        tpot=distribution(outcome.tpot_s for outcome in complete if outcome.tpot_s is not None),
        e2e=distribution(outcome.e2e_s for outcome in complete),
        requests_s=len(complete) / duration_s,
        input_tokens_s=sum(outcome.prompt_tokens for outcome in complete) / duration_s,
        output_tokens_s=sum(outcome.output_tokens for outcome in complete) / duration_s,
        good_requests_s=None if num_good is None else num_good / duration_s,
        good_share=None if num_good is None else num_good / max(len(counted), 1),
        hit_ratio=_hit_ratio(complete),
        possible_hit_ratio=_possible_hit_ratio(complete),
        mean_concurrency=sum(one.ended_s - one.sent_s for one in outcomes) / duration_s,
        max_concurrency=max((num for _, num in concurrency), default=0),
        concurrency=concurrency,
        late=distribution(outcome.late_s for outcome in outcomes),
        loop_late=distribution(record.loop_late_s),
        num_retries=sum(outcome.num_retries for outcome in outcomes),
    )


def in_flight(outcomes: Sequence[Outcome]) -> list[tuple[float, int]]:
    """Requests between sent and ended, after each change."""
    changes = sorted(
        [(one.sent_s, 1) for one in outcomes] + [(one.ended_s, -1) for one in outcomes]
    )
    found: list[tuple[float, int]] = []
    num = 0
    for at_s, change in changes:
        num += change
        found.append((at_s, num))
    return found


def _hit_ratio(complete: Sequence[Outcome]) -> float | None:
    told = [one for one in complete if one.usage.cached_tokens is not None]
    if not told:
        return None
    return sum(one.usage.cached_tokens or 0 for one in told) / max(
        sum(one.prompt_tokens for one in told), 1
    )


def _possible_hit_ratio(complete: Sequence[Outcome]) -> float:
    """The share of tokens in prefixes that an earlier prompt had."""
    longest: dict[tuple[int, int], int] = {}
    num_tokens = num_seen = 0
    for outcome in complete:
        is_known = True
        for source, key, size in outcome.request.prompt:
            known = longest.get((source, key), 0)
            num_tokens += size
            num_seen += min(known, size) if is_known else 0
            is_known = is_known and known >= size
            longest[source, key] = max(known, size)
    return num_seen / max(num_tokens, 1)
