"""Which requests run in the next forward pass, and how many tokens of each.

A request moves   WAITING -> RUNNING -> FINISHED
                     ^_________|  preempted: blocks freed, recomputed later

There are no prefill and decode phases: a request runs as many of its pending tokens as the budget
allows. Chunked prefill, prefix hits, resumption and adopted requests all follow from that.

    running   hold blocks; the last one is the first to be preempted
    adopted   wait, but hold the computed blocks of a handoff: admitted first, as they cost nothing
    waiting   hold no blocks; a request that does not fit holds up the requests behind it

A request that does not fit because its tenant is at its limit holds up only requests of that
tenant. Blocks reserved for a tenant are given to no other, however long others wait.

All three queues are ordered by priority, then by arrival; among waiting requests, preempted ones
come first. Within a priority no request starves. A request of lower priority (a larger number) may
starve as long as there are others; but a running request is preempted only for running ones, never
for a waiting one.

The token budget of a pass goes to decoding requests first, whatever their priority: one token each,
including adopted requests about to be admitted. With int4 KV, the tokens of the block that a
handoff left partly filled are computed again. They count as decoding, too, as long as every other
request keeps a token. Prompts share the rest of the budget in queue order, so a long prompt, new or
resumed, never delays a decode. At most as many requests run as a pass has tokens, so the first
prompt always gets some.

Draft tokens come last: `drafted_chunks.py`.

While all running requests decode and none joins or leaves, they form a `PersistentBatch`, and a
step repeats the previous one. A request that did not fit is tried again only after something has
changed.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain, islice
from typing import Protocol

from torch import Tensor

from baton.engine.blocks.block_pool import BlockPool
from baton.engine.config import SchedulerConfig
from baton.engine.request.request import Phase, Request
from baton.engine.schedule.drafted_chunks import NO_DRAFTS, Drafts, ScheduledChunk, with_drafts
from baton.engine.schedule.persistent_batch import PersistentBatch
from baton.engine.schedule.preemption import victim_for, will_free_blocks_for
from baton.engine.schedule.refusals import Refusals
from baton.engine.schedule.waiting_queue import WaitingQueue

MAX_OVERTAKEN = 64
"""The head of the waiting queue counts as starving once this many adopted requests of the same or
lower priority have been admitted before it."""


class Reclaim(Protocol):
    def __call__(self, tenant: str | None) -> bool:
        """Release some blocks, only `tenant`'s if one is given. Returns False if there are none to
        release."""


HeldTenants = Callable[[], Collection[str]]
"""Returns the tenants of the blocks that computed prompts hold until decode replicas have fetched
them."""


def _has_nothing(tenant: str | None) -> bool:
    return False


def _holds_nothing() -> Collection[str]:
    return ()


class Scheduler:
    """Plans each forward pass from its queues and the block pool; it reads no clock and no
    model."""

    def __init__(self, pool: BlockPool, config: SchedulerConfig, *, num_open: int = 1) -> None:
        """`num_open`: see `KvCache`."""
        self.pool = pool
        self.config = config
        self._num_open = num_open
        self.num_preempted = 0
        """Preemptions so far."""
        self._reclaim: Reclaim = _has_nothing
        """The callback that frees blocks for the step being planned."""
        self._held_tenants: HeldTenants = _holds_nothing
        """Likewise, of the step being planned."""
        self._running: list[Request] = []
        self._max_running = min(config.max_running, config.max_batch_tokens)
        self._free_slots = list(range(self._max_running))
        """Free slots for open blocks (`Request.open_slot`)."""
        self._adopted = WaitingQueue()
        self._waiting = WaitingQueue()
        self._refusals = Refusals(pool)
        self._persistent_batch: PersistentBatch | None = None
        self._persistent_chunks: list[ScheduledChunk] = []
        self._num_arrived = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._adopted) + len(self._waiting)

    @property
    def is_starving(self) -> bool:
        """Whether so many adopted requests have overtaken the head of the waiting queue that the
        engine should adopt no more."""
        head = self._head
        return head is not None and head.num_overtaken >= MAX_OVERTAKEN

    @property
    def persistent_batch(self) -> PersistentBatch | None:
        """The persistent batch, if the last step was exactly one of its turns."""
        return self._persistent_batch

    @property
    def persistent_chunks(self) -> list[ScheduledChunk]:
        """The chunks of each turn of the persistent batch."""
        return self._persistent_chunks

    @property
    def running(self) -> Sequence[Request]:
        """Running requests by priority, then arrival. A live view, not a copy."""
        return self._running

    @property
    def joining(self) -> list[Request]:
        """Adopted requests that may be admitted in the next step."""
        return list(islice(self._adopted, self._num_joining)) if self._may_admit else []

    def __iter__(self) -> Iterator[Request]:
        """Every unfinished request."""
        return chain(self._running, self._adopted, self._waiting)

    def add(self, request: Request) -> None:
        """Queue a request; one with computed tokens must hold the blocks of all of them."""
        self._num_arrived += 1
        request.arrival = self._num_arrived
        self._refusals.reconsider()
        queue = self._adopted if request.num_computed else self._waiting
        queue.add(request)

    def finish(self, request: Request) -> None:
        """Remove a request, whatever its phase, and free its blocks."""
        self._forget(request)
        request.phase = Phase.FINISHED

    def step(
        self,
        reclaim: Reclaim = _has_nothing,
        drafts: Drafts = NO_DRAFTS,
        held_tenants: HeldTenants = _holds_nothing,
    ) -> list[ScheduledChunk]:
        """Plan one forward pass: running requests first, then as many waiting ones as fit.

        `reclaim` is asked for blocks before a request is preempted. A request that waits ends no
        pin while `held_tenants` says that blocks for it will come back. Drafts get what is left of
        the token budget, and new blocks only while no request is waiting.
        """
        self._reclaim, self._held_tenants = reclaim, held_tenants
        self.pool.supply.expire()  # frees expired pins, so that waiting requests are tried again
        if drafts:
            self._persistent_batch = None
        chunks = self._repeat() or self._continue_running()
        admitted = self._admit(chunks)
        if drafts:
            most, may_grow = self.config.max_batch_tokens, not self.num_waiting
            return with_drafts(
                chunks + admitted,
                drafts,
                self.pool,
                most,
                may_grow=may_grow,
                num_open=self._num_open,
            )
        if self._persistent_batch is None and not admitted:
            self._keep_batch(chunks)
        return chunks + admitted if admitted else chunks

    def begin_next_turn(self, drawn: Tensor) -> bool:
        """Begin the turn after the one that is being computed; `drawn` [R] holds its input tokens
        on the device.

        Returns False if the next step may differ from this one: another request may be admitted, a
        running one reaches its last token, or there are not enough blocks.
        """
        self.pool.supply.expire()
        batch = self._persistent_batch
        if batch is None or batch.ends_with_this_turn or self._may_admit:
            return False
        return batch.make_room(drawn)

    def _repeat(self) -> list[ScheduledChunk] | None:
        """The next turn of the persistent batch, if there is one."""
        batch = self._persistent_batch
        if batch is not None and batch.has_computed and batch.make_room():
            return self._persistent_chunks
        self._persistent_batch = None
        return None

    def _keep_batch(self, chunks: list[ScheduledChunk]) -> None:
        """Set the persistent batch if every running request has a chunk in this step and only
        decodes."""
        requests = [chunk.request for chunk in chunks]
        if requests and requests == self._running and all(map(PersistentBatch.fits, requests)):
            self._persistent_batch = PersistentBatch(self._running, self.pool)
            self._persistent_chunks = chunks

    def _continue_running(self) -> list[ScheduledChunk]:
        """Chunks of the running requests. They get blocks in order of priority and arrival, so that
        the last of them is preempted first, whether it decodes or not."""
        if (side_by_side := self._decode_side_by_side()) is not None:
            return side_by_side
        chunks: list[ScheduledChunk] = []
        num_decoded = self._tokens_to_decode()
        budget = self.config.max_batch_tokens - sum(num_decoded.values())  # for prompts
        for request in tuple(self._running):
            num_tokens = num_decoded.get(request) or self._chunk_len(request, budget)
            if request.phase is not Phase.RUNNING or num_tokens == 0:
                continue
            stop = request.num_computed + num_tokens
            if self.pool.grow(request.holder, stop) or self._make_room(request, stop):
                chunks.append(ScheduledChunk(request, num_tokens))
                budget -= 0 if request in num_decoded else num_tokens
        # A tenant may take blocks of its reserved share from a request that is earlier in the order
        # and has its chunk already.
        return [chunk for chunk in chunks if chunk.request.phase is Phase.RUNNING]

    def _decode_side_by_side(self) -> list[ScheduledChunk] | None:
        """One token of each running request; None unless each has exactly one pending and there are
        blocks for all without preemption. Some requests may have got their block by then."""
        running, grow = self._running, self.pool.grow
        if not all([len(request.tokens) - request.num_computed == 1 for request in running]):
            return None
        for request in running:
            if not grow(request.holder, len(request.tokens)):
                return None
        return [ScheduledChunk(request, 1) for request in running]

    def _tokens_to_decode(self) -> dict[Request, int]:
        """Number of tokens to run, by request, of each decoding request and each adopted one that
        may be admitted now: all its pending tokens, as long as one token is left for every other
        running request."""
        joining, most = self.joining, self._most_decoded
        spare = self.config.max_batch_tokens - len(self._running) - len(joining)
        num_decoded: dict[Request, int] = {}
        for request in (*self._running, *joining):
            num_pending = request.num_pending
            if num_pending == 1:
                num_decoded[request] = 1
            elif num_pending <= most or request in joining:
                num_decoded[request] = self._chunk_len(request, 1 + spare)
                spare -= num_decoded[request] - 1
        return num_decoded

    def _is_decoding(self, request: Request) -> bool:
        return request.num_pending <= self._most_decoded

    @property
    def _most_decoded(self) -> int:
        """Most pending tokens with which a request counts as decoding: one, or with int4 KV a block
        of tokens, for the partly filled block that is computed again after a handoff."""
        layout = self.pool.layout
        return layout.block_size if layout.is_int4 else 1

    @property
    def _num_joining(self) -> int:
        """Number of adopted requests that there are free slots for."""
        return min(len(self._adopted), self._max_running - len(self._running))

    def _admit(self, running: Sequence[ScheduledChunk]) -> list[ScheduledChunk]:
        chunks: list[ScheduledChunk] = []
        if not self._may_admit:
            return chunks
        budget = self.config.max_batch_tokens - sum(chunk.num_tokens for chunk in running)
        while budget and not self._is_full:
            request = self._next_admissible()
            if request is None:
                self._refusals.refuse_all()
                break
            request.phase, request.open_slot = Phase.RUNNING, self._free_slots.pop()
            self._persistent_batch = None
            insort(self._running, request, key=_rank)
            kept = self._num_joining if self._is_decoding(request) else 0
            num_tokens = self._chunk_len(request, max(1, budget - kept))
            chunks.append(ScheduledChunk(request, num_tokens))
            budget -= num_tokens
        return chunks

    @property
    def _may_admit(self) -> bool:
        """Whether a request is waiting and admission is worth trying."""
        return bool(self.num_waiting) and not self._is_stuck and not self._is_full

    @property
    def _is_full(self) -> bool:
        return len(self._running) >= self._max_running

    @property
    def _is_stuck(self) -> bool:
        """Whether trying to admit a request is of no use. Always False while nothing runs: blocks
        held outside the scheduler may become free."""
        return bool(self._running) and self._refusals.are_of_all

    def _next_admissible(self) -> Request | None:
        """Take the next request out of its queue, with blocks for all its pending tokens; None if
        there are not enough blocks for any."""
        head, adopted = self._head, self._adopted.heads()
        is_urgent = head and adopted and head.priority < adopted[0].priority
        if head and is_urgent and self._reserve(head):
            self._waiting.discard(head)
            return head
        return self._next_adopted() or self._next_waiting()

    @property
    def _head(self) -> Request | None:
        """The first waiting request that is not held up by its own tenant's limit."""
        is_over_share = self._refusals.is_over_share
        return next((head for head in self._waiting.heads() if not is_over_share(head)), None)

    def _next_adopted(self) -> Request | None:
        for adopted in self._in_turn(self._adopted):
            if self._grow_adopted(adopted):
                head = self._head
                if head is not None and head.priority <= adopted.priority:
                    head.num_overtaken += 1
                self._adopted.discard(adopted)
                return adopted
            self._refusals.note_share(adopted)
        return None

    def _next_waiting(self) -> Request | None:
        is_at_limit = self.pool.supply.is_at_limit
        is_pool_full = not all(map(is_at_limit, self._adopted.tenants))
        for request in self._in_turn(self._waiting, is_pool_full=is_pool_full):
            if self._reserve(request):
                self._waiting.discard(request)
                return request
        return None

    def _in_turn(self, queue: WaitingQueue, *, is_pool_full: bool = False) -> Iterator[Request]:
        """The requests to try to admit: the first of each tenant, in queue order. Once one of them
        did not fit because the pool is full, only tenants within their reserved share follow."""
        for head in queue.heads():
            # The head may be another one by now, if it was preempted for a request tried before it.
            request = queue.first_of(head.tenant)
            if request is None:
                continue
            num_blocks = self.pool.layout.num_blocks_for(len(request.tokens))
            if is_pool_full and not self.pool.supply.is_kept_for(request.tenant, num_blocks):
                continue
            yield request
            is_pool_full |= not self._refusals.is_over_share(request)

    def _grow_adopted(self, adopted: Request) -> bool:
        num_tokens = len(adopted.tokens)
        if self.pool.grow(adopted.holder, num_tokens):
            return True
        if self._will_free_blocks_for(adopted.tenant):
            return False
        return self._make_room(adopted, num_tokens)

    def _will_free_blocks_for(self, tenant: str) -> bool:
        held_tenants = self._held_tenants()
        return will_free_blocks_for(tenant, self._running, held_tenants, self.pool.supply)

    def _reserve(self, request: Request) -> bool:
        will_wait = self._will_free_blocks_for(request.tenant)
        if will_wait and self._refusals.stands(request):
            return False
        num_cached = self._try_to_reserve(request)
        while num_cached is None and not will_wait:
            # A tenant at its limit has no running request here, as `will_wait` is false.
            is_at_limit = self.pool.supply.is_at_limit(request.tenant)
            may_reclaim = is_at_limit or not self._running
            if not self._get_blocks_for(request.tenant, may_reclaim=may_reclaim):
                break
            num_cached = self._try_to_reserve(request)
        if num_cached is None:
            self._refusals.refuse(request)
            return False
        request.num_overtaken = 0
        request.num_computed = num_cached
        if not request.num_preemptions:
            request.num_cached = num_cached
            request.num_looked_up = 0 if request.needs_every_token else len(request.tokens)
        return True

    def _get_blocks_for(self, tenant: str, *, may_reclaim: bool = True) -> bool:
        """Free some blocks for `tenant`; returns whether any were. Pinned blocks go first, as no
        request waits for them; then what `reclaim` gives back: a handoff that has not begun, or
        blocks on loan."""
        if self.pool.supply.evict_pin(tenant):
            return True
        of_its_own = tenant if self.pool.supply.is_at_limit(tenant) else None
        return may_reclaim and self._reclaim(of_its_own)

    def _try_to_reserve(self, request: Request) -> int | None:
        return self.pool.reserve(
            request.holder,
            request.tokens,
            request.salt,
            tenant=request.tenant,
            is_matching=not request.needs_every_token,
        )

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        """Get blocks for `num_tokens` in all, preempting other requests if needed. Returns False
        if `request` itself was preempted."""
        while not self.pool.grow(request.holder, num_tokens):
            if self._get_blocks_for(request.tenant):
                continue
            victim = victim_for(request.tenant, self._running, self._adopted, self.pool.supply)
            self._preempt(victim)
            if victim is request:  # no other request could be preempted for it
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self._forget(request)
        request.phase = Phase.WAITING
        request.num_computed = 0
        request.num_preemptions += 1
        self.num_preempted += 1
        self._waiting.add(request)

    def _forget(self, request: Request) -> None:
        if request.phase is Phase.RUNNING:
            self._running.remove(request)
            self._free_slots.append(request.open_slot)
            self._persistent_batch = None
        self._adopted.discard(request)
        self._waiting.discard(request)
        self.pool.release(request.holder)
        self._refusals.forget(request.tenant)

    def _chunk_len(self, request: Request, budget: int) -> int:
        limit = self.config.prefill_chunk or budget
        return min(request.num_pending, limit, budget)


def _rank(request: Request) -> tuple[int, int]:
    return request.priority, request.arrival
