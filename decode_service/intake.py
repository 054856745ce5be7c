"""Brings requests into the engine of a decode replica.

    embedding, prompt logprobs --------------------------> computed here: P sends neither
    it runs elsewhere, and is to move here --------------> its KV is pulled, adopted
    else, from the first prefill replica that can -------> handed off, adopted
          none can, or none was named -------------------> computed here, after the prefix that is
                                                           cached here or at another replica, or
                                                           being received for another request

A grammar is compiled meanwhile; the request joins the engine when it is ready. Equal prompts never
wait for the grammar of one that is computed here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from baton.core.errors import BatonError, InvalidRequest, NoRoom
from baton.core.replicas import ReplicaAddress
from baton.decode_service.generating import Generating
from baton.decode_service.prefill_failures import PrefillFailures
from baton.decode_service.pulling import Pulling
from baton.decode_service.remote_prefill import OnFirstToken, RemotePrefill
from baton.engine.engine import Engine
from baton.engine.engine_thread import EngineThread
from baton.kv_transfer.exchange import KvExchange

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    engine: Engine
    thread: EngineThread
    remote_prefill: RemotePrefill
    pulling: Pulling
    prefill_failures: PrefillFailures
    on_first_token: OnFirstToken

    async def enter(self, generating: Generating) -> None:
        """Return with the request in the engine, or over. Raises BatonError if it cannot be."""
        if generating.is_read_here:
            await self._add(generating)
            return
        message = generating.message
        source = message.source if message.is_moving else None
        if source is not None and await self.pulling.take_over(generating, source):
            return
        async with _reading_ahead(self.pulling.kv, generating):
            for peer in message.prefill:
                if await self._is_prefilled_by(peer, generating):
                    return
        if generating.matcher is not None:
            await generating.matcher.is_compiled()  # before others wait for this prompt's KV
        await self.remote_prefill.arriving.wait_for(message)
        if source is not None:  # what it holds has been asked for
            await self._add(generating)
            return
        with self.remote_prefill.arriving.announced(message):
            async with self.pulling.prefix(generating):
                await self._add(generating)

    async def _add(self, generating: Generating) -> None:
        request = await generating.make_request()
        await self.thread.call(lambda: self.engine.add(request))

    async def _is_prefilled_by(self, peer: ReplicaAddress, generating: Generating) -> bool:
        """True if the request is in the engine or over; False if another way must be found."""
        if generating.prefill is not None:
            return False  # the first token is final: only KV is missing, and this engine makes it
        why_not = self.pulling.kv.why_avoided(peer)
        if why_not:
            generating.notes.append(f"{peer.replica_id} was not asked: {why_not}")
            return False
        try:
            await self.remote_prefill.run(generating, peer, self.on_first_token)
        except BatonError as error:
            generating.notes.append(str(error))
            engine_id, about = generating.engine_id, generating.about
            if isinstance(error, NoRoom):  # here
                log.info("%s: %s", engine_id, error, extra=about)
            else:
                self.prefill_failures.failed(peer.replica_id, error, engine_id, about)
            if isinstance(error, InvalidRequest) and generating.matcher is not None:
                # P may lack what we have: only our own refusal ends the request.
                await generating.matcher.is_compiled()
            return False
        self.prefill_failures.worked(peer.replica_id)
        return True


@asynccontextmanager
async def _reading_ahead(kv: KvExchange, generating: Generating) -> AsyncIterator[None]:
    """Bring in what this replica's tiers hold of the prompt, as `generating.read_ahead`.

        ask P ------> granted --> wait for it --> reserve blocks: those it brought need not be sent
          `-- swap in, let go ------'

    P does not wait: it computes from its grant on. D does not wait long: the tiers have a deadline.
    Once let go the blocks are the most recently used of the prefix cache, and shared a moment
    later.
    """
    if kv.tiers is None or not generating.message.prefill:
        yield
        return
    generating.read_ahead = asyncio.create_task(_swap_in(kv, generating))
    try:
        yield
    finally:
        generating.read_ahead.cancel()
        await asyncio.gather(generating.read_ahead, return_exceptions=True)


async def _swap_in(kv: KvExchange, generating: Generating) -> None:
    message = generating.message
    known = generating.known_tokens
    async with kv.prefix_of(known, message.salt, tenant=message.tenant) as brought_in:
        generating.num_pulled += brought_in.num_new
        if brought_in.note:
            generating.notes.append(brought_in.note)
