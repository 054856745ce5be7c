"""One decode replica: takes requests from gateways, gets their prompts computed, generates.

    generate -> handoff from a prefill replica -> adopted by the engine -> tokens -> finished
             \\> computed by this engine itself ----/
    cancel, stream loss, deadline, a higher attempt: everything of the request is freed at once

Plain Python on purpose. `platform/cluster/replica_actor.py` turns it into an actor; tests just
build one. All state here belongs to the event loop; the engine's thread reports once per step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from baton.core.errors import Cancelled, Unavailable
from baton.core.ids import Epoch, ReplicaId, RequestId, TransferId
from baton.core.kv_pool import Census
from baton.core.messages import Capacity, GenerateRequest, PullOffered, PullRequest
from baton.decode_service.departures import Departures
from baton.decode_service.lifecycle import Lifecycle, failed
from baton.decode_service.prefill_client import GrpcPrefillClient
from baton.decode_service.pulling import Pulling
from baton.decode_service.remote_prefill import RemotePrefill
from baton.decode_service.session import GatewaySession
from baton.decode_service.step_reports import StepReports
from baton.engine.engine import Engine
from baton.engine.engine_thread import EngineThread
from baton.engine.kv_feed import KvFeed
from baton.engine.request.cache_points import cache_metrics
from baton.engine.request.step_report import StepReport
from baton.kv_transfer.exchange import ExchangeConfig, KvExchange
from baton.kv_transfer.handoff.auditor import AuditReport, audit
from baton.kv_transfer.handoff.transport import Transport
from baton.proto.channels import Channels

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
    max_corrupt: int = 3
    """Bad pieces of KV within a minute after which their sender is not asked for one."""

    @property
    def exchange(self) -> ExchangeConfig:
        return ExchangeConfig(
            max_leased_fraction=self.max_leased_fraction,
            pull_timeout_s=self.prefill_timeout_s,
            max_corrupt=self.max_corrupt,
        )


class DecodeWorker:
    def __init__(
        self,
        engine: Engine,
        *,
        replica_id: ReplicaId,
        epoch: Epoch,
        channels: Channels,
        transport: Transport,
        settings: DecodeSettings,
    ) -> None:
        self.engine = engine
        self.replica_id = replica_id
        self.epoch = epoch
        self.settings = settings
        self.thread = EngineThread(engine, self._on_step, on_failure=self._on_failure)
        self.kv_feed = KvFeed(engine.pool, self.thread)
        self.kv = KvExchange(
            pool=engine.pool,
            owner=self.thread,
            epoch=epoch,
            transport=transport,
            channels=channels,
            clock=engine.clock,
            config=settings.exchange,
            is_full=lambda: engine.is_starving,
        )
        self.remote_prefill = RemotePrefill(
            engine=engine,
            thread=self.thread,
            receiver=self.kv.receiver,
            fetcher=self.kv.fetcher,
            client=GrpcPrefillClient(channels),
            timeout_s=settings.prefill_timeout_s,
            clock=engine.clock,
        )
        self.pulling = Pulling(engine=engine, thread=self.thread, kv=self.kv)
        self.requests = Lifecycle(
            replica_id,
            engine,
            self.thread,
            self.remote_prefill,
            self.pulling,
            self._publish_capacity,
        )
        self.departures = Departures(
            engine=engine,
            open=self.requests.open,
            lender=self.kv.lender,
            fail=self.requests.fail,
        )
        self._sessions: list[GatewaySession] = []
        self._reports = StepReports(lambda: self.thread.tell(self._receive_reports))
        self.thread.before_commands = self._reports.flush
        self._housekeeping: asyncio.Task[None] | None = None
        self.is_draining = False
        self._given_up = ""
        """Why nothing can be placed here any more."""
        engine.reclaim = self.kv.reclaim

    async def start(self) -> None:
        self.thread.start()
        self._housekeeping = asyncio.create_task(self._expire_leases())

    def begin_drain(self) -> None:
        """Tell the gateways to place nothing more, and to move elsewhere what runs. Repeatable."""
        self.is_draining = True
        self._publish_capacity()

    async def drain(self) -> None:
        """Return when the last request has left, and its KV with it."""
        self.begin_drain()
        await self.requests.idle.wait()
        await self.kv.lender.is_idle.wait()

    @property
    def num_open(self) -> int:
        """Requests that have yet to leave, for whoever waits for the end of a drain."""
        return max(len(self.requests.open), self.kv.lender.num_open)

    async def stop(self) -> None:
        self._give_up(f"{self.replica_id} is shutting down")
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        self.requests.close()
        await self.kv.close()
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
        for generating in self.requests.open.of_session(session):
            self.requests.end(generating, num_delivered=0)
        self._publish_capacity()

    def generate(self, session: GatewaySession, message: GenerateRequest) -> None:
        """Begin, unless this attempt is known. A higher attempt takes the place of a lower one."""
        last_attempt = self.requests.open.last_attempt(message.request_id)
        if message.attempt == last_attempt:
            return
        if message.attempt < last_attempt:
            error = Cancelled(f"attempt {message.attempt} came after attempt {last_attempt}")
            session.put(failed(message, error))
            return
        fenced = self.requests.open.get(message.request_id)
        if fenced is not None:
            self.requests.end(fenced, num_delivered=0)
        self.requests.begin(session, message)

    def cancel(self, request_id: RequestId, attempt: int, num_delivered: int) -> None:
        """Free everything of the request at once. Safe to repeat; unknown requests are ignored."""
        generating = self.requests.open.get(request_id)
        if generating is not None and generating.message.attempt == attempt:
            self.requests.end(generating, num_delivered)

    # What other replicas may ask.

    def pull(self, request: PullRequest) -> AsyncGenerator[PullOffered, None]:
        """See `baton.kv_transfer.pulling.peer.Lends`."""
        return self.departures.pull(request)

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
            num_waiting=max(0, len(self.requests.open) - num_running),
            num_queued_tokens=self.requests.open.num_queued_tokens,
            num_blocks=self.engine.pool.num_blocks,
            num_free_blocks=self.engine.pool.num_available,
            is_draining=self.is_draining,
        )

    def metrics(self) -> dict[str, float]:
        return {
            **self.engine.stats.as_metrics(),
            **cache_metrics(self.engine.pool),
            **self.requests.ledger.as_metrics(),
            **self.kv.metrics(),
            "requests_open": len(self.requests.open),
        }

    # On the event loop.

    def _receive_reports(self) -> None:
        for report in self._reports.take():
            self.requests.receive(report)
        self._publish_capacity()

    def _publish_capacity(self) -> None:
        capacity = self.capacity()
        for session in self._sessions:
            session.put_capacity(capacity)

    async def _expire_leases(self) -> None:
        while self.thread.failure is None:
            await asyncio.sleep(EXPIRY_CHECK_S)
            await self.thread.call(self.kv.expire)
            self.thread.post(self.kv_feed.publish)  # of what changed without a step

    def _give_up(self, reason: str) -> None:
        """Gateways learn that nothing can be placed here any more, then their streams end."""
        self._given_up = self._given_up or reason
        for generating in self.requests.open:
            self.requests.fail(generating, Unavailable(reason))
        for session in self._sessions:
            session.end()

    # On the engine's thread.

    def _on_step(self, report: StepReport) -> None:
        self._reports.put(report)  # first: tokens are waited for
        self.kv.ran(report.num_tokens, report.forward_ms / 1e3)
        self.kv_feed.publish()

    def _on_failure(self, failure: BaseException) -> None:
        self._reports.flush()
        reason = f"the engine of {self.replica_id} died: {failure!r}"
        self.thread.tell(lambda: self._give_up(reason))

    def _take_census(self) -> tuple[Census, frozenset[str], frozenset[TransferId]]:
        """With the requests and the leases that may hold blocks at this moment."""
        return self.engine.pool.census(), self.engine.request_ids, self.kv.lease_ids
