"""A batch of decoding requests that stays the same over many steps, until a request joins or
leaves.

    turn:   make_room -> the pass -> computed -> each gets its next token -> make_room ...

Every request advances by one token per turn, so the turns in which it needs a new block and fills
its last one are known in advance: with S tokens per block, a request with c computed tokens is due
in each turn t with (c + t) % S == 0. Requests that are not due need no work besides their token.

For the same reason blocks for the next turn can be allocated while this turn is still being
computed: see `baton.engine.schedule.async_scheduling`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton.engine.batch.decoding import Decoding
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.request.request import Phase, Request
from baton.engine.sampling.sampling_plan import SamplingPlan


class PersistentBatch:
    """Decoding requests that each have blocks for one more token. The scheduler drops the batch as
    soon as a step differs from the one before."""

    def __init__(self, requests: Sequence[Request], pool: BlockPool) -> None:
        self.requests = tuple(requests)
        self.decoding = Decoding(
            tokens=self._next_tokens(),
            positions=[request.num_computed for request in self.requests],
            tables=[pool.table(request.holder) for request in self.requests],
            open_slots=[request.open_slot for request in self.requests],
            adapters=[request.adapter_number for request in self.requests],
        )
        """The batch as the model runner reads it."""
        self._plan: SamplingPlan | None = None
        self.num_computed = 0
        """Number of turns whose pass has been computed and read."""
        left = [request.ending.num_tokens - len(request.tokens) for request in self.requests]
        self._num_sure = min(left, default=0)
        """Number of turns after which the first request reaches its token limit."""
        self._first_context = sum(request.num_computed for request in self.requests)
        self._pool = pool
        self._block_size = pool.layout.block_size
        self._due: list[list[int]] = [[] for _ in range(self._block_size)]
        for row, request in enumerate(self.requests):
            self._due[-request.num_computed % self._block_size].append(row)

    @staticmethod
    def fits(request: Request) -> bool:
        """Whether `request` has been scheduled before and only decodes."""
        return request.scheduled_at is not None and PersistentBatch.decodes(request)

    @staticmethod
    def decodes(request: Request) -> bool:
        """Whether `request` only decodes: one pending token, and no embedding, prompt logprobs or
        cache points to compute. Its first step may be still to come."""
        return (
            request.num_pending == 1
            and request.embedding is None
            and request.prompt_logprobs is None
            and not request.cache_points
        )

    def plan(self, device: torch.device) -> SamplingPlan:
        """The sampling plan of all rows, built once. It advances by one position with each draw."""
        if self._plan is None:
            self._plan = SamplingPlan([request.row for request in self.requests], device)
        return self._plan

    @property
    def num_context(self) -> int:
        """Computed tokens of all requests together, before the next pass."""
        return self._first_context + self.num_computed * len(self.requests)

    @property
    def has_computed(self) -> bool:
        """Whether every turn that began has been computed, so that the next one may begin."""
        return self.num_computed == self.decoding.turn + 1

    @property
    def ends_with_this_turn(self) -> bool:
        """Whether some request reaches its token limit in this turn, whatever is sampled."""
        return self.decoding.turn + 1 >= self._num_sure

    def make_room(self, drawn: Tensor | None = None) -> bool:
        """Begin the next turn. Returns False if there are not enough blocks for all requests; some
        of them may have got their block by then.

        `drawn` [R] holds the turn's input tokens on the device, for a turn that begins before the
        host has read them; without it they are the last token of each request.
        """
        turn = self.decoding.turn + 1
        due = self._rows_due(turn)
        for row in due:
            num_tokens = self.decoding.position(row) + 2  # the token of this turn, and of the next
            if not self._pool.grow(self.requests[row].holder, num_tokens):
                return False
        self.decoding.next_turn(self._next_tokens() if drawn is None else drawn, due)
        return True

    def computed(self) -> None:
        """Note that the pass of the oldest turn in progress has been computed. Requests that have
        left the batch meanwhile are not advanced."""
        self.num_computed += 1
        running = Phase.RUNNING
        for request in self.requests:
            if request.phase is running:
                request.num_computed += 1
                request.num_run += 1
        for row in self._rows_due(self.num_computed):
            request = self.requests[row]
            if request.phase is Phase.RUNNING:
                tokens, num_computed = request.tokens, request.num_computed
                self._pool.commit(request.holder, tokens, num_computed, request.salt)

    def _rows_due(self, turn: int) -> Sequence[int]:
        """Rows whose computed tokens fill their blocks exactly when `turn` begins."""
        return self._due[turn % self._block_size]

    def _next_tokens(self) -> list[int]:
        return [request.tokens[-1] for request in self.requests]
