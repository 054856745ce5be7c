"""One prefill replica: takes prompts, computes their KV, offers it to a decode replica.

    prefill(request)   refused at once | pulled -> queued -> granted -> computed -> first token
    engine thread      on_scheduled: grant    on_layer: publish what is there    on_step: finish

The last layers of a prompt are published when its first token has left, which nothing may hold up:
to send KV takes the interpreter, and processors.

Plain Python on purpose. `platform/cluster/replica_actor.py` turns it into an actor; tests just
build one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from functools import partial

from baton.core.errors import EngineFailed, Overloaded, Unavailable
from baton.core.ids import Epoch, TransferId
from baton.core.kv_pool import Holder, HolderKind
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
from baton.engine.request.request import Request
from baton.engine.request.step_report import RequestOutput, StepReport
from baton.engine.schedule.drafted_chunks import ScheduledChunk
from baton.engine.step_hooks import StepHooks
from baton.kv_transfer.exchange import ExchangeParts
from baton.kv_transfer.layouts.plan import check_layouts
from baton.kv_transfer.sending.layer_groups import LayerGroups
from baton.prefill_service.early_calls import EarlyCalls
from baton.prefill_service.lending import Lending
from baton.prefill_service.open_prompts import Event, OpenPrompt, OpenPrompts
from baton.prefill_service.session import PrefillSession
from baton.replica_core.replica_core import ReplicaCore, RoleHooks

PROGRESS_S = 0.25
"""How often callers that wait for a first token are told that the engine advances."""
ENTER_S = 0.002
"""For so long nothing is told of a prompt that is on its way into the engine."""


class PrefillWorker:
    def __init__(self, engine: Engine, parts: ExchangeParts, *, max_queued_tokens: int) -> None:
        self._max_queued_tokens = max_queued_tokens
        self.prompts = OpenPrompts(max_queued_tokens)
        self.early_calls = EarlyCalls()
        self._lending = Lending(self.prompts, engine.max_chunk, self._room)
        self._given_up = ""
        """Why nothing can be lent here any more."""
        self._progress_told_at = float("-inf")
        hooks = RoleHooks(
            on_tick=self._on_tick,
            on_step=self._on_step,
            on_failure=self._on_failure,
            on_transfer_ended=self._on_transfer_ended,
            in_step=StepHooks(on_scheduled=self._on_scheduled, on_layer=self._on_layer),
        )
        self.core = ReplicaCore(engine, parts, hooks)
        self._engine = engine
        self._thread = self.core.thread
        self._sender = self.core.kv.sender
        self.layer_groups = LayerGroups(engine.pool.layout)
        self._withheld: list[TransferId] = []
        """On the engine's thread: those whose last layers were computed in this step."""

    async def prefill(self, message: PrefillRequest) -> AsyncGenerator[Event, None]:
        """Yield the grant when its turn comes, then the first token; end when the transfer does.

        Closing the iterator stops the computation and aborts the transfer: a decode replica that
        dies or loses interest cuts the call, and its blocks are free at once.
        Raises Overloaded at once when too much is queued, LayoutMismatch, InvalidRequest.
        """
        check_layouts(self._engine.pool.layout, message.layout)
        self._sender.held.check(1)  # the block of the last token is never shared
        prompt = self.prompts.admit(message)
        span = self.core.tracer.start("prefill", message.trace, "server")
        entering = asyncio.create_task(self._enter(prompt))
        try:
            # An idle engine has begun by then, undisturbed by what is told of it.
            await asyncio.wait((entering,), timeout=ENTER_S)
            self._publish_capacity()
            while (event := await prompt.events.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                if span.is_recording:
                    _describe(span, event, message)
                yield event
                if isinstance(event, PrefillDone):  # it has left
                    show = partial(self._sender.show, message.transfer_id)
                    await self._thread.interject(show)
        except Exception as error:
            span.end(str(error))
            raise
        finally:
            entering.cancel()
            span.end()
            self._leave(prompt)
            await asyncio.gather(entering, return_exceptions=True)

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

    def hear(self, session: PrefillSession, demand: Demand) -> None:
        """Take note of what waits at the gateway."""
        self._lending.hear(session, demand)
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
        """From now on; while it drains, nothing all the same."""
        self._max_queued_tokens = max_queued_tokens
        self.prompts.max_queued_tokens = 0 if self.core.is_draining else max_queued_tokens
        self._on_tick()

    async def drain(self) -> None:
        """Accept nothing more and return when the last request has left."""
        self.begin_drain()
        await self.prompts.is_idle.wait()
        await self.core.kv.lender.is_idle.wait()

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

    # On the event loop.

    async def _enter(self, prompt: OpenPrompt) -> None:
        """Into the engine. Its events are told meanwhile: one that hangs never takes it in."""
        message = prompt.message
        try:
            grammar = message.sampling.grammar
            if grammar is not None:
                prompt.request.matcher = await self.core.matchers.begin(grammar).behind(
                    message.output
                )
            known = (*message.prompt, *message.output)
            sources = () if message.source is None else (message.source,)
            async with self.core.kv.prefix_of(known, message.salt, sources, tenant=message.tenant):
                await self._thread.call(lambda: self._begin(prompt))
        except Exception as error:
            prompt.events.put_nowait(error)

    def _leave(self, prompt: OpenPrompt) -> None:
        """Whatever is left of it ends; nothing happens to what is over already."""
        self.prompts.remove(prompt)
        self._thread.post(lambda: self._abandon(prompt.message.transfer_id))
        self._publish_capacity()

    def _on_tick(self) -> None:
        self._lending.learn(self.core.step_times())
        self._publish_capacity()
        if not self._engine.has_work:  # what is open waits for something else: KV, a grammar
            self.prompts.tell_progress()

    def _room(self) -> int | None:
        """Tokens whose KV could be held until decode replicas have fetched it; None: any."""
        num_left = self._sender.held.num_left
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
        self.early_calls.end()

    # On the engine's thread.

    def _begin(self, prompt: OpenPrompt) -> None:
        message = prompt.message
        self._engine.add(prompt.request)
        self._sender.offer(
            message.transfer_id,
            message.receiver_epoch,
            source=Holder(HolderKind.REQUEST, message.transfer_id),
            num_tokens=len(message.prompt) + len(message.output),
            time_left_s=message.time_left_ms / 1e3,
            now=self._engine.clock(),
        )

    def _abandon(self, transfer_id: TransferId) -> None:
        self._engine.abort(transfer_id)
        self._sender.abort(transfer_id, "the prefill call ended")

    def _on_scheduled(self, request: Request) -> None:
        layout, transfer_id = self._engine.pool.layout, TransferId(request.request_id)
        num_shared = request.num_cached // layout.block_size
        num_fresh = layout.num_blocks_for(len(request.tokens)) - num_shared
        try:
            self._sender.take(transfer_id, num_fresh)
        except Overloaded as error:
            self._refuse(transfer_id, error)
            return
        granted = PrefillGranted(
            transfer_id=transfer_id,
            sender_epoch=self.core.epoch,
            layout=layout,
            num_tokens=len(request.tokens),
            num_cached=request.num_cached,
            head_runs=tuple(self._engine.pool.head_runs),
        )
        self._thread.tell(lambda: self.prompts.put_event(transfer_id, granted))
        self._sender.publish(transfer_id, request.num_computed)  # found in the cache

    def _refuse(self, transfer_id: TransferId, why: Overloaded) -> None:
        """Its turn has come, and others hold too much. Nothing of it is published from now on."""
        self._thread.tell(lambda: self.prompts.put_event(transfer_id, why))
        self._sender.abort(transfer_id, str(why))
        self._engine.abort(transfer_id)

    def _on_transfer_ended(self, transfer_id: TransferId) -> None:
        self._thread.tell(lambda: self.prompts.put_event(transfer_id, None))

    def _advanced(self) -> None:
        now = self._engine.clock()
        if now >= self._progress_told_at + PROGRESS_S:
            self._progress_told_at = now
            self._thread.tell(self.prompts.tell_progress)

    def _on_layer(self, layer: int, chunks: Sequence[ScheduledChunk]) -> None:
        self._advanced()
        layers = self.layer_groups.computed(layer, sum([chunk.num_tokens for chunk in chunks]))
        if not layers:
            return
        are_last = self.layer_groups.are_last(layers)
        for chunk in chunks:
            transfer_id = TransferId(chunk.request.request_id)
            num_computed = chunk.request.num_computed + chunk.num_tokens
            if are_last:
                self._sender.withhold(transfer_id, num_computed, layers)
                self._withheld.append(transfer_id)
            else:
                self._sender.publish(transfer_id, num_computed, layers)

    def _on_step(self, report: StepReport) -> None:
        self._thread.tell(lambda: self._receive(report))
        self._advanced()
        for output in report.outputs:  # the end of a transfer must not overtake the first token
            transfer_id = TransferId(output.request.request_id)
            if output.error is None:
                self._sender.finish(transfer_id)
            else:  # some of its layers may have left before the error was known
                self._sender.abort(transfer_id, str(output.error))
        first = {output.request.request_id for output in report.outputs}
        withheld, self._withheld = self._withheld, []
        for transfer_id in withheld:
            if transfer_id not in first:  # more of the prompt is to come
                self._sender.show(transfer_id)

    def _on_failure(self, failure: BaseException) -> None:
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
