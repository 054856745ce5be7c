"""Lets a prefill replica compute a prompt, and brings its KV into this replica's engine.

    ask P ---------> granted ------> reserve blocks, fetch the KV while P computes it
                     first token --> recorded at once: the client need not wait for the KV
                     KV sealed ----> adopted: the request joins the running batch

Whatever happens in between (refused, lost, silent, stuck, cancelled, bad KV), no lease outlives
`run`; what has arrived stays in the prefix cache, see `Receiver.abort`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TypeVar

from baton.core.clock import Clock
from baton.core.errors import BatonError, NoRoom, TransferError, Unavailable
from baton.core.ids import TransferId, new_transfer_id
from baton.core.messages import (
    PrefillDone,
    PrefillGranted,
    PrefillProgress,
    PrefillRequest,
)
from baton.core.replicas import ReplicaAddress
from baton.core.tracing import Span
from baton.core.wording import count_of
from baton.decode_service.adoption import adopt
from baton.decode_service.arriving_prompts import ArrivingPrompts
from baton.decode_service.generating import Generating
from baton.decode_service.prefill_client import PrefillClient, PrefillEvents
from baton.engine.engine import Engine
from baton.engine.engine_thread import EngineThread
from baton.kv_transfer.handoff.reservation import KvSource, Reservation, WantedKv
from baton.kv_transfer.pulling.lending import Lender
from baton.kv_transfer.receiving.fetch import Fetcher, TransferReport
from baton.kv_transfer.receiving.filling import Filling
from baton.kv_transfer.receiving.receiver import AbortReason, Receiver
from baton.kv_transfer.receiving.source_patience import MissingKv, SourcePatience
from baton.kv_transfer.receiving.source_watch import SourceWatch
from baton.proto.channels import Channels
from baton.proto.ending_calls import EndingCalls

OnFirstToken = Callable[[Generating, PrefillDone], None]
E = TypeVar("E", PrefillGranted, PrefillDone)

MIN_MEASURED_TOKENS = 32
"""The time that fewer take says little of a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePrefill:
    engine: Engine
    thread: EngineThread
    receiver: Receiver
    fetcher: Fetcher
    client: PrefillClient
    channels: Channels
    lender: Lender
    arriving: ArrivingPrompts = field(default_factory=ArrivingPrompts)
    patience: SourcePatience
    compute_s: Callable[[int, int, float], float]
    """See `ReplicaCore.compute_s`."""
    timeout_s: float
    clock: Clock
    calls: EndingCalls = field(default_factory=EndingCalls)
    """Prefill calls whose KV is here: P ends them when it is notified that it is sealed."""

    async def run(
        self, generating: Generating, peer: ReplicaAddress, on_first_token: OnFirstToken
    ) -> None:
        """Return with the request in the engine, or finished by its first token.

        Raises BatonError if another way must be found. If `generating.prefill` is set by then, the
        first token is known and given out, and only the KV is missing.
        """
        transfer_id = new_transfer_id()
        asking = generating.span.child("ask for prefill", "client")
        request = self._request(generating, transfer_id, peer, asking)
        fetching: asyncio.Task[TransferReport] | None = None
        opened_at = self.clock()
        events = self.client.prefill(peer, request)
        watch = SourceWatch(self.patience, peer)
        try:
            with self.arriving.announced(generating.message):
                async with self.channels.answering(peer), watch.waits():
                    await self.fetcher.check(peer.address, peer.epoch)
                    generating.prefilled_by = peer
                    granted = await self._next(events, PrefillGranted, peer, watch)
                    _check_granted(granted, request, peer)
                    watch.granted(tells_progress=granted.tells_progress)
                    generating.num_cached_by_sender = granted.num_cached
                    generating.is_arriving = True
                    opened_at = self.clock()
                    fetching = await self._start_fetch(generating, peer, granted, watch)
                    done = await self._next(events, PrefillDone, peer, watch)
                    self._check_done(done, request, peer)
                    watch.is_coming(self._left(transfer_id, done))
                    on_first_token(generating, done)
                    if generating.is_over:
                        return
                    generating.transfer = await fetching
                generating.notes += generating.transfer.notes
                adopted = await generating.make_request()
                await self.thread.call(
                    lambda: adopt(self.engine, self.receiver, adopted, transfer_id)
                )
        except BatonError as error:
            asking.end(str(error))
            cause = _failure(fetching)  # before the transfer is given up here
            self._release(transfer_id, AbortReason.FAILED)
            if fetching is not None:
                await self._note_kept(generating, transfer_id, opened_at)
            if cause is not None and cause is not error:
                raise cause from error
            raise
        finally:
            asking.end()
            if generating.prefill is None:
                generating.prefilled_by = None
            # Before anything that waits, where a cancel could cut this short.
            self._release(transfer_id, AbortReason.CANCELLED)
            await self._end_call(events, fetching)

    async def _next(
        self, events: PrefillEvents, kind: type[E], peer: ReplicaAddress, watch: SourceWatch
    ) -> E:
        with watch.listening():
            while isinstance(event := await anext(events, None), PrefillProgress):
                watch.progressed()
        if not isinstance(event, kind):
            what = "its end" if event is None else type(event).__name__
            raise Unavailable(f"{peer.replica_id} sent {what} where {kind.__name__} was due")
        return event

    def _check_done(self, done: PrefillDone, request: PrefillRequest, peer: ReplicaAddress) -> None:
        """Before the token is given out: from then on it is final."""
        vocab_size = self.engine.info.vocab_size
        if done.transfer_id != request.transfer_id or not 0 <= done.token < vocab_size:
            raise Unavailable(f"{peer.replica_id} sent a first token that cannot be: {done.token}")

    def _left(self, transfer_id: TransferId, done: PrefillDone) -> Callable[[], MissingKv]:
        """The missing KV, now that everything is computed; KV that has arrived is kept from now
        on."""
        try:
            filling = self.receiver.filling(transfer_id)
        except TransferError:  # it has failed already, which its task reports
            return MissingKv
        filling.note_computed()
        return lambda: MissingKv(filling.num_missing_bytes, self._here_s(filling, done))

    def _here_s(self, filling: Filling, done: PrefillDone) -> float:
        """Seconds in which this engine, if nobody waits for it, would compute what is missing."""
        as_p_s = inf
        if done.num_computed >= MIN_MEASURED_TOKENS:
            as_p_s = done.prefill_ms / 1e3 / done.num_computed
        return self.compute_s(len(filling.wanted.tokens), filling.num_verified, as_p_s)

    async def _end_call(
        self, events: PrefillEvents, fetching: asyncio.Task[TransferReport] | None
    ) -> None:
        """Cut the call to P, unless the KV is here: then P soon learns of that, and ends the call.
        The request, and its task, may be over by then."""
        if fetching is None:
            await events.aclose()
            return
        fetching.cancel()
        if _is_sealed(fetching):
            self.calls.let_end(events)
        else:
            await events.aclose()
        await asyncio.gather(fetching, return_exceptions=True)

    def _request(
        self, generating: Generating, transfer_id: TransferId, peer: ReplicaAddress, asking: Span
    ) -> PrefillRequest:
        if asking.is_recording:
            asking.set({"baton.prefill_replica": peer.replica_id})
        message = generating.message
        source = message.source
        timeout_ms = int(self.timeout_s * 1e3)
        return PrefillRequest(
            request_id=message.request_id,
            transfer_id=transfer_id,
            receiver_epoch=self.receiver.epoch,
            layout=self.engine.pool.layout,
            prompt=message.prompt,
            output=message.output,
            sampling=message.sampling,
            salt=message.salt,
            adapter=message.adapter,
            priority=message.priority,
            tenant=message.tenant,
            cache_points=message.cache_points,
            source=None if source is None or source.epoch == peer.epoch else source,
            gateway_epoch=generating.session.gateway_epoch,
            trace=asking.context,
            wants_progress=True,
            joins_progress=True,
            time_left_ms=min(timeout_ms, message.time_left_ms or timeout_ms),
        )

    async def _start_fetch(
        self,
        generating: Generating,
        peer: ReplicaAddress,
        granted: PrefillGranted,
        watch: SourceWatch,
    ) -> asyncio.Task[TransferReport]:
        """Reserve blocks and let the KV come. Raises NoRoom."""
        message = generating.message

        def reserve() -> Reservation | str:
            if self.engine.is_starving:
                return "requests that wait here longer go first"
            source = KvSource(
                epoch=granted.sender_epoch,
                address=peer.address,
                layout=granted.layout,
                head_runs=granted.head_runs,
            )
            wanted = WantedKv(
                transfer_id=granted.transfer_id,
                sources=(source,),
                tokens=(*message.prompt, *message.output),
                salt=message.salt,
                tenant=message.tenant,
                time_left_s=self.timeout_s,
            )
            call_back = partial(self._call_back_loan, message.tenant)
            reservation = self.receiver.reserve(wanted, self.clock(), reclaim=call_back)
            return reservation or "no blocks left for a handoff"

        if generating.read_ahead is not None:  # what it brings need not be sent
            await asyncio.wait((generating.read_ahead,))
        reservation = await self.thread.call(reserve)
        if isinstance(reservation, str):
            raise NoRoom(f"{reservation}: computed locally")
        fetching = asyncio.create_task(self.fetcher.fetch(reservation, watch))
        fetching.add_done_callback(partial(_end_span, generating.span.child("transfer")))
        return fetching

    def _call_back_loan(self, tenant: str) -> bool:
        """Whether blocks of a tenant that is at its limit were lent, and come back: others may have
        what could be evicted, and no more. On the engine's thread."""
        return self.engine.pool.supply.is_at_limit(tenant) and self.lender.call_back(tenant)

    async def _note_kept(
        self, generating: Generating, transfer_id: TransferId, opened_at: float
    ) -> None:
        """Runs after its release: KV that had arrived by then is not computed again."""
        if generating.prefill is not None:
            generating.lost_ms = (self.clock() - opened_at) * 1e3
        with suppress(BatonError):  # nothing is kept of an engine that has died
            kept = await self.thread.call(lambda: self.receiver.kept(transfer_id))
            message = generating.message
            if generating.prefill is not None:
                generating.num_lost = len(message.prompt) + len(message.output) - kept.stop
            if kept:
                generating.notes.append(
                    f"kept the KV of {count_of(len(kept), 'token')} that had come"
                )

    def _release(self, transfer_id: TransferId, reason: AbortReason) -> None:
        """Nothing happens to a transfer that was adopted or aborted before."""
        self.thread.post(lambda: self.receiver.abort(transfer_id, reason))


