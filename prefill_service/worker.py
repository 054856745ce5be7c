"""One prefill replica: takes prompts, computes their KV, offers it to a decode replica.

    prefill(request)   refused at once | pulled -> queued -> granted -> computed -> first token
    engine thread      on_scheduled: grant    on_layer: publish what is there    on_step: finish

Plain Python on purpose. `platform/cluster/replica_actor.py` turns it into an actor; tests just
build one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from baton.core.errors import EngineFailed, Overloaded
from baton.core.ids import Epoch, TransferId
from baton.core.kv_pool import Census, Holder, HolderKind
from baton.core.ledger import TokenLedger
from baton.core.messages import (
    Capacity,
    PrefillDone,
    PrefillGranted,
    PrefillRequest,
    PullOffered,
    PullRequest,
)
from baton.engine.engine import Engine
from baton.engine.engine_thread import EngineThread
from baton.engine.grammar.matchers import Matchers
from baton.engine.kv_feed import KvFeed
from baton.engine.request.cache_points import cache_metrics
from baton.engine.request.request import Request
from baton.engine.request.step_report import RequestOutput, StepReport
from baton.engine.schedule.scheduler import ScheduledChunk
from baton.kv_transfer.exchange import ExchangeConfig, KvExchange
from baton.kv_transfer.handoff.auditor import AuditReport, audit
from baton.kv_transfer.handoff.transport import Transport
from baton.kv_transfer.layouts.agreement import check_layouts
from baton.prefill_service.open_prompts import Event, OpenPrompt, OpenPrompts
from baton.proto.channels import Channels

EXPIRY_CHECK_S = 0.25
STOP_TIMEOUT_S = 10.0


class PrefillWorker:
    def __init__(
        self,
        engine: Engine,
        *,
        epoch: Epoch,
        max_queued_tokens: int,
        transport: Transport,
        channels: Channels,
        exchange: ExchangeConfig,
    ) -> None:
        self.engine = engine
        self.epoch = epoch
        self.is_draining = False
        self.prompts = OpenPrompts(max_queued_tokens)
        self.ledger = TokenLedger()
        self.thread = EngineThread(engine, self._on_step, on_failure=self._on_failure)
        self.kv_feed = KvFeed(engine.pool, self.thread)
        self.kv = KvExchange(
            pool=engine.pool,
            owner=self.thread,
            epoch=epoch,
            transport=transport,
            channels=channels,
            clock=engine.clock,
            config=exchange,
        )
        self.sender = self.kv.sender
        self.matchers = Matchers(engine.grammars)
        self._clock = engine.clock
        self._housekeeping: asyncio.Task[None] | None = None
        self.sender.on_ended = self._on_transfer_ended
        engine.reclaim = self.kv.reclaim
        engine.on_scheduled = self._on_scheduled
        engine.on_layer = self._on_layer

    async def start(self) -> None:
        self.thread.start()
        self._housekeeping = asyncio.create_task(self._expire_leases())

    async def prefill(self, message: PrefillRequest) -> AsyncGenerator[Event, None]:
        """Yield the grant when its turn comes, then the first token; end when the transfer does.

        Closing the iterator stops the computation and aborts the transfer: a decode replica that
        dies or loses interest cuts the call, and its blocks are free at once.
        Raises Overloaded at once when too much is queued, LayoutMismatch, InvalidRequest.
        """
        check_layouts(self.engine.pool.layout, message.layout)
        self.sender.held.check(1)  # the block of the last token is never shared
        prompt = self.prompts.admit(message)
        try:
            grammar = message.sampling.grammar
            if grammar is not None:
                prompt.request.matcher = await self.matchers.begin(grammar).behind(message.output)
            known = (*message.prompt, *message.output)
            async with self.kv.prefix_of(
                known, message.salt, message.source, tenant=message.tenant
            ):
                await self.thread.call(lambda: self._begin(prompt))
            while (event := await prompt.events.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self._leave(prompt)

    def pull(self, request: PullRequest) -> AsyncGenerator[PullOffered, None]:
        """See `baton.kv_transfer.pulling.peer.Lends`."""
        return self.kv.lender.lend(request)

    def begin_drain(self) -> None:
        """Accept nothing more. May be repeated."""
        self.is_draining = True
        self.prompts.max_queued_tokens = 0

    async def drain(self) -> None:
        """Accept nothing more and return when the last request has left."""
        self.begin_drain()
        await self.prompts.is_idle.wait()
        await self.kv.lender.is_idle.wait()

    @property
    def num_open(self) -> int:
        """Requests that have yet to leave, for whoever waits for the end of a drain."""
        return max(len(self.prompts), self.kv.lender.num_open)

    async def stop(self) -> None:
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        self.matchers.close()
        await self.kv.close()
        await asyncio.to_thread(self.thread.stop, STOP_TIMEOUT_S)

    def check_health(self, *, limit_s: float) -> None:
        """Raise EngineFailed if the engine's thread died or has not advanced for `limit_s`."""
        self.thread.check_health(limit_s=limit_s)

    async def audit(self) -> AuditReport:
        """Judged off the engine's thread: a large pool takes longer than a step."""
        return await asyncio.to_thread(audit, *await self.thread.call(self._take_census))

    def capacity(self) -> Capacity:
        return Capacity(
            max_open=0,
            num_running=self.engine.num_running,
            num_waiting=self.engine.num_waiting,
            num_queued_tokens=self.prompts.num_queued_tokens,
            num_blocks=self.engine.pool.num_blocks,
            num_free_blocks=self.engine.pool.num_available,
            is_draining=self.is_draining,
        )

    def metrics(self) -> dict[str, float]:
        return {
            **self.engine.stats.as_metrics(),
            **cache_metrics(self.engine.pool),
            **self.ledger.as_metrics(),
            **self.kv.metrics(),
        }

    # On the event loop.

    def _leave(self, prompt: OpenPrompt) -> None:
        """Whatever is left of it ends; nothing happens to what is over already."""
        self.prompts.remove(prompt)
        self.thread.post(lambda: self._abandon(prompt.message.transfer_id))

    def _deliver(self, outputs: tuple[RequestOutput, ...]) -> None:
        for output in outputs:
            self.ledger.sample(len(output.tokens))
            prompt = self.prompts.get(output.request.request_id)
            if prompt is None:
                self.ledger.settle(delivered=0, discarded=len(output.tokens))
            elif output.error is not None:
                prompt.events.put_nowait(output.error)
            else:
                self.ledger.settle(delivered=len(output.tokens), discarded=0)
                prompt.is_computed = True
                prompt.events.put_nowait(_done(prompt.message.transfer_id, output))

    async def _expire_leases(self) -> None:
        while self.thread.failure is None:
            await asyncio.sleep(EXPIRY_CHECK_S)
            await self.thread.call(self.kv.expire)
            self.thread.post(self.kv_feed.publish)  # of what changed without a step

    # On the engine's thread.

    def _begin(self, prompt: OpenPrompt) -> None:
        message = prompt.message
        self.engine.add(prompt.request)
        self.sender.offer(
            message.transfer_id,
            message.receiver_epoch,
            source=Holder(HolderKind.REQUEST, message.transfer_id),
            num_tokens=len(message.prompt) + len(message.output),
            time_left_s=message.time_left_ms / 1e3,
            now=self._clock(),
        )

    def _abandon(self, transfer_id: TransferId) -> None:
        self.engine.abort(transfer_id)
        self.sender.abort(transfer_id, "the prefill call ended")

    def _on_scheduled(self, request: Request) -> None:
        layout, transfer_id = self.engine.pool.layout, TransferId(request.request_id)
        num_shared = request.num_cached // layout.block_size
        num_fresh = layout.num_blocks_for(len(request.tokens)) - num_shared
        try:
            self.sender.take(transfer_id, num_fresh)
        except Overloaded as error:
            self._refuse(transfer_id, error)
            return
        granted = PrefillGranted(
            transfer_id=transfer_id,
            sender_epoch=self.epoch,
            layout=layout,
            num_tokens=len(request.tokens),
            num_cached=request.num_cached,
        )
        self.thread.tell(lambda: self.prompts.put_event(transfer_id, granted))
        self.sender.publish(transfer_id, request.num_computed)  # found in the cache

    def _refuse(self, transfer_id: TransferId, why: Overloaded) -> None:
        """Its turn has come, and others hold too much. Nothing of it is published from now on."""
        self.thread.tell(lambda: self.prompts.put_event(transfer_id, why))
        self.sender.abort(transfer_id, str(why))
        self.engine.abort(transfer_id)

    def _on_transfer_ended(self, transfer_id: TransferId) -> None:
        self.kv.lender.ended(transfer_id)
        self.thread.tell(lambda: self.prompts.put_event(transfer_id, None))

    def _on_layer(self, layer: int, chunks: Sequence[ScheduledChunk]) -> None:
        for chunk in chunks:
            request = chunk.request
            num_computed = request.num_computed + chunk.num_tokens
            self.sender.publish(TransferId(request.request_id), num_computed, layer)

    def _on_step(self, report: StepReport) -> None:
        if report.outputs:
            self.thread.tell(lambda: self._deliver(report.outputs))  # first: tokens are waited for
        self.kv.ran(report.num_tokens, report.forward_ms / 1e3)
        self.kv_feed.publish()
        for output in report.outputs:  # the end of a transfer must not overtake the first token
            transfer_id = TransferId(output.request.request_id)
            if output.error is None:
                self.sender.finish(transfer_id)
            else:  # its layers may have left before the error was known
                self.sender.abort(transfer_id, str(output.error))

    def _on_failure(self, failure: BaseException) -> None:
        error = EngineFailed(f"the engine's thread died: {failure!r}")
        self.thread.tell(lambda: self.prompts.fail_all(error))

    def _take_census(self) -> tuple[Census, frozenset[str], frozenset[TransferId]]:
        """With the requests and the leases that may hold blocks at this moment."""
        return self.engine.pool.census(), self.engine.request_ids, self.kv.lease_ids


def _done(transfer_id: TransferId, output: RequestOutput) -> PrefillDone:
    request = output.request
    arrived, scheduled, first = request.arrived_at, request.scheduled_at, request.first_token_at
    assert arrived is not None and scheduled is not None and first is not None
    return PrefillDone(
        transfer_id=transfer_id,
        token=output.tokens[0],
        logprob=output.logprobs[0] if output.logprobs else None,
        queue_ms=(scheduled - arrived) * 1e3,
        prefill_ms=(first - scheduled) * 1e3,
        num_computed=output.num_run,
    )
