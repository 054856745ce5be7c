"""Compares policies: each on each trace, at each load, with each seed.

    traces x loads x (limit, policies) x seeds --processes--> rows, in this order

The seed spreads rounded arrivals, breaks ties and names blocks. Rows are deterministic otherwise.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from typing import TypeVar

from baton.core.errors import BatonError, InvalidConfig
from baton.platform.simulator.fleet.figures import FleetFigures
from baton.platform.simulator.limit import play_limit
from baton.platform.simulator.outcome import Figures
from baton.platform.simulator.prefill_pool import PrefillPool
from baton.platform.simulator.setup import Setup, rate_for_load
from baton.platform.traces.ticks import spread
from baton.platform.traces.trace import Trace
from baton.router.policies.by_name import policy

LIMIT = "limit"
"""The name of the bound: no wait, and one unlimited cache."""

C = TypeVar("C")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    trace: Trace
    load: float | None
    """Share of all replicas' time that prefill would take without a cache. None where their rate
    was given."""
    policy: str
    seed: int
    setup: Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    trace: str
    policy: str
    load: float | None
    seed: int
    tokens_per_s: float
    """Prompt tokens a second that a replica prefills."""
    figures: Figures | FleetFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    traces: Sequence[Trace]
    policies: Sequence[str]
    loads: Sequence[float]
    """None, if replicas prefill at the rate of `setup`."""
    num_seeds: int
    setup: Setup

    def cases(self) -> list[Case]:
        """Raises InvalidConfig if two traces are named alike."""
        names = [trace.name for trace in self.traces]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InvalidConfig(f"TRACE: two are named {twice[0]}; give the other another name")
        return [
            Case(trace=trace, load=load, policy=name, seed=seed, setup=self._setup_of(trace, load))
            for trace, load, name in product(
                self.traces, self.loads or (None,), (LIMIT, *self.policies)
            )
            for seed in range(self.num_seeds)
        ]

    def _setup_of(self, trace: Trace, load: float | None) -> Setup:
        if load is None:
            return self.setup
        rate = rate_for_load(trace, load, self.setup.num_replicas)
        return replace(self.setup, tokens_per_s=rate)


def play(case: Case) -> Row:
    trace = spread(case.trace, seed=case.seed)
    if case.policy == LIMIT:
        outcome = play_limit(trace, case.setup, case.seed)
    else:
        outcome = PrefillPool(trace, case.setup, policy(case.policy), case.seed).play()
    return Row(
        trace=trace.name,
        policy=case.policy,
        load=case.load,
        seed=case.seed,
        tokens_per_s=case.setup.tokens_per_s,
        figures=outcome.figures(case.setup.slo_ttft_s),
    )


def play_all(cases: Sequence[C], num_jobs: int, play_one: Callable[[C], Row]) -> Iterator[Row]:
    """One row per case, in order. Raises BatonError if a worker process was killed."""
    if num_jobs == 1:
        yield from map(play_one, cases)
        return
    workers = ProcessPoolExecutor(
        min(num_jobs, len(cases)),
        mp_context=get_context("spawn"),  # threads, such as a progress bar's, and forks do not mix
        initializer=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    try:
        rows: list[Future[Row]] = [workers.submit(play_one, case) for case in cases]
        for row in rows:
            yield row.result()
    except BrokenProcessPool:
        raise BatonError(
            "a simulation was ended from outside, most likely for lack of memory; give fewer --jobs"
        ) from None
    finally:
        workers.shutdown(cancel_futures=True)
