"""The requests that decode side by side, for as long as nobody comes or goes.

    turn:   make_room -> the pass -> computed -> each gets its next token -> make_room ...

All of them move on by one token a turn, so who needs a block next, and whose last block is full, is
known in advance: with S tokens a block, a request of c computed tokens is due in each turn t with
(c + t) % S == 0. Whoever is not due costs nothing but its token.
"""

from __future__ import annotations

from collections.abc import Sequence

from baton.engine.block_pool import BlockPool
from baton.engine.decoding import Decoding
from baton.engine.request import Request
from baton.engine.sampling_plan import SamplingPlan


class Lineup:
    """Its requests have blocks for one more token. To be dropped when anything else happens."""

    def __init__(self, requests: Sequence[Request], pool: BlockPool) -> None:
        self.requests = tuple(requests)
        self.decoding = Decoding(
            tokens=self._next_tokens(),
            positions=[request.num_computed for request in self.requests],
            tables=[pool.table(request.holder) for request in self.requests],
        )
        """What the runner sees of them."""
        self.sampling: SamplingPlan | None = None
        """Of all rows, once there was something to sample from."""
        self.has_computed = False
        """This turn's tokens: it may go on to the next."""
        self._pool = pool
        self._block_size = pool.layout.block_size
        self._due: list[list[int]] = [[] for _ in range(self._block_size)]
        for row, request in enumerate(self.requests):
            self._due[-request.num_computed % self._block_size].append(row)

    @staticmethod
    def fits(request: Request) -> bool:
        """Whether it does nothing but decode, and has begun to."""
        return (
            request.num_pending == 1
            and request.scheduled_at is not None
            and request.embedding is None
            and request.prompt_logprobs is None
            and not request.cache_points
        )

    def make_room(self) -> bool:
        """Begin the next turn. False if there are not blocks for all; some may have grown."""
        due = self._rows_due(self.decoding.turn + 1)
        for row in due:
            request = self.requests[row]
            if not self._pool.grow(request.holder, request.num_computed + 1):
                return False
        self.decoding.next_turn(self._next_tokens(), due)
        self.has_computed = False
        return True

    def computed(self) -> None:
        """The pass is over."""
        for request in self.requests:
            request.num_computed += 1
            request.num_run += 1
        for row in self._rows_due(self.decoding.turn + 1):
            request = self.requests[row]
            self._pool.commit(request.holder, request.tokens, request.num_computed, request.salt)
        self.has_computed = True

    def _rows_due(self, turn: int) -> Sequence[int]:
        """Rows whose computed tokens, when `turn` begins, fill their blocks to the last slot."""
        return self._due[turn % self._block_size]

    def _next_tokens(self) -> list[int]:
        return [request.tokens[-1] for request in self.requests]
