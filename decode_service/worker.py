"""One decode replica: takes requests from gateways, gets their prompts computed, generates.

    generate -> handoff from a prefill replica -> adopted by the engine -> tokens -> finished
             \\> computed by this engine itself ----/
    cancel, stream loss, deadline, a higher attempt: everything of the request is freed at once

Plain Python on purpose. `platform/deploy.py` turns it into an actor; tests just build one. All
state here belongs to the event loop; the engine's thread reports once per step.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace

from baton.core.errors import BatonError, Cancelled, DeadlineExceeded, Unavailable
from baton.core.ids import Epoch, ReplicaId, RequestId, TransferId
from baton.core.kv_pool import Census
from baton.core.ledger import TokenLedger
from baton.core.messages import (
    Capacity,
    FinishReason,
    GenerateRequest,
    PrefillDone,
    ReplicaAddress,
    TokenLogprob,
    TokenUpdate,
)
from baton.decode_service.generating import Generating
from baton.decode_service.open_requests import OpenRequests
from baton.decode_service.prefill_client import PrefillClient
from baton.decode_service.remote_prefill import RemotePrefill
from baton.decode_service.session import GatewaySession
from baton.engine.engine import Engine
from baton.engine.engine_thread import EngineThread
from baton.engine.request import finish_reason
from baton.engine.step_report import RequestOutput, StepReport
from baton.kv_transfer.auditor import AuditReport, audit
from baton.kv_transfer.fetch import Fetcher
from baton.kv_transfer.receiver import Receiver, ReceiverConfig
from baton.kv_transfer.transport.base import Transport

log = logging.getLogger(__name__)

EXPIRY_CHECK_S = 0.25
STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSettings:
    max_open: int = 128
    """Requests taken at once, from all gateways together."""
    max_leased_fraction: float = 0.5
    """Share of the pool that handoffs may hold."""
    prefill_timeout_s: float = 60.0
    """How long a prefill replica may take before the prompt is computed here."""


class DecodeWorker:
    def __init__(
        self,
        engine: Engine,
        *,
        replica_id: ReplicaId,
        epoch: Epoch,
        prefill_client: PrefillClient,
        transport: Transport,
        settings: DecodeSettings,
    ) -> None:
        self.engine = engine
        self.replica_id = replica_id
        self.epoch = epoch
        self.settings = settings
        self.ledger = TokenLedger()
        self.thread = EngineThread(engine, self._on_step, on_failure=self._on_failure)
        self.receiver = Receiver(
            engine.pool,
            self.epoch,
            ReceiverConfig(max_leased_fraction=settings.max_leased_fraction),
        )
        self.remote_prefill = RemotePrefill(
            engine=engine,
            thread=self.thread,
            receiver=self.receiver,
            fetcher=Fetcher(self.receiver, self.thread, transport, clock=engine.clock),
            client=prefill_client,
            timeout_s=settings.prefill_timeout_s,
            clock=engine.clock,
        )
        self.transport = transport
        self.clock = engine.clock
        self._sessions: list[GatewaySession] = []
        self._open = OpenRequests()
        self._idle = asyncio.Event()
        self._idle.set()
        self._housekeeping: asyncio.Task[None] | None = None
        self._given_up = ""
        """Why nothing can be placed here any more."""
        engine.reclaim = self.receiver.abort_youngest_reserved

    async def start(self) -> None:
        self.thread.start()
        self._housekeeping = asyncio.create_task(self._expire_leases())

    async def drain(self) -> None:
        """Return when the last request has left; gateways place nothing where it is unready."""
        await self._idle.wait()

    async def stop(self) -> None:
        self._give_up(f"{self.replica_id} is shutting down")
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        await self.remote_prefill.close()
        await self.transport.close()
        await asyncio.to_thread(self.thread.stop, STOP_TIMEOUT_S)

    def check_health(self, *, limit_s: float) -> None:
        """Raise EngineFailed if the engine's thread died or has not advanced for `limit_s`."""
        self.thread.check_health(limit_s=limit_s)

    # What a gateway may ask.

    def open_session(self, gateway_epoch: Epoch) -> GatewaySession:
        """Raises Unavailable once the engine died or was stopped: all that came could only fail."""
        if self._given_up:
            raise Unavailable(self._given_up)
        session = GatewaySession(gateway_epoch)
        self._sessions.append(session)
        self._publish_capacity()
        return session

    def close_session(self, session: GatewaySession) -> None:
        """The stream is gone: nobody can receive these tokens, so nothing more is computed."""
        session.is_closed = True
        self._sessions.remove(session)
        for generating in self._open.of_session(session):
            self._end(generating, num_delivered=0)
        self._publish_capacity()

    def generate(self, session: GatewaySession, message: GenerateRequest) -> None:
        """Begin, unless this attempt is known. A higher attempt takes the place of a lower one."""
        last_attempt = self._open.last_attempt(message.request_id)
        if message.attempt == last_attempt:
            return
        if message.attempt < last_attempt:
            error = Cancelled(f"attempt {message.attempt} came after attempt {last_attempt}")
            session.put(_failure(message, error))
            return
        fenced = self._open.get(message.request_id)
        if fenced is not None:
            self._end(fenced, num_delivered=0)
        self._begin(session, message)

    def cancel(self, request_id: RequestId, attempt: int, num_delivered: int) -> None:
        """Free everything of the request at once. Safe to repeat; unknown requests are ignored."""
        generating = self._open.get(request_id)
        if generating is not None and generating.message.attempt == attempt:
            self._end(generating, num_delivered)

    # What operators may ask.

    async def audit(self) -> AuditReport:
        """Judged off the engine's thread: a large pool takes longer than a step."""
        return await asyncio.to_thread(audit, *await self.thread.call(self._take_census))

    def capacity(self) -> Capacity:
        num_running = self.engine.num_running  # read from the engine's thread: may be ahead of us
        max_open = max(1, self.settings.max_open // max(1, len(self._sessions)))
        return Capacity(
            max_open=0 if self._given_up else max_open,
            num_running=num_running,
            num_waiting=max(0, len(self._open) - num_running),
            num_queued_tokens=self._open.num_queued_tokens,
            num_blocks=self.engine.pool.num_blocks,
            num_free_blocks=self.engine.pool.num_available,
        )

    def metrics(self) -> dict[str, float]:
        received = self.receiver.counters
        return {
            **self.engine.stats.as_metrics(),
            **self.ledger.as_metrics(),
            "transfers_reserved_total": received.num_reserved,
            "transfers_refused_total": received.num_refused,
            "transfers_adopted_total": received.num_adopted,
            "transfers_aborted_total": received.num_aborted.total(),
            "pieces_corrupt_total": received.num_corrupt.total(),
            "kv_bytes_received_total": received.num_bytes,
            "requests_open": len(self._open),
        }

    # A request's life, on the event loop.

    def _begin(self, session: GatewaySession, message: GenerateRequest) -> None:
        loop = asyncio.get_running_loop()
        generating = Generating(message, session, arrived_at=self.clock())
        self._open.add(generating)
        self._idle.clear()
        if message.time_left_ms is not None:
            generating.timer = loop.call_later(
                message.time_left_ms / 1e3,
                lambda: self._fail(generating, DeadlineExceeded("the time limit passed")),
            )
        generating.task = loop.create_task(self._run(generating))
        self._publish_capacity()

    async def _run(self, generating: Generating) -> None:
        """Bring the request into the engine, one way or another; tokens then come by themselves."""
        try:
            for peer in generating.message.prefill:
                if await self._is_prefilled_by(peer, generating):
                    return
            request = generating.make_request()
            await self.thread.call(lambda: self.engine.add(request))
        except BatonError as error:
            self._fail(generating, error)
        except Exception as error:
            log.exception("%s failed", generating.engine_id)
            self._fail(generating, Unavailable(f"{type(error).__name__}: {error}"))

    async def _is_prefilled_by(self, peer: ReplicaAddress, generating: Generating) -> bool:
        """True if the request is in the engine or over; False if another way must be found."""
        if generating.prefill is not None:
            return False  # the first token is final: only KV is missing, and this engine makes it
        try:
            await self.remote_prefill.run(generating, peer, self._record_first_token)
        except BatonError as error:
            generating.notes.append(str(error))
            log.warning("%s: %s", generating.engine_id, error)
            return False
        return True

    def _record_first_token(self, generating: Generating, done: PrefillDone) -> None:
        """From here on the token is final, whatever becomes of the KV behind it.

        Whether it is the last is for this engine to say: the other's context may be shorter, or
        longer.
        """
        generating.prefill = done
        logprobs = () if done.logprob is None else (done.logprob,)
        self.ledger.sample(1)
        output = (*generating.message.output, done.token)
        reason = finish_reason(
            output,
            len(generating.message.prompt) + len(output),
            generating.message.sampling,
            eos_token_ids=self.engine.info.eos_token_ids,
            max_model_len=self.engine.max_model_len,
        )
        self._deliver(generating, (done.token,), logprobs, reason)

    def _deliver(
        self,
        generating: Generating,
        tokens: tuple[int, ...],
        logprobs: tuple[TokenLogprob, ...],
        finish_reason: FinishReason | None,
    ) -> None:
        now = self.clock()
        is_first = generating.first_token_at is None
        generating.first_token_at = generating.first_token_at or now
        generating.last_token_at = now
        generating.output.extend(tokens)
        is_news = generating.transfer is not generating.reported_transfer
        generating.reported_transfer = generating.transfer
        has_receipt = is_first or is_news or finish_reason is not None
        generating.session.put(
            TokenUpdate(
                request_id=generating.message.request_id,
                attempt=generating.message.attempt,
                tokens=tokens,
                logprobs=logprobs,
                finish_reason=finish_reason,
                receipt=generating.receipt(self.replica_id) if has_receipt else None,
            )
        )
        if finish_reason is not None:
            self._end(generating, num_delivered=len(generating.output))

    def _fail(self, generating: Generating, error: BatonError) -> None:
        if generating.is_over:
            return
        receipt = generating.receipt(self.replica_id)
        generating.session.put(replace(_failure(generating.message, error), receipt=receipt))
        self._end(generating, num_delivered=len(generating.output))

    def _end(self, generating: Generating, num_delivered: int) -> None:
        """Forget the request and free what it holds, wherever it is."""
        if generating.is_over:
            return
        generating.is_over = True
        self._open.remove(generating)
        num_sampled = len(generating.output)
        num_delivered = min(num_delivered, num_sampled)
        self.ledger.settle(delivered=num_delivered, discarded=num_sampled - num_delivered)
        if generating.timer is not None:
            generating.timer.cancel()
        task = generating.task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        self.thread.post(lambda: self._abort(generating.engine_id))
        self._publish_capacity()
        if not self._open:
            self._idle.set()

    def _receive(self, report: StepReport) -> None:
        """The tokens of one engine step, on the event loop."""
        for output in report.outputs:
            self._receive_output(output)
        self._publish_capacity()

    def _receive_output(self, output: RequestOutput) -> None:
        self.ledger.sample(len(output.tokens))
        generating = self._open.by_engine_id(output.request.request_id)
        if generating is None:  # cancelled while this step ran
            self.ledger.settle(delivered=0, discarded=len(output.tokens))
            return
        generating.num_run = output.num_run
        if output.error is not None:
            self._fail(generating, output.error)
        else:
            self._deliver(generating, output.tokens, output.logprobs, output.finish_reason)

    def _publish_capacity(self) -> None:
        capacity = self.capacity()
        for session in self._sessions:
            session.put_capacity(capacity)

    async def _expire_leases(self) -> None:
        while self.thread.failure is None:
            await asyncio.sleep(EXPIRY_CHECK_S)
            await self.thread.call(lambda: self.receiver.expire(self.clock()))

    def _give_up(self, reason: str) -> None:
        """Gateways learn that nothing can be placed here any more, then their streams end."""
        self._given_up = self._given_up or reason
        for generating in self._open:
            self._fail(generating, Unavailable(reason))
        for session in self._sessions:
            session.end()

    # On the engine's thread.

    def _on_step(self, report: StepReport) -> None:
        if report.outputs:
            self.thread.tell(lambda: self._receive(report))

    def _on_failure(self, failure: BaseException) -> None:
        reason = f"the engine of {self.replica_id} died: {failure!r}"
        self.thread.tell(lambda: self._give_up(reason))

    def _abort(self, engine_id: str) -> None:
        self.engine.abort(engine_id)

    def _take_census(self) -> tuple[Census, frozenset[str], frozenset[TransferId]]:
        """With the requests and the leases that may hold blocks at this moment."""
        return self.engine.pool.census(), self.engine.request_ids, self.receiver.lease_ids


def _failure(message: GenerateRequest, error: BatonError) -> TokenUpdate:
    return TokenUpdate(request_id=message.request_id, attempt=message.attempt, error=error)
