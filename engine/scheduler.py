"""Which requests run in the next forward pass, and how many tokens of each.

A request moves   WAITING -> RUNNING -> FINISHED
                     ^_________|  preempted: blocks freed, recomputed later

There is no prefill and no decode: a request runs as many of its pending tokens as the budget
allows. Chunked prefill, prefix hits, resumption and adopted requests all follow from that.

    running   hold blocks; the last one is the first to be preempted
    adopted   waiting, but hold computed blocks of a handoff: admitted first, for they cost nothing
    waiting   hold nothing; whoever does not fit holds up those behind

All three are in the order of priority, then of arrival; of those waiting, who was preempted comes
first. Within a priority nobody starves. One of lesser priority (a larger number) may, as long as
there are others; but what runs is preempted only for what runs, never for what waits.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from baton.engine.block_pool import BlockPool
from baton.engine.config import SchedulerConfig
from baton.engine.request import Phase, Request

MAX_OVERTAKEN = 64
"""Adopted requests, of no better priority, that may pass the head of the queue before it counts as
starving."""


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """The next `num_tokens` pending tokens of a request; its blocks cover them."""

    request: Request
    num_tokens: int


class Scheduler:
    """Decides from its queues and the pool alone; it knows neither time nor model.

    `reclaim` is asked for blocks before a request is preempted: it releases some and returns True,
    or returns False if it has none to give.
    """

    def __init__(
        self, pool: BlockPool, config: SchedulerConfig, *, reclaim: Callable[[], bool]
    ) -> None:
        self.pool = pool
        self.config = config
        self.num_preempted = 0
        """Preemptions so far."""
        self._reclaim = reclaim
        self._running: list[Request] = []
        self._adopted: list[Request] = []
        self._waiting: list[Request] = []
        self._num_arrived = 0
        self._refused: tuple[Request, int] | None = None
        """The head of `waiting` that did not fit, and `pool.num_releases` when it did not."""

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._adopted) + len(self._waiting)

    @property
    def is_starving(self) -> bool:
        """Adopted requests take the blocks that the head of the queue needs: take in no more."""
        return bool(self._waiting) and self._waiting[0].num_overtaken >= MAX_OVERTAKEN

    @property
    def running(self) -> Sequence[Request]:
        """The most urgent, and the oldest of those, first. Live."""
        return self._running

    def __iter__(self) -> Iterator[Request]:
        """Every unfinished request."""
        return chain(self._running, self._adopted, self._waiting)

    def add(self, request: Request) -> None:
        """Queue a request; one with computed tokens must hold the blocks of all of them."""
        self._num_arrived += 1
        request.arrival = self._num_arrived
        queue = self._adopted if request.num_computed else self._waiting
        insort(queue, request, key=_rank_waiting)

    def finish(self, request: Request) -> None:
        """Remove a request, whatever its phase, and free its blocks."""
        self._forget(request)
        request.phase = Phase.FINISHED

    def step(self) -> list[ScheduledChunk]:
        """Plan one forward pass: running requests first, then as many waiting ones as fit."""
        chunks = self._continue_running(self.config.max_batch_tokens)
        budget = self.config.max_batch_tokens - sum(chunk.num_tokens for chunk in chunks)
        return chunks + self._admit(budget)

    def _continue_running(self, budget: int) -> list[ScheduledChunk]:
        chunks: list[ScheduledChunk] = []
        for request in tuple(self._running):
            num_tokens = self._chunk_len(request, budget)
            if request.phase is not Phase.RUNNING or num_tokens == 0:
                continue
            if self._make_room(request, request.num_computed + num_tokens):
                chunks.append(ScheduledChunk(request, num_tokens))
                budget -= num_tokens
        return chunks

    def _admit(self, budget: int) -> list[ScheduledChunk]:
        chunks: list[ScheduledChunk] = []
        while budget and len(self._running) < self.config.max_running:
            request = self._next_admissible()
            if request is None:
                break
            num_tokens = self._chunk_len(request, budget)
            chunks.append(ScheduledChunk(request, num_tokens))
            budget -= num_tokens
            request.phase = Phase.RUNNING
            insort(self._running, request, key=_rank)
        return chunks

    def _next_admissible(self) -> Request | None:
        """Take the next request that has, or now gets, blocks for all its pending tokens."""
        if self._waiting and self._is_waiting_more_urgent() and self._reserve(self._waiting[0]):
            return self._waiting.pop(0)
        if self._adopted:
            return self._next_adopted()
        if self._waiting and self._reserve(self._waiting[0]):
            return self._waiting.pop(0)
        return None

    def _is_waiting_more_urgent(self) -> bool:
        return bool(self._adopted) and self._waiting[0].priority < self._adopted[0].priority

    def _next_adopted(self) -> Request | None:
        adopted, num_tokens = self._adopted[0], len(self._adopted[0].tokens)
        has_room = self.pool.grow(adopted.holder, num_tokens)
        if not has_room and not self._running:  # nobody will free blocks by finishing
            has_room = self._make_room(adopted, num_tokens)
        if not has_room:
            return None
        if self._waiting and self._waiting[0].priority <= adopted.priority:
            self._waiting[0].num_overtaken += 1
        return self._adopted.pop(0)

    def _reserve(self, request: Request) -> bool:
        if self._running and self._refused == (request, self.pool.num_releases):
            return False  # nothing came free since: do not hash a long prompt every step
        num_cached = self._try_to_reserve(request)
        while num_cached is None and not self._running and self._reclaim():
            num_cached = self._try_to_reserve(request)
        if num_cached is None:
            self._refused = (request, self.pool.num_releases)
            return False
        request.num_overtaken = 0
        request.num_computed = num_cached
        if not request.num_preemptions:
            request.num_cached = num_cached
        return True

    def _try_to_reserve(self, request: Request) -> int | None:
        return self.pool.reserve(
            request.holder,
            request.tokens,
            request.salt,
            is_matching=not request.needs_every_token,
        )

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        """Get blocks for `num_tokens` in all, at the cost of requests that rank below."""
        while not self.pool.grow(request.holder, num_tokens):
            if self._reclaim():
                continue
            victim = self._victim()
            self._preempt(victim)
            if victim is request:  # there was nobody below it
                return False
        return True

    def _victim(self) -> Request:
        """Of the least priority; of those, one adopted before one that runs; then the youngest."""
        if not self._running:
            return self._adopted[-1]
        if self._adopted and self._adopted[-1].priority >= self._running[-1].priority:
            return self._adopted[-1]
        return self._running[-1]

    def _preempt(self, request: Request) -> None:
        self._forget(request)
        request.phase = Phase.WAITING
        request.num_computed = 0
        request.num_preemptions += 1
        self.num_preempted += 1
        insort(self._waiting, request, key=_rank_waiting)

    def _forget(self, request: Request) -> None:
        for queue in (self._running, self._adopted, self._waiting):
            if request in queue:
                queue.remove(request)
        self.pool.release(request.holder)

    def _chunk_len(self, request: Request, budget: int) -> int:
        limit = self.config.prefill_chunk or budget
        return min(request.num_pending, limit, budget)


def _rank(request: Request) -> tuple[int, int]:
    return request.priority, request.arrival


def _rank_waiting(request: Request) -> tuple[int, bool, int]:
    return request.priority, not request.num_preemptions, request.arrival
