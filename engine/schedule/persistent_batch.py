"""The requests that decode together, for as long as none comes or goes.

    turn:   make_room -> the pass -> computed -> each gets its next token -> make_room ...

All of them advance by one token a turn, so it is known in advance which request needs a block next
and whose last block becomes full: with S tokens a block, a request with c computed tokens is due in
each turn t with (c + t) % S == 0. Requests that are not due cost nothing but their token.

For the same reason room for the next turn can be made while this turn is still being computed: see
`baton.engine.schedule.step_ahead`.
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
    """Its requests have blocks for one more token. To be dropped when anything else happens."""

    def __init__(self, requests: Sequence[Request], pool: BlockPool) -> None:
        self.requests = tuple(requests)
        self.decoding = Decoding(
            tokens=self._next_tokens(),
            positions=[request.num_computed for request in self.requests],
            tables=[pool.table(request.holder) for request in self.requests],
            lanes=[request.lane for request in self.requests],
        )
        """What the runner sees of them."""
        self._plan: SamplingPlan | None = None
        self.num_computed = 0
        """Turns that are over."""
        left = [request.ending.num_tokens - len(request.tokens) for request in self.requests]
        self._num_sure = min(left, default=0)
        """Turns after which one of them has all the tokens it may have."""
        self._first_context = sum(request.num_computed for request in self.requests)
        self._pool = pool
        self._block_size = pool.layout.block_size
        self._due: list[list[int]] = [[] for _ in range(self._block_size)]
        for row, request in enumerate(self.requests):
            self._due[-request.num_computed % self._block_size].append(row)

    @staticmethod
    def fits(request: Request) -> bool:
        """Whether it does nothing but decode, and has begun to."""
        return request.scheduled_at is not None and PersistentBatch.decodes(request)

    @staticmethod
    def decodes(request: Request) -> bool:
        """Whether it has nothing else to do, from its first step on if that is to come."""
        return (
            request.num_pending == 1
            and request.embedding is None
            and request.prompt_logprobs is None
            and not request.cache_points
        )

    def plan(self, device: torch.device) -> SamplingPlan:
        """The sampling plan of all rows; it moves on with every draw."""
        if self._plan is None:
            self._plan = SamplingPlan([request.row for request in self.requests], device)
        return self._plan

    @property
    def num_context(self) -> int:
        """Tokens that the next pass finds computed, of all requests together."""
        return self._first_context + self.num_computed * len(self.requests)

    @property
    def has_computed(self) -> bool:
        """All turns that began: it may go on to the next."""
        return self.num_computed == self.decoding.turn + 1

    @property
    def ends_with_this_turn(self) -> bool:
        """Whether this turn is some request's last, whatever is sampled."""
        return self.decoding.turn + 1 >= self._num_sure

    def make_room(self, drawn: Tensor | None = None) -> bool:
        """Begin the next turn. False if there are not blocks for all; some may have grown.

        Its tokens are `drawn` [R], on their device, where their requests do not have them yet.
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
        """The pass of the first pending turn is over. Requests that left have nothing of it."""
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
        """Rows whose computed tokens, when `turn` begins, fill their blocks to the last slot."""
        return self._due[turn % self._block_size]

    def _next_tokens(self) -> list[int]:
        return [request.tokens[-1] for request in self.requests]
