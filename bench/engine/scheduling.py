"""How the cost of scheduling grows with running and with waiting requests.

    steady        all decode, none begins or ends; waiting requests do not fit
    turnover      in each step one request ends, and a waiting one takes its place

Microseconds of `Scheduler.step`: medians of the means over 16 steps, one block of tokens. The pool
has no memory behind it; there is neither runner nor sampler.

    python -m bench.engine.scheduling
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from itertools import count

from baton.core.sampling import SamplingParams
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.config import SchedulerConfig
from baton.engine.memory.kv_cache import KvCache
from baton.engine.passes.echo import echo_info
from baton.engine.request.request import Request
from baton.engine.schedule.scheduler import Scheduler
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table

BLOCK_SIZE = 16
PROMPT_LEN = 96
BLOCKS_EACH = 18
"""Blocks of the pool a running request: enough for all timed steps, and no more."""
NUM_STEPS = 160
WARM_UP_STEPS = 16
SAMPLING = SamplingParams(temperature=0.0, max_tokens=10_000)


class Load:
    """A scheduler with so many requests; `compute` does what an engine does with a step."""

    def __init__(self, num_running: int, num_waiting: int) -> None:
        layout = echo_info().layout(BLOCK_SIZE)
        self.pool = BlockPool(KvCache(layout, num_running * BLOCKS_EACH))
        config = SchedulerConfig(max_running=num_running, max_batch_tokens=10**6)
        self.scheduler = Scheduler(self.pool, config)
        self._numbers = count()
        for _ in range(num_running + num_waiting):
            self.add()

    def add(self) -> None:
        number = next(self._numbers)
        prompt = [number, *range(PROMPT_LEN + number % BLOCK_SIZE)]
        self.scheduler.add(Request(f"request {number}", prompt, sampling=SAMPLING))

    def step_us(self) -> float:
        started = time.perf_counter()
        chunks = self.scheduler.step()
        us = (time.perf_counter() - started) * 1e6
        batch = self.scheduler.persistent_batch
        if batch is not None:
            batch.computed()
        for request, num_tokens, _ in chunks:
            request.scheduled_at = 0.0
            if batch is None:
                request.num_computed += num_tokens
                tokens, num_computed = request.tokens, request.num_computed
                self.pool.commit(request.holder, tokens, num_computed, request.salt)
            request.append(7)
        return us

    def one_for_one(self) -> None:
        self.scheduler.finish(self.scheduler.running[0])
        self.add()


def as_before(num_running: int, num_waiting: int) -> float:
    load = Load(num_running, num_waiting)
    return _median(load.step_us() for _ in range(NUM_STEPS))


def one_for_one(num_running: int, num_waiting: int) -> float:
    def times() -> Iterator[float]:
        load = Load(num_running, num_waiting)
        for _ in range(NUM_STEPS):
            yield load.step_us()
            load.one_for_one()

    return _median(times())


def _median(times: Iterator[float]) -> float:
    warm = list(times)[WARM_UP_STEPS:]
    windows = [warm[first : first + BLOCK_SIZE] for first in range(0, len(warm), BLOCK_SIZE)]
    return statistics.median(map(statistics.fmean, windows))


def report(*, is_quick: bool = False) -> str:
    rows = [
        (f"{num_running} run, {num_waiting:,} wait", as_before(*load), one_for_one(*load))
        for num_running in ((16,) if is_quick else (16, 64, 256))
        for num_waiting in ((0, 100) if is_quick else (0, 10, 100, 1000))
        for load in [(num_running, num_waiting)]
    ]
    return table(("requests", "steady", "turnover"), rows)


if __name__ == "__main__":
    benchmark_parser(__doc__).parse_args()
    print(f"{surroundings()}\n\n{report()}")
