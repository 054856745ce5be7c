"""Which requests run in the next forward pass, and how many tokens of each.

A request moves   WAITING -> RUNNING -> FINISHED
                     ^_________|  preempted: blocks freed, recomputed later

There is no prefill and no decode: a request runs as many of its pending tokens as the budget
allows. Chunked prefill, prefix hits, resumption and adopted requests all follow from that.

    running   hold blocks; the last one is the first to be preempted
    adopted   waiting, but hold computed blocks of a handoff: admitted first, for they cost nothing
    waiting   hold nothing; whoever does not fit holds up those behind

Whoever does not fit because its tenant holds all it may holds up only that tenant's; and what is
kept for a tenant is its own to use, however long the others wait.

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
        self._refused: dict[str, tuple[Request, int]] = {}
        """By tenant: its first in `waiting` that did not fit, and `pool.num_releases` then."""

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._adopted) + len(self._waiting)

    @property
    def is_starving(self) -> bool:
        """Adopted requests take the blocks that the head of the queue needs: take in no more."""
        head = self._head
        return head is not None and head.num_overtaken >= MAX_OVERTAKEN

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
        self.pool.supply.expire()  # so that who waits for blocks is tried again
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
        head = self._head
        is_urgent = head and self._adopted and head.priority < self._adopted[0].priority
        if head and is_urgent and self._reserve(head):
            self._waiting.remove(head)
            return head
        return self._next_adopted() or self._next_waiting()

    @property
    def _head(self) -> Request | None:
        """The first that waits for the pool, and not for its own tenant's blocks."""
        return next((request for request in self._waiting if not request.is_over_share), None)

    def _next_adopted(self) -> Request | None:
        for adopted in self._in_turn(self._adopted):
            if self._grow_adopted(adopted):
                head = self._head
                if head is not None and head.priority <= adopted.priority:
                    head.num_overtaken += 1
                self._adopted.remove(adopted)
                return adopted
            adopted.is_over_share = self.pool.supply.is_at_limit(adopted.tenant)
        return None

    def _next_waiting(self) -> Request | None:
        is_at_limit = self.pool.supply.is_at_limit
        is_pool_full = any(not is_at_limit(adopted.tenant) for adopted in self._adopted)
        for request in self._in_turn(self._waiting, is_pool_full=is_pool_full):
            if self._reserve(request):
                self._waiting.remove(request)
                return request
        return None

    def _in_turn(
        self, queue: Sequence[Request], *, is_pool_full: bool = False
    ) -> Iterator[Request]:
        """Those to try, one after the other as long as they do not fit.

        Of each tenant the first; once the pool is full, whoever stays within what is kept for it.
        """
        tried: set[str] = set()
        for request in tuple(queue):
            tenant = request.tenant
            if tenant in tried or request not in queue:  # preempted for one before it
                continue
            tried.add(tenant)
            num_blocks = self.pool.layout.num_blocks_for(len(request.tokens))
            if is_pool_full and not self.pool.supply.is_kept_for(tenant, num_blocks):
                continue
            yield request
            is_pool_full |= not request.is_over_share

    def _grow_adopted(self, adopted: Request) -> bool:
        num_tokens = len(adopted.tokens)
        if self.pool.grow(adopted.holder, num_tokens):
            return True
        if self._will_free_blocks_for(adopted.tenant):
            return False
        return self._make_room(adopted, num_tokens)

    def _will_free_blocks_for(self, tenant: str) -> bool:
        """Whether somebody runs who will, by finishing, leave blocks that `tenant` may have."""
        donors = self.pool.supply.donors(tenant)
        return any(request.tenant in donors for request in self._running)

    def _reserve(self, request: Request) -> bool:
        will_wait = self._will_free_blocks_for(request.tenant)
        if will_wait and self._refused.get(request.tenant) == (request, self.pool.num_releases):
            return False  # nothing came free since: do not hash a long prompt every step
        num_cached = self._try_to_reserve(request)
        while num_cached is None and not will_wait:
            if not self._get_blocks_for(request.tenant, may_reclaim=not self._running):
                break
            num_cached = self._try_to_reserve(request)
        request.is_over_share = num_cached is None and self.pool.supply.is_at_limit(request.tenant)
        if num_cached is None:
            self._refused[request.tenant] = request, self.pool.num_releases
            return False
        self._refused.pop(request.tenant, None)
        request.num_overtaken = 0
        request.num_computed = num_cached
        if not request.num_preemptions:
            request.num_cached = num_cached
        return True

    def _get_blocks_for(self, tenant: str, *, may_reclaim: bool = True) -> bool:
        """Pins first, for nothing waits for them; then a handoff that has not begun."""
        if self.pool.supply.give_way(tenant):
            return True
        return may_reclaim and not self.pool.supply.is_at_limit(tenant) and self._reclaim()

    def _try_to_reserve(self, request: Request) -> int | None:
        return self.pool.reserve(
            request.holder,
            request.tokens,
            request.salt,
            tenant=request.tenant,
            is_matching=not request.needs_every_token,
        )

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        """Get blocks for `num_tokens` in all, at the cost of requests that rank below."""
        while not self.pool.grow(request.holder, num_tokens):
            if self._get_blocks_for(request.tenant):
                continue
            victim = self._victim(request.tenant)
            self._preempt(victim)
            if victim is request:  # there was nobody below it
                return False
        return True

    def _victim(self, tenant: str) -> Request:
        """Who has to make room for `tenant`: others, while it stays within what is kept for it."""
        donors = self.pool.supply.donors(tenant)
        victim: Request | None = None
        if self.pool.supply.is_kept_for(tenant, 1):
            victim = self._least_of([donor for donor in donors if donor != tenant])
        victim = victim or self._least_of(donors)
        assert victim is not None, "whoever wants blocks is a candidate"
        return victim

    def _least_of(self, tenants: Sequence[str]) -> Request | None:
        """Of the least priority; of those, one adopted before one that runs; then the youngest."""
        running = next((r for r in reversed(self._running) if r.tenant in tenants), None)
        adopted = next((r for r in reversed(self._adopted) if r.tenant in tenants), None)
        if running is None or adopted is None:
            return running or adopted
        return adopted if adopted.priority >= running.priority else running

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
        self._refused.pop(request.tenant, None)
        for other in chain(self._adopted, self._waiting):
            if other.tenant == request.tenant:
                other.is_over_share = False

    def _chunk_len(self, request: Request, budget: int) -> int:
        limit = self.config.prefill_chunk or budget
        return min(request.num_pending, limit, budget)


def _rank(request: Request) -> tuple[int, int]:
    return request.priority, request.arrival


def _rank_waiting(request: Request) -> tuple[int, bool, int]:
    return request.priority, not request.num_preemptions, request.arrival
