"""One prefill replica: takes prompts, computes their KV, offers it to a decode replica.

    prefill(request)   refused at once | pulled -> queued -> granted -> computed -> first token
    KvPublisher        on the engine's thread: publishes the KV while it is computed

Everything in this file runs on the event loop. The last layers of a prompt are published once its
first token has left, which nothing may hold up: sending KV takes the interpreter, and processors.

Plain Python on purpose. `platform/cluster/replica_actor.py` turns it into an actor; tests just
build one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

from baton.core.errors import EngineFailed, Unavailable
from baton.core.ids import Epoch, TransferId
from baton.core.messages import (
    PrefillDone,
    PrefillGranted,
    PrefillProgress,
    PrefillRequest,
    PullOffered,
    PullRequest,
)
from baton.core.replicas import Capacity, Demand
from baton.core.tracing import Span
from baton.engine.engine import Engine
from baton.engine.request.step_report import RequestOutput, StepReport
from baton.engine.step_hooks import StepHooks
from baton.kv_transfer.exchange import ExchangeParts
from baton.kv_transfer.layouts.plan import check_layouts
from baton.prefill_service.kv_publisher import KvPublisher
from baton.prefill_service.lending import Lending
from baton.prefill_service.open_prompts import Event, OpenPrompt, OpenPrompts
from baton.prefill_service.session import PrefillSession
from baton.replica_core.replica_core import ReplicaCore, RoleHooks

ENTER_S = 0.002
"""For this long nothing is reported of a prompt unless it is scheduled: an idle engine starts
undisturbed, and its own report is enough."""


class PrefillWorker:
    def __init__(self, engine: Engine, parts: ExchangeParts, *, max_queued_tokens: int) -> None:
        self._max_queued_tokens = max_queued_tokens
        self.prompts = OpenPrompts(max_queued_tokens)
        self._lending = Lending(self.prompts, engine.max_chunk, self._room)
        self._given_up = ""
        """Why nothing can be lent here any more."""
        hooks = RoleHooks(  # the core needs them before there is a publisher, which needs the core
            on_tick=self._on_tick,
            on_step=lambda report: self.publisher.on_step(report),
            on_failure=self._on_failure,
            on_transfer_ended=lambda transfer_id: self.publisher.on_transfer_ended(transfer_id),
            in_step=StepHooks(
                on_scheduled=lambda request: self.publisher.on_scheduled(request),
                on_layer=lambda layer, chunks: self.publisher.on_layer(layer, chunks),
            ),
        )
        self.core = ReplicaCore(engine, parts, hooks)
        self._engine = engine
        self._thread = self.core.thread
        self._held = self.core.kv.sender.held
        self.publisher = KvPublisher(
            engine, self._thread, self.core.kv.sender, self.prompts, self._receive
        )

    async def prefill(self, message: PrefillRequest) -> AsyncGenerator[Event, None]:
        """Yield the grant when its turn comes, then the first token; end when the transfer does.

        Closing the iterator stops the computation and aborts the transfer: a decode replica that
        dies or loses interest cuts the call, and its blocks are free at once.
        Raises Overloaded at once when too much is queued, LayoutMismatch, InvalidRequest.
        """
        check_layouts(self._engine.pool.layout, message.layout)
        self._held.check(1)  # the block of the last token is never shared
        prompt = self.prompts.admit(message)
        span = self.core.tracer.start("prefill", message.trace, "server")
        entering = asyncio.create_task(self._enter(prompt))
        first = asyncio.create_task(prompt.events.get())
        try:
            await asyncio.wait((first,), timeout=ENTER_S)
            self._publish_capacity()
            if message.wants_progress and not (first.done() and message.joins_progress):
                yield PrefillProgress()  # from now on it is missed when it does not come
            event = await first
            while event is not None:
                if isinstance(event, Exception):
                    raise event
                if span.is_recording:
                    _describe(span, event, message)
                yield event
                if isinstance(event, PrefillDone):  # it has left
                    show = partial(self.publisher.show, message.transfer_id)
                    await self._thread.interject(show)
                event = await prompt.events.get()
        except Exception as error:
            span.end(str(error))
            raise
        finally:
            entering.cancel()
            first.cancel()
            span.end()
            self._leave(prompt)
            await asyncio.gather(entering, first, return_exceptions=True)

    def open_session(self, gateway_epoch: Epoch) -> PrefillSession:
        """Raises Unavailable once the engine died or was stopped: all that came could only fail."""
        if self._given_up:
            raise Unavailable(self._given_up)
        session = PrefillSession(gateway_epoch, self.core.step_times)
        self._lending.join(session)
        self._publish_capacity()
        return session

    def close_session(self, session: PrefillSession) -> None:
        """The stream is gone: what the gateway was lent is back."""
        self._lending.leave(session)
        self._publish_capacity()

    def observe(self, session: PrefillSession, demand: Demand) -> None:
        """Take note of what waits at the gateway."""
        self._lending.observe(session, demand)
        self._publish_capacity()

    def pull(self, request: PullRequest) -> AsyncGenerator[PullOffered, None]:
        """See `baton.kv_transfer.pulling.peer.PullService`."""
        self.core.check_open()
        return self.core.kv.lender.lend(request)

    def begin_drain(self) -> None:
        """Accept nothing more. May be repeated."""
        self.core.is_draining = True
        self.prompts.max_queued_tokens = 0
        self._publish_capacity()

    def end_drain(self) -> None:
        """Accept prompts again. May be repeated."""
        self.core.is_draining = False
        self.allow(self._max_queued_tokens)

    def allow(self, max_queued_tokens: int) -> None:
        """Set the limit of queued tokens from now on; while it drains, nothing is accepted."""
        self._max_queued_tokens = max_queued_tokens
        self.prompts.max_queued_tokens = 0 if self.core.is_draining else max_queued_tokens
        self._on_tick()

    async def drain(self) -> None:
        """Accept nothing more and return when the last request has left."""
        self.begin_drain()
        await self.prompts.is_idle.wait()
        await self.core.kv.lender.is_idle.wait()

    @property
    def num_sessions(self) -> int:
        """Streams of gateways."""
        return self._lending.num_sessions

    @property
    def num_requests(self) -> int:
        return len(self.prompts)

    @property
    def num_open(self) -> int:
        """Requests that have yet to leave, to wait for the end of a drain."""
        return max(self.num_requests, self.core.kv.lender.num_open)

    async def stop(self) -> None:
        self._end_sessions("the replica is shutting down")
        await self.core.stop()

    def capacity(self) -> Capacity:
        return self.core.capacity(
            max_open=0,
            num_running=self._engine.num_running,
            num_waiting=self._engine.num_waiting,
            num_queued_tokens=self.prompts.num_queued_tokens,
        )

    def metrics(self) -> dict[str, float]:
        return self.core.metrics()

    async def _enter(self, prompt: OpenPrompt) -> None:
        """Bring a prompt into the engine, with KV from other replicas. Its events are reported
        meanwhile, because an engine that hangs never accepts it."""
        message = prompt.message
        try:
            grammar = message.sampling.grammar
            if grammar is not None:
                prompt.request.matcher = await self.core.matchers.begin(grammar).after(
                    message.output
                )
            known = (*message.prompt, *message.output)
            sources = () if message.source is None else (message.source,)
            async with self.core.kv.prefix_of(known, message.salt, sources, tenant=message.tenant):
                await self._thread.call(lambda: self.publisher.begin(message, prompt.request))
        except Exception as error:
            prompt.events.put_nowait(error)

    def _leave(self, prompt: OpenPrompt) -> None:
        """End what is left of a prompt; nothing happens to what is over already."""
        self.prompts.remove(prompt)
        self._thread.post(lambda: self.publisher.abandon(prompt.message.transfer_id))
        self._publish_capacity()

    def _on_tick(self) -> None:
        self._lending.learn(self.core.step_times())
        self._publish_capacity()
        if not self._engine.has_work:  # what is open waits for something else: KV, a grammar
            self.prompts.report_progress()

    def _room(self) -> int | None:
        """Tokens whose KV could be held until decode replicas have fetched it; None: any."""
        num_left = self._held.num_left
        return None if num_left is None else num_left * self._engine.pool.layout.block_size

    def _publish_capacity(self) -> None:
        self._lending.publish(self.capacity(), self._engine.clock())

    def _receive(self, report: StepReport) -> None:
        self._deliver(report.outputs)
        self._publish_capacity()

    def _deliver(self, outputs: tuple[RequestOutput, ...]) -> None:
        for output in outputs:
            self.core.ledger.sample(len(output.tokens))
            prompt = self.prompts.get(output.request.request_id)
            if prompt is None:
                self.core.ledger.settle(delivered=0, discarded=len(output.tokens))
            elif output.error is not None:
                prompt.events.put_nowait(output.error)
            else:
                self.core.ledger.settle(delivered=len(output.tokens), discarded=0)
                prompt.is_computed = True
                prompt.events.put_nowait(_done(prompt.message.transfer_id, output))

    def _give_up(self, error: EngineFailed) -> None:
        self.prompts.fail_all(error)
        self._end_sessions(str(error))

    def _end_sessions(self, reason: str) -> None:
        self._given_up = self._given_up or reason
        self._lending.end()

    def _on_failure(self, failure: BaseException) -> None:
        """Called on the engine's thread."""
        error = EngineFailed(f"the engine's thread died: {failure!r}")
        self._thread.tell(lambda: self._give_up(error))


def _describe(span: Span, event: Event, message: PrefillRequest) -> None:
    """Add the phases that an event ends to the span, once their length is known."""
    if isinstance(event, PrefillProgress):
        return
    if isinstance(event, PrefillGranted):
        span.set(
            {
                "baton.request_id": message.request_id,
                "baton.prompt_tokens": event.num_tokens,
                "baton.cached_tokens": event.num_cached,
            }
        )
        return
    prefill_s = event.prefill_ms / 1e3
    span.record("queue", event.queue_ms / 1e3, ended_ago_s=prefill_s)
    span.record("compute", prefill_s)


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
