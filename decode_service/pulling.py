"""Brings KV that another replica holds into this replica's engine.

    a request that moves here   its KV, all of it ------> adopted: it goes on where it was
                                less than all of it ----> in the prefix cache, the rest is computed;
                                                          so is what was in it already
    a prompt cached elsewhere   its full blocks --------> held until the request is in the engine
    a handoff that ended early  the missing part -------> likewise

A failure leaves a note, and the request takes another way into the engine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from baton.core.replicas import ReplicaAddress
from baton.core.tracing import Span
from baton.core.wording import count_of
from baton.decode_service.adoption import adopt
from baton.decode_service.generating import Generating
from baton.engine.engine import Engine
from baton.engine.engine_thread import EngineThread
from baton.kv_transfer.exchange import KvExchange
from baton.kv_transfer.pulling.peer import MovingRequest
from baton.kv_transfer.pulling.prefix_fetch import FetchedPrefix

MIN_ASKED_TOKENS = 256
"""Fewer whose KV did not come are computed: who might have them is not known for sure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulling:
    engine: Engine
    thread: EngineThread
    kv: KvExchange

    async def take_over(self, generating: Generating, source: ReplicaAddress) -> bool:
        """The request stops at `source` and goes on here; False if another way must be found.

        Raises BatonError if it can go on nowhere.
        """
        message = generating.message
        wanted = generating.known_tokens[:-1]
        if not wanted:
            return False
        generating.is_arriving = True
        leaving = MovingRequest(request_id=message.request_id, attempt=message.attempt - 1)
        peer = self.kv.peers.source(source, leaving, tenant=message.tenant)
        moving = self.kv.prefixes.bring_in(wanted, message.salt, peer, tenant=message.tenant)
        span = generating.span.child("take over")
        async with _traced(span, source, moving) as brought_in:
            self._take_note(generating, brought_in)
            num_here = brought_in.num_tokens
            num_missing = len(wanted) - num_here
            if not num_here or (num_missing > num_here and message.prefill):
                return False
            came = f"with the KV of {count_of(num_here, 'token')}"
            if not brought_in.num_new:
                came = f"to where the KV of {count_of(num_here, 'token')} was"
            generating.notes.append(f"moved from {source.replica_id} {came}")
            await self._enter(generating, brought_in, is_whole=not num_missing)
        return True

    @asynccontextmanager
    async def prefix(self, generating: Generating) -> AsyncIterator[None]:
        """Within the context, what other replicas hold of the known tokens is in the prefix cache.

        They are the source that the router named and, where KV of a prefill replica came in part
        or not at all, the others that it named: the router prefers who has much of a prompt.
        """
        message, known = generating.message, generating.known_tokens
        sources = [] if message.source is None else [message.source]
        if generating.num_lost >= MIN_ASKED_TOKENS:
            tried = {message.source, generating.prefilled_by}
            sources += [peer for peer in message.prefill if peer not in tried]
        prefix = self.kv.prefix_of(known, message.salt, sources, tenant=message.tenant)
        if sources:
            prefix = _traced(generating.span.child("pull"), sources[0], prefix)
        async with prefix as brought_in:
            self._take_note(generating, brought_in)
            yield

    async def _enter(
        self, generating: Generating, brought_in: FetchedPrefix, *, is_whole: bool
    ) -> None:
        request, transfer_id = await generating.make_request(), brought_in.transfer_id
        if is_whole and transfer_id is not None:
            generating.num_taken_over = brought_in.num_tokens
            await self.thread.call(
                lambda: adopt(self.engine, self.kv.receiver, request, transfer_id)
            )
        else:
            await self.thread.call(lambda: self.engine.add(request))

    def _take_note(self, generating: Generating, brought_in: FetchedPrefix) -> None:
        generating.num_pulled += brought_in.num_new
        if (report := brought_in.report) is not None:
            # Or the router would take a handoff that ended early for a quick one.
            whole_ms = generating.lost_ms + report.transfer_ms
            generating.transfer = replace(report, transfer_ms=whole_ms)
        if brought_in.note:
            generating.notes.append(brought_in.note)


@asynccontextmanager
async def _traced(
    span: Span, source: ReplicaAddress, pulling: AbstractAsyncContextManager[FetchedPrefix]
) -> AsyncIterator[FetchedPrefix]:
    """The span is over once the KV is here, or will not come: what is done with it is not the
    way's."""
    async with AsyncExitStack() as held:
        try:
            brought_in = await held.enter_async_context(pulling)
        except BaseException as error:
            span.end(str(error) or type(error).__name__)
            raise
        if span.is_recording:
            pulled = brought_in.num_new
            span.set({"baton.source": source.replica_id, "baton.pulled_tokens": pulled})
        span.end("" if brought_in.num_new else brought_in.note)
        yield brought_in
