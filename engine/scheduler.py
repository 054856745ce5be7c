"""Which requests run in the next forward pass, and how many tokens of each.

A request moves   WAITING -> RUNNING -> FINISHED
                     ^_________|  preempted: blocks freed, recomputed later

There is no prefill and no decode: a request runs as many of its pending tokens as the budget
allows. Chunked prefill, prefix hits, resumption and adopted requests all follow from that.

    running   hold blocks; in order of arrival, so the last one is the youngest
    adopted   waiting, but hold computed blocks of a handoff: admitted first, for they cost nothing
    waiting   hold nothing; first come, first served: whoever does not fit holds up those behind
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from baton.engine.block_pool import BlockPool
from baton.engine.config import SchedulerConfig
from baton.engine.request import Phase, Request

MAX_OVERTAKEN = 64
"""Adopted requests that may pass the head of the queue before it counts as starving."""


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
        self._adopted: deque[Request] = deque()
        self._waiting: deque[Request] = deque()
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

    def __iter__(self) -> Iterator[Request]:
        """Every unfinished request."""
        return chain(self._running, self._adopted, self._waiting)

    def add(self, request: Request) -> None:
        """Queue a request; one with computed tokens must hold the blocks of all of them."""
        self._num_arrived += 1
        request.arrival = self._num_arrived
        (self._adopted if request.num_computed else self._waiting).append(request)

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
            insort(self._running, request, key=lambda running: running.arrival)
        return chunks

    def _next_admissible(self) -> Request | None:
        """Take the next request that has, or now gets, blocks for all its pending tokens."""
        if self._adopted:
            adopted, num_tokens = self._adopted[0], len(self._adopted[0].tokens)
            has_room = self.pool.grow(adopted.holder, num_tokens)
            if not has_room and not self._running:  # nobody will free blocks by finishing
                has_room = self._make_room(adopted, num_tokens)
            if not has_room:
                return None
            if self._waiting:
                self._waiting[0].num_overtaken += 1
            return self._adopted.popleft()
        if self._waiting and self._reserve(self._waiting[0]):
            return self._waiting.popleft()
        return None

    def _reserve(self, request: Request) -> bool:
        if self._running and self._refused == (request, self.pool.num_releases):
            return False  # nothing came free since: do not hash a long prompt every step
        num_cached = self.pool.reserve(request.holder, request.tokens, request.salt)
        while num_cached is None and not self._running and self._reclaim():
            num_cached = self.pool.reserve(request.holder, request.tokens, request.salt)
        if num_cached is None:
            self._refused = (request, self.pool.num_releases)
            return False
        request.num_overtaken = 0
        request.num_computed = num_cached
        if not request.num_preemptions:
            request.num_cached = num_cached
        return True

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        """Get blocks for `num_tokens` in all, at the cost of younger requests."""
        while not self.pool.grow(request.holder, num_tokens):
            if self._reclaim():
                continue
            victim = self._adopted[-1] if self._adopted else self._running[-1]
            self._preempt(victim)
            if victim is request:  # it was itself the youngest
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self._forget(request)
        request.phase = Phase.WAITING
        request.num_computed = 0
        request.num_preemptions += 1
        self.num_preempted += 1
        self._waiting.appendleft(request)

    def _forget(self, request: Request) -> None:
        for queue in (self._running, self._adopted, self._waiting):
            if request in queue:
                queue.remove(request)
        self.pool.release(request.holder)

    def _chunk_len(self, request: Request, budget: int) -> int:
        limit = self.config.prefill_chunk or budget
        return min(request.num_pending, limit, budget)
