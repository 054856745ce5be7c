"""The results in a row of a simulated fleet's table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFigures:
    """The results of one tenant. Times are seconds, of requests that were not rejected."""

    num_requests: int
    rejected: int
    mean_s: float
    """Time to first token; so is the percentile."""
    p99_s: float
    goodput: float
    """Share of its requests, the rejected included, in time."""
    num_tokens: int
    """Tokens of prompts and outputs that it was served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFigures:
    """The results in a row of the table. Times are seconds, of requests that were not rejected."""

    num_requests: int
    mean_s: float
    """Time to first token; so are the percentiles."""
    p50_s: float
    p90_s: float
    p99_s: float
    itl_mean_s: float
    """Mean seconds from one token to the next that did not come with it; the percentiles are of the
    same."""
    itl_p50_s: float
    itl_p90_s: float
    itl_p99_s: float
    tpot_p50_s: float
    """Median over requests of the mean seconds per output token behind the first."""
    e2e_p50_s: float
    """Median seconds until the last token."""
    hit: float
    """Share of the prompts' tokens that were there when they were computed, pulled ones included.
    """
    imbalance: float
    """The busiest computing replica's time over the mean one's."""
    goodput: float
    """Share of all requests, the rejected included, with a first token in time, and with those
    behind it as far apart as their class allows, if it says so."""
    goodput_by_class: Mapping[str, float]
    """The same of each class that has an objective of its own."""
    tenants: Mapping[str, TenantFigures]
    coverage: float
    """Share of requests whose first token came within the 90 % interval that an estimate would have
    told when they found their place, or their place in line."""
    rejected: int
    num_local: int
    """Prompts that decode replicas computed."""
    num_preempted: int
    num_pulled_tokens: int
    duration_s: float
    """Seconds from the trace's start to its last token."""
