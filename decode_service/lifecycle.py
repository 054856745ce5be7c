"""The life of a request on a decode replica, from a gateway's message to its last update.

    begin -> grammar, if any, and the way into the engine -> tokens, step by step -> end
    a deadline, a cancel, a lost gateway, an error: end, at any time

All of it happens on the event loop. `end` frees all that a request holds, on any thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from baton.core.errors import BatonError, DeadlineExceeded, StreamMoved, Unavailable
from baton.core.ids import ReplicaId
from baton.core.messages import GenerateRequest, ParkedStream, PrefillDone, TokenUpdate
from baton.core.parking import TakeStream
from baton.core.tracing import Span
from baton.decode_service.generating import Generating
from baton.decode_service.intake import Intake
from baton.decode_service.open_requests import OpenRequests
from baton.decode_service.parked_streams import ParkedStreams, as_parked
from baton.decode_service.prefill_failures import PrefillFailures
from baton.decode_service.pulling import Pulling
from baton.decode_service.remote_prefill import RemotePrefill
from baton.decode_service.session import GatewaySession
from baton.engine.request.request import finish_reason
from baton.engine.request.step_report import RequestOutput, StepReport
from baton.replica_core.replica_core import ReplicaCore

log = logging.getLogger(__name__)


class Lifecycle:
    """`on_change` is called whenever a request came or went."""

    def __init__(
        self,
        replica_id: ReplicaId,
        core: ReplicaCore,
        remote_prefill: RemotePrefill,
        pulling: Pulling,
        on_change: Callable[[], None],
    ) -> None:
        self.open = OpenRequests()
        self.idle = asyncio.Event()
        """Set while no request is open."""
        self.idle.set()
        self.parked = ParkedStreams()
        self.ledger = core.ledger
        self._replica_id = replica_id
        self._core = core
        self._engine = core.engine
        self._thread = core.thread
        self._clock = core.engine.clock
        self._on_change = on_change
        self._matchers = core.matchers
        self._intake = Intake(
            engine=core.engine,
            thread=core.thread,
            remote_prefill=remote_prefill,
            pulling=pulling,
            prefill_failures=PrefillFailures(self._clock),
            on_first_token=self._record_first_token,
        )

    def begin(self, session: GatewaySession, message: GenerateRequest) -> None:
        loop = asyncio.get_running_loop()
        block_size = self._engine.pool.layout.block_size
        generating = Generating(message, session, self._clock(), block_size)
        generating.span = self._begin_span(message)
        self.open.add(generating)
        session.num_open += 1
        self.idle.clear()
        if message.time_left_ms is not None:
            generating.timer = loop.call_later(
                message.time_left_ms / 1e3,
                lambda: self.fail(generating, DeadlineExceeded("the time limit passed")),
            )
        grammar = message.sampling.grammar
        if grammar is not None:
            generating.matcher = self._matchers.begin(grammar)
            generating.matcher.on_failure(lambda error: self.fail(generating, error))
        generating.task = loop.create_task(self._run(generating))
        self._on_change()

    def _begin_span(self, message: GenerateRequest) -> Span:
        span = self._core.tracer.start("decode", message.trace, "server")
        if span.is_recording:
            span.set({"baton.request_id": message.request_id, "baton.attempt": message.attempt})
        return span

    async def _run(self, generating: Generating) -> None:
        """Bring the request into the engine, one way or another; tokens then come by themselves."""
        try:
            await self._intake.enter(generating)
        except BatonError as error:
            self.fail(generating, error)
        except Exception as error:
            log.exception("%s failed", generating.engine_id, extra=generating.about)
            self.fail(generating, Unavailable(f"{type(error).__name__}: {error}"))

    def _record_first_token(self, generating: Generating, done: PrefillDone) -> None:
        """From here on the token is final, whatever becomes of the KV behind it.

        Whether it is the last is for this engine to say: the other's context may be shorter, or
        longer.
        """
        generating.prefill = done
        message, output = generating.message, (*generating.message.output, done.token)
        self.ledger.sample(1)
        update = TokenUpdate(
            request_id=message.request_id,
            attempt=message.attempt,
            tokens=(done.token,),
            logprobs=() if done.logprob is None else (done.logprob,),
            finish_reason=finish_reason(
                output,
                len(message.prompt) + len(output),
                message.sampling,
                eos_token_ids=self._engine.info.eos_token_ids,
                max_model_len=self._engine.max_len_for(message.tenant),
            ),
        )
        self._deliver(generating, update)

    def _deliver(self, generating: Generating, update: TokenUpdate) -> None:
        generating.session.put(generating.give_out(update, self._clock(), self._replica_id))
        if update.is_last:
            self._park(generating)
            self.end(generating, num_delivered=len(generating.output))

    def fail(self, generating: Generating, error: BatonError) -> None:
        if generating.is_over:
            return
        generating.error = str(error)
        receipt = generating.receipt(self._replica_id)
        generating.session.put(replace(failed(generating.message, error), receipt=receipt))
        self.end(generating, num_delivered=len(generating.output))

    def take_stream(self, wanted: TakeStream) -> ParkedStream | None:
        """The stream so far. If it runs here, and can continue at another gateway, it ends here."""
        for generating in self.open:
            if wanted.is_for(generating.message.parking):
                if as_parked(generating, self._replica_id) is None and not wanted.is_end:
                    return None  # nobody could go on with it: it goes on here
                moved = StreamMoved("the stream was taken up at another gateway")
                generating.session.put(failed(generating.message, moved))
                self._park(generating)
                self.end(generating, num_delivered=len(generating.output))
                break
        return self.parked.get(wanted, self._clock())

    def lose(self, generating: Generating) -> None:
        """Its gateway is gone: another one may ask for it."""
        self._park(generating)
        self.end(generating, num_delivered=0)

    def cancel(self, generating: Generating, num_delivered: int, *, is_finished: bool) -> None:
        """No further tokens are wanted; if it is finished, some of them may be requested again."""
        if is_finished:
            self._park(generating)
        elif generating.message.parking is not None:
            self.parked.forget(generating.message.parking)
        self.end(generating, num_delivered)

    def _park(self, generating: Generating) -> None:
        self.parked.park(generating, self._replica_id, self._clock())

    def end(self, generating: Generating, num_delivered: int) -> None:
        """Free what the request holds, wherever it is."""
        if generating.is_over:
            return
        generating.is_over = True
        generating.end_span(self._clock(), self._replica_id)
        self.open.remove(generating)
        generating.session.num_open -= 1
        num_sampled = len(generating.output)
        num_delivered = min(num_delivered, num_sampled)
        self.ledger.settle(delivered=num_delivered, discarded=num_sampled - num_delivered)
        if generating.timer is not None:
            generating.timer.cancel()
        if generating.matcher is not None:
            generating.matcher.cancel()
        task = generating.task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        self._thread.post(lambda: self._abort(generating.engine_id))
        self._on_change()
        if not self.open:
            self.idle.set()

    def receive(self, report: StepReport) -> None:
        """The tokens of one engine step, on the event loop."""
        for output in report.outputs:
            self._receive_output(output)

    def _receive_output(self, output: RequestOutput) -> None:
        self.ledger.sample(len(output.tokens))
        generating = self.open.by_engine_id(output.request.request_id)
        if generating is None or generating.has_left:  # cancelled, or moved, while this step ran
            self.ledger.settle(delivered=0, discarded=len(output.tokens))
            return
        generating.num_run = output.num_run
        if output.error is not None:
            self.fail(generating, output.error)
            return
        update = TokenUpdate(
            request_id=generating.message.request_id,
            attempt=generating.message.attempt,
            tokens=output.tokens,
            logprobs=output.logprobs,
            prompt_logprobs=output.prompt_logprobs,
            embedding=output.embedding,
            finish_reason=output.finish_reason,
        )
        self._deliver(generating, update)

    def _abort(self, engine_id: str) -> None:
        """On the engine's thread."""
        self._engine.abort(engine_id)


def failed(message: GenerateRequest, error: BatonError) -> TokenUpdate:
    return TokenUpdate(request_id=message.request_id, attempt=message.attempt, error=error)
