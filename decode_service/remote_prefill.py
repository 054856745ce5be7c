"""Getting a prompt computed by a prefill replica, and its KV into this replica's engine.

    ask P ---------> granted ------> reserve blocks, fetch the KV while P computes it
                     first token --> recorded at once: the client need not wait for the KV
                     KV sealed ----> adopted: the request joins the running batch

Whatever happens in between (refused, lost, cancelled, bad KV), no lease outlives `run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from baton.core.clock import Clock
from baton.core.errors import BatonError, TransferAborted, Unavailable
from baton.core.ids import TransferId, new_transfer_id
from baton.core.messages import PrefillDone, PrefillGranted, PrefillRequest, ReplicaAddress
from baton.decode_service.arriving import ArrivingPrompts
from baton.decode_service.generating import Generating
from baton.decode_service.prefill_client import PrefillClient
from baton.engine.engine import Engine
from baton.engine.engine_thread import EngineThread
from baton.engine.request import Request
from baton.kv_transfer.fetch import Fetcher, TransferReport
from baton.kv_transfer.receiver import AbortReason, Receiver
from baton.kv_transfer.reservation import Reservation

OnFirstToken = Callable[[Generating, PrefillDone], None]
Events = AsyncGenerator[PrefillGranted | PrefillDone, None]
E = TypeVar("E", PrefillGranted, PrefillDone)

END_OF_CALL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePrefill:
    engine: Engine
    thread: EngineThread
    receiver: Receiver
    fetcher: Fetcher
    client: PrefillClient
    arriving: ArrivingPrompts = field(default_factory=ArrivingPrompts)
    timeout_s: float
    clock: Clock

    async def run(
        self, generating: Generating, peer: ReplicaAddress, on_first_token: OnFirstToken
    ) -> None:
        """Return with the request in the engine, or finished by its first token.

        Raises BatonError if another way must be found. If `generating.prefill` is set by then, the
        first token is known and given out, and only the KV is missing.
        """
        transfer_id = new_transfer_id()
        request = self._request(generating, transfer_id)
        generating.prefilled_by = peer
        fetching: asyncio.Task[TransferReport] | None = None
        events = self.client.prefill(peer, request)
        try:
            with self.arriving.announced(generating.message):
                granted = await self._next(events, PrefillGranted, peer)
                generating.num_cached_by_sender = granted.num_cached
                fetching = await self._start_fetch(generating, peer, granted)
                on_first_token(generating, await self._next(events, PrefillDone, peer))
                if generating.is_over:
                    return
                generating.transfer = await fetching
                adopted = await generating.make_request()
                await self.thread.call(lambda: self._adopt(adopted, transfer_id))
            await self._let_the_call_end(events)
        except BatonError:
            _raise_cause(fetching)
            raise
        finally:
            if generating.prefill is None:
                generating.prefilled_by = None
            # Before anything that waits, where a cancel could cut this short.
            self._release(transfer_id)
            if fetching is not None:
                fetching.cancel()
            await events.aclose()
            if fetching is not None:
                await asyncio.gather(fetching, return_exceptions=True)

    async def close(self) -> None:
        """Return when every prefill replica has been told how its transfers ended."""
        await self.fetcher.close()
        await self.client.close()

    async def _next(self, events: Events, kind: type[E], peer: ReplicaAddress) -> E:
        event = await anext(events, None)
        if not isinstance(event, kind):
            what = "its end" if event is None else type(event).__name__
            raise Unavailable(f"{peer.replica_id} sent {what} where {kind.__name__} was due")
        return event

    async def _let_the_call_end(self, events: Events) -> None:
        """P ends it on hearing that the transfer is sealed; cutting it would look like a crash."""
        with suppress(BatonError, TimeoutError):
            async with asyncio.timeout(END_OF_CALL_S):
                await anext(events, None)

    def _request(self, generating: Generating, transfer_id: TransferId) -> PrefillRequest:
        message = generating.message
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
            priority=message.priority,
            time_left_ms=min(timeout_ms, message.time_left_ms or timeout_ms),
        )

    async def _start_fetch(
        self, generating: Generating, peer: ReplicaAddress, granted: PrefillGranted
    ) -> asyncio.Task[TransferReport]:
        """Reserve blocks and let the KV come. Raises TransferAborted for want of room."""
        message = generating.message

        def reserve() -> Reservation | None:
            if self.engine.is_starving:
                return None
            return self.receiver.reserve(
                granted.transfer_id,
                granted.sender_epoch,
                tokens=(*message.prompt, *message.output),
                salt=message.salt,
                time_left_s=self.timeout_s,
                now=self.clock(),
            )

        reservation = await self.thread.call(reserve)
        if reservation is None:
            raise TransferAborted("no blocks left for a handoff: computed locally")
        return asyncio.create_task(self.fetcher.fetch(reservation, peer.address))

    def _adopt(self, request: Request, transfer_id: TransferId) -> None:
        """On the engine's thread: from the lease to the running batch, with no step between."""
        lease = self.receiver.adopt(transfer_id)
        try:
            self.engine.adopt(request, lease)
        except BaseException:
            self.engine.pool.release(lease)
            raise

    def _release(self, transfer_id: TransferId) -> None:
        """Nothing happens to a transfer that was adopted or aborted before."""
        self.thread.post(lambda: self.receiver.abort(transfer_id, AbortReason.CANCELLED))


def _raise_cause(fetching: asyncio.Task[TransferReport] | None) -> None:
    """Raise what ended the transfer, if it has failed: P, told of it, then ended its call early."""
    if fetching is not None and fetching.done() and not fetching.cancelled():
        fetching.result()
