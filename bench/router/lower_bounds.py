"""Lower bounds for any routing policy, beside the results of policies.

The bounds are the times of a relaxed system with the same arrivals, which no real one can beat:

    cache      one unlimited cache for all replicas: the work w of a prompt is that of its blocks
               which no earlier prompt had
    replicas   a single one with N times the rate, which may preempt a prompt at no cost
    schedule   the optimum, knowing all future arrivals

    mean    at least sum w / n: without waiting
            at least that of shortest remaining processing time on the single replica, which is the
            optimal schedule there (Schrage 1968)
    p99     at least that of w: without waiting
            at least the least D for which 99 % of the prompts can end within D of their arrival,
            each of them with w <= D. The least number of late ones is computed as by Kise, Ibaraki
            and Mine (1978): with the same D for all, deadlines are in the order of arrivals

Each bounds one figure; a schedule need not reach both. In a closed loop arrivals depend on answers,
so only the bounds without waiting hold; a prefix that conversations share is then the work of one
of them for the mean, and of none for the p99.

    python -m bench.router.lower_bounds TRACE... [--load 0.7 ...] [--policy NAME ...] [--seeds N]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import groupby
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from baton.platform.cli.runs.simulate import LOADS, policies_of, read
from baton.platform.simulator.block_names import BlockNames
from baton.platform.simulator.experiment import LIMIT, Case, Experiment, Row, play, play_all
from baton.platform.simulator.setup import Setup
from baton.platform.traces.ticks import spread
from baton.platform.traces.trace import Trace, TraceRequest
from baton.router.defaults import DEFAULT_POLICY
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table

Numbers = NDArray[np.float64]

BETTER = 0.85
"""The target: so many times the result of the best other policy."""
PERCENT = 99.0
RELATIVE_ERROR = 1e-4
"""The bound on the percentile is too low by at most this."""
HEAD = (
    *("", "figure", "best rival", "of", DEFAULT_POLICY, "bound", "cost / rival"),
    *("bound / rival", f"{BETTER:g} times the rival"),
)


@dataclass(frozen=True, slots=True)
class Bound:
    mean_s: float
    p99_s: float


def bound_of(trace: Trace, setup: Setup, seed: int) -> Bound:
    """The bounds for this trace, with its arrivals spread by this seed."""
    if trace.is_closed_loop:
        return _closed(trace, setup, seed)
    trace = spread(trace, seed=seed)
    requests = sorted(trace.requests, key=lambda request: request.arrival_s or 0.0)
    arrived_s = np.array([request.arrival_s or 0.0 for request in requests])
    work_s = own_works_s(requests, setup, BlockNames(trace, setup.block_size, seed), set())
    waiting_s = least_mean_s(arrived_s, work_s / setup.num_replicas)
    return Bound(
        max(float(work_s.mean()), waiting_s),
        least_percentile_s(arrived_s, work_s, setup.num_replicas),
    )


def own_works_s(
    requests: Sequence[TraceRequest], setup: Setup, names: BlockNames, known: set[bytes]
) -> Numbers:
    """Seconds of each prompt's work: its blocks that no earlier prompt had and that are not in
    `known`, to which they are added."""
    works = []
    for request in requests:
        named = names.of(request)
        num_held = next((at for at, name in enumerate(named) if name not in known), len(named))
        known.update(named[num_held:])
        works.append(max(request.input_length - num_held * setup.block_size, 0))
    return np.array(works, float) / setup.tokens_per_s


def _closed(trace: Trace, setup: Setup, seed: int) -> Bound:
    names = BlockNames(trace, setup.block_size, seed)
    sessions = trace.sessions().values()
    uses = Counter(
        name
        for turns in sessions
        for name in {name for turn in turns for name in names.of(turn)}
    )  # fmt: skip
    common = {name for name, num in uses.items() if num > 1}
    own_s = np.concatenate([own_works_s(turns, setup, names, common) for turns in sessions])
    every = [turn for turns in sessions for turn in turns]
    all_s = own_works_s(every, setup, names, set())
    return Bound(float(all_s.mean()), float(np.percentile(own_s, PERCENT)))


def least_mean_s(arrived_s: Numbers, takes_s: Numbers) -> float:
    """The mean time from arrival to end on one server by shortest remaining processing time."""
    left: list[float] = []
    now, sum_s = 0.0, 0.0
    nexts_s = [*arrived_s.tolist()[1:], np.inf]
    for at_s, takes, next_s in zip(arrived_s.tolist(), takes_s.tolist(), nexts_s, strict=True):
        now = at_s
        heappush(left, takes)
        while left and now < next_s:
            shortest = heappop(left)
            done_s = min(shortest, next_s - now)
            sum_s += done_s * (len(left) + 1)  # all waiting jobs, for this long
            now += done_s
            if done_s < shortest:
                heappush(left, shortest - done_s)
    return sum_s / len(arrived_s)


def least_percentile_s(arrived_s: Numbers, work_s: Numbers, num_replicas: int) -> float:
    """A lower bound of the percentile of times from arrival to end."""
    num_late = len(work_s) - 1 - int(PERCENT / 100.0 * (len(work_s) - 1))
    low_s = float(np.percentile(work_s, PERCENT))
    high_s = low_s
    while min_num_late(arrived_s, work_s, num_replicas, high_s, num_late) > num_late:
        low_s, high_s = high_s, 2.0 * high_s
    while high_s - low_s > RELATIVE_ERROR * low_s:
        middle_s = (low_s + high_s) / 2.0
        if min_num_late(arrived_s, work_s, num_replicas, middle_s, num_late) > num_late:
            low_s = middle_s
        else:
            high_s = middle_s
    return low_s


def min_num_late(
    arrived_s: Numbers, work_s: Numbers, num_replicas: int, within_s: float, most: int
) -> int:
    """The least number that ends later than `within_s` after arrival; or any number above `most`.

    Jobs are added in the order of arrival, which is that of their deadlines. When one would be
    late, the job is removed without which the others end soonest.
    """
    may_be = work_s <= within_s
    num_late = int(len(work_s) - may_be.sum())
    at_s, takes_s = arrived_s[may_be], work_s[may_be] / num_replicas
    kept = np.ones(len(at_s), bool)
    end_s = -np.inf
    for place, (came_s, takes) in enumerate(zip(at_s.tolist(), takes_s.tolist(), strict=True)):
        end_s = max(end_s, came_s) + takes
        if end_s <= came_s + within_s:
            continue
        num_late += 1
        if num_late > most:
            break
        places = kept[: place + 1].nonzero()[0]
        left_out, end_s = _soonest_without_one(at_s[places], takes_s[places])
        kept[places[left_out]] = False
    return num_late


def _soonest_without_one(at_s: Numbers, takes_s: Numbers) -> tuple[int, float]:
    """The job to remove so that the last of the others ends soonest, and when that is.

    The end is the maximum, over jobs, of its arrival plus all work from it on.
    """
    ends_s = at_s + np.cumsum(takes_s[::-1])[::-1]
    before_s = np.concatenate(([-np.inf], np.maximum.accumulate(ends_s)[:-1]))
    behind_s = np.concatenate((np.maximum.accumulate(ends_s[::-1])[::-1][1:], [-np.inf]))
    without_s = np.maximum(before_s - takes_s, behind_s)
    place = int(without_s.argmin())
    return place, float(without_s[place])


def rows(found: Sequence[Row], bounds: Sequence[Bound]) -> Iterator[tuple[str | float, ...]]:
    """Rows of one trace and load: means over the seeds."""
    for figure in ("mean_s", "p99_s"):
        by_policy = {
            name: fmean(getattr(row.figures, figure) for row in group)
            for name, group in groupby(found, key=lambda row: row.policy)
        }
        own = by_policy.pop(DEFAULT_POLICY)
        rival = min(by_policy, key=lambda name: by_policy[name])
        bound = fmean(getattr(bound, figure) for bound in bounds)
        best = by_policy[rival]
        load = "" if found[0].load is None else f" {found[0].load:.0%}"
        yield (
            *(f"{found[0].trace}{load}", figure.removesuffix("_s"), best, rival, own, bound),
            *(f"{own / best:.2f}", f"{bound / best:.2f}", verdict(own / best, bound / best)),
        )


def verdict(own: float, bound: float) -> str:
    """`own` and `bound` are relative to the best other policy."""
    if own <= BETTER:
        return "met"
    return "impossible" if bound > BETTER else "not excluded"


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--load", type=float, nargs="+", default=LOADS)
    parser.add_argument("--policy", nargs="+", default=["all"], help="rivals; all: every one")
    parser.add_argument("--replicas", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=3000, help="of each replica's cache")
    parser.add_argument("--block-size", type=int, default=512)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    experiment = Experiment(
        traces=[read(file) for file in asked.traces],
        policies=policies_of((DEFAULT_POLICY, *asked.policy)),
        loads=asked.load,
        num_seeds=asked.seeds,
        setup=Setup(
            num_replicas=asked.replicas,
            num_blocks=asked.blocks,
            block_size=asked.block_size,
            tokens_per_s=1.0,
        ),
    )
    print(surroundings())
    print(table(HEAD, compared(experiment.cases(), asked.jobs)))


def compared(cases: Sequence[Case], num_jobs: int) -> Iterator[tuple[str | float, ...]]:
    played = play_all([case for case in cases if case.policy != LIMIT], num_jobs, play)
    found = [*played]
    for (name, load), group in groupby(found, key=lambda row: (row.trace, row.load)):
        bounds = [
            bound_of(case.trace, case.setup, case.seed)
            for case in cases
            if (case.trace.name, case.load, case.policy) == (name, load, LIMIT)
        ]
        yield from rows(list(group), bounds)


if __name__ == "__main__":
    main()