def _is_sealed(fetching: asyncio.Task[TransferReport]) -> bool:
    return fetching.done() and not fetching.cancelled() and _failure(fetching) is None


def _check_granted(granted: PrefillGranted, request: PrefillRequest, peer: ReplicaAddress) -> None:
    """Check that the grant matches the request, and comes from the requested incarnation."""
    num_tokens = len(request.prompt) + len(request.output)
    is_asked_for = (granted.transfer_id, granted.sender_epoch, granted.num_tokens) == (
        request.transfer_id,
        peer.epoch,
        num_tokens,
    )
    if not is_asked_for:
        raise Unavailable(
            f"{peer.replica_id} granted {granted.num_tokens} tokens of {granted.transfer_id} "
            f"where {num_tokens} of {request.transfer_id} were asked for"
        )


def _end_span(span: Span, fetching: asyncio.Task[TransferReport]) -> None:
    if not span.is_recording:
        return
    if fetching.cancelled():
        span.end("cancelled")
        return
    error = fetching.exception()
    if error is None:
        report = fetching.result()
        span.set({"baton.transport": report.transport, "baton.kv_bytes": report.num_bytes})
    span.end("" if error is None else str(error))


def _failure(fetching: asyncio.Task[TransferReport] | None) -> BaseException | None:
    """The error that ended the transfer, if it has failed: P was notified, and then ended its call
    early."""
    if fetching is None or not fetching.done() or fetching.cancelled():
        return None
    return fetching.exception()
