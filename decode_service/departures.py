"""Requests that leave this replica while they run: their KV is lent to the replica they move to.

    running, or waiting -- Pull --> stopped between two steps, its blocks lent --> taken back by the
    its KV is on its way here ----> awaited, then the same                         gateway: over

A request that has stopped here computes no further token and returns none, but stays open until its
gateway takes this attempt back: the gateway knows how many of its tokens were used. If it does not,
for a while after the transfer, the attempt fails, and the gateway begins another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from baton.core.errors import BatonError, Unavailable
from baton.core.kv_pool import Holder
from baton.core.messages import PullOffered, PullRequest
from baton.decode_service.generating import Generating
from baton.decode_service.open_requests import OpenRequests
from baton.engine.engine import Engine
from baton.kv_transfer.layouts.plan import check_layouts
from baton.kv_transfer.pulling.lending import Lender

TAKE_BACK_S = 10.0
"""How long a gateway may leave a request open here that has moved away."""

Fail = Callable[[Generating, BatonError], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Departures:
    engine: Engine
    open: OpenRequests
    lender: Lender
    fail: Fail
    max_wait_s: float
    """Seconds to wait for KV on its way to a request that is to leave, however long the peer would
    wait."""

    async def pull(self, message: PullRequest) -> AsyncGenerator[PullOffered, None]:
        """See `PullService.pull`. A named request stops here, also if nothing can be lent."""
        check_layouts(self.engine.pool.layout, message.layout)  # before anything is stopped
        generating = self._leaving(message)
        hold = None if generating is None else partial(self._park, generating, message)
        try:
            if generating is not None:
                limit_s = min(message.time_left_ms / 1e3, self.max_wait_s)
                await _wait_until_movable(generating, limit_s)
            async with aclosing(self.lender.lend(message, hold)) as loan:
                async for offered in loan:
                    yield offered
        finally:
            if generating is not None:
                loop = asyncio.get_running_loop()
                loop.call_later(TAKE_BACK_S, lambda: self._give_up(generating))

    def _leaving(self, message: PullRequest) -> Generating | None:
        if message.request_id is None:
            return None
        generating = self.open.get(message.request_id)
        if generating is None or generating.has_left or generating.message.salt != message.salt:
            return None
        return generating if generating.message.attempt <= message.attempt else None

    def _give_up(self, generating: Generating) -> None:
        if generating.has_left:
            error = Unavailable("it has moved away, and its gateway has not taken it back")
            self.fail(generating, error)

    # On the engine's thread.

    def _park(self, generating: Generating, message: PullRequest, lease: Holder) -> int:
        """Stop the request, let `lease` keep its blocks; how many leading tokens are in them."""
        pool, block_size = self.engine.pool, self.engine.pool.layout.block_size
        request = self.engine.request(generating.engine_id)
        generating.has_left = True
        num_tokens = 0
        if request is not None:
            num_tokens = _num_common(request.tokens[: request.num_computed], message.tokens)
            if num_tokens < len(message.tokens):
                num_tokens -= num_tokens % block_size  # what follows is not theirs, or not there
            self.engine.synchronize()  # what is shared is not written to any more
            pool.share(request.holder, lease, pool.layout.num_blocks_for(num_tokens))
            self.engine.abort(generating.engine_id)
        if not num_tokens:  # preempted, say: its full blocks may still be cached
            return pool.hold_cached(lease, message.tokens, message.salt)
        return num_tokens


async def _wait_until_movable(generating: Generating, limit_s: float) -> None:
    """KV on its way here is awaited; what has not begun to come is not."""
    task = generating.task
    if task is None or task.done():
        return
    if not generating.is_arriving:
        generating.has_left = True
        task.cancel()
    await asyncio.wait({task}, timeout=limit_s)


def _num_common(ours: Sequence[int], theirs: Sequence[int]) -> int:
    num_both = min(len(ours), len(theirs))
    if tuple(ours[:num_both]) == tuple(theirs[:num_both]):  # as a rule, and much faster
        return num_both
    for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return index
    return num_both
