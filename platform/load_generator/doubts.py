"""Warnings that a measurement may mislead."""

from __future__ import annotations

from collections.abc import Sequence

from baton.platform.load_generator.outcome import Outcome
from baton.platform.load_generator.summary import Distribution, Summary

MIN_LATE_S = 0.01
MIN_LOOP_LATE_S = 0.005
SHARE_OF_LATENCY = 0.1
"""Lateness of the generator, as a share of the measured latency, from which it is doubted."""
MIN_FOR_P99 = 100
SIZE_SLACK = 0.05
GROWTH = 2.0
MIN_BACKLOG = 8


def doubts(summary: Summary, outcomes: Sequence[Outcome], *, is_open_loop: bool) -> list[str]:
    """The warnings as sentences."""
    complete = [outcome for outcome in outcomes if outcome.is_complete]
    found = [
        _late(summary.late, summary.ttft),
        _loop(summary.loop_late, summary.itl),
        _lengths("prompts", [(one.prompt_tokens, one.request.input_length) for one in complete]),
        _lengths("answers", [(one.output_tokens, one.request.output_length) for one in complete]),
        _few(len(complete)),
        _foreign_hits(summary),
        _backlog(summary) if is_open_loop else "",
    ]
    return [doubt for doubt in found if doubt]


def _late(late: Distribution | None, ttft: Distribution | None) -> str:
    if late is None or ttft is None:
        return ""
    if late.p99 <= max(MIN_LATE_S, SHARE_OF_LATENCY * ttft.p50):
        return ""
    return (
        f"the generator sent late (p99 {late.p99 * 1e3:.0f} ms): this is not the load that was"
        " asked for; give it a core of its own, or send less from each of several"
    )


def _loop(late: Distribution | None, itl: Distribution | None) -> str:
    if late is None or itl is None:
        return ""
    if late.p99 <= max(MIN_LOOP_LATE_S, SHARE_OF_LATENCY * itl.p50):
        return ""
    return (
        f"the generator's own loop woke late (p99 {late.p99 * 1e3:.0f} ms): times of single tokens"
        " are blurred by as much; give it a core of its own"
    )


def _lengths(what: str, pairs: Sequence[tuple[int, int]]) -> str:
    asked = sum(asked for _, asked in pairs)
    if not asked:
        return ""
    off = sum(counted for counted, _ in pairs) / asked - 1.0
    if abs(off) <= SIZE_SLACK:
        return ""
    return f"{what} were {abs(off):.0%} {'longer' if off > 0 else 'shorter'} than asked for"


def _few(num_complete: int) -> str:
    if num_complete >= MIN_FOR_P99 or not num_complete:
        return ""
    return f"p99 of {num_complete} answers is little more than the worst one"


def _foreign_hits(summary: Summary) -> str:
    if summary.hit_ratio is None or summary.hit_ratio <= summary.possible_hit_ratio + SIZE_SLACK:
        return ""
    return (
        "more was cached than this run had sent before: what an earlier run with the same --seed"
        " left behind; take another seed, or start the server anew"
    )


def _backlog(summary: Summary) -> str:
    """Requests in flight in the second and in the last quarter of the run."""
    sent = [
        num
        for (_, before), (_, num) in zip(
            [(0.0, 0), *summary.concurrency], summary.concurrency, strict=False
        )
        if num > before
    ]
    quarter = len(sent) // 4
    if not quarter:
        return ""
    sooner = sum(sent[quarter : 2 * quarter]) / quarter
    later = sum(sent[-quarter:]) / quarter
    if later < GROWTH * sooner or later < MIN_BACKLOG:
        return ""
    return (
        f"requests in flight still grew ({sooner:.0f}, later {later:.0f}): the server does not keep"
        " up, and latencies depend on how long the run is"
    )
