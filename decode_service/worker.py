"""One decode replica: takes requests from gateways, gets their prompts computed, generates.

    generate -> handoff from a prefill replica -> adopted by the engine -> tokens -> finished
             \\> computed by this engine itself ----/
    cancel, stream loss, deadline, a higher attempt: everything of the request is freed at once

Plain Python on purpose. `platform/cluster/replica_actor.py` turns it into an actor; tests just
build one. All state here belongs to the event loop; the engine's thread reports once per step.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from baton.core.errors import Cancelled, Unavailable
from baton.core.ids import Epoch, ReplicaId, RequestId
from baton.core.messages import GenerateRequest, ParkedStream, PullOffered, PullRequest
from baton.core.parking import TakeStream
from baton.core.replicas import Capacity, Demand
from baton.decode_service.departures import Departures
from baton.decode_service.lifecycle import Lifecycle, failed
from baton.decode_service.prefill_client import GrpcPrefillClient
from baton.decode_service.pulling import Pulling
from baton.decode_service.remote_prefill import RemotePrefill
from baton.decode_service.session import GatewaySession
from baton.decode_service.step_reports import StepReports
from baton.engine.engine import Engine
from baton.kv_transfer.exchange import ExchangeParts
from baton.replica_core.credits import Credits
from baton.replica_core.replica_core import ReplicaCore, RoleHooks


class DecodeWorker:
    def __init__(
        self, engine: Engine, parts: ExchangeParts, *, replica_id: ReplicaId, max_open: int
    ) -> None:
        """At most `max_open` requests are taken at once, from all gateways together."""
        self.replica_id = replica_id
        self.max_open = max_open
        self._reports = StepReports(lambda: self.core.thread.tell(self._receive_reports))
        hooks = RoleHooks(
            on_tick=self._on_tick,
            on_step=self._reports.put,
            on_failure=self._on_failure,
            before_commands=self._reports.flush,
            is_full=lambda: engine.is_starving,
        )
        self.core = ReplicaCore(engine, parts, hooks)
        self.remote_prefill = RemotePrefill(
            engine=engine,
            thread=self.core.thread,
            receiver=self.core.kv.receiver,
            fetcher=self.core.kv.fetcher,
            client=GrpcPrefillClient(parts.channels),
            channels=parts.channels,
            patience=self.core.kv.patience,
            lender=self.core.kv.lender,
            compute_s=self.core.compute_s,
            timeout_s=parts.config.prefill_timeout_s,
            clock=engine.clock,
        )
        self.pulling = Pulling(engine=engine, thread=self.core.thread, kv=self.core.kv)
        self.requests = Lifecycle(
            replica_id, self.core, self.remote_prefill, self.pulling, self._publish_capacity
        )
        self.departures = Departures(
            engine=engine,
            open=self.requests.open,
            lender=self.core.kv.lender,
            fail=self.requests.fail,
            max_wait_s=parts.config.prefill_timeout_s,
        )
        self._sessions: list[GatewaySession] = []
        self._places: Credits[GatewaySession] = Credits(max_open)
        self._given_up = ""
        """Why nothing can be placed here any more."""

    def begin_drain(self) -> None:
        """Ask the gateways to place nothing more, and to move elsewhere what runs. Repeatable."""
        self.core.is_draining = True
        self._publish_capacity()

    def end_drain(self) -> None:
        """Take requests again. Repeatable."""
        self.core.is_draining = False
        self._publish_capacity()

    def allow(self, max_open: int) -> None:
        """From now on; what is open beyond it finishes."""
        self.max_open = self._places.budget = max_open
        self._publish_capacity()

    async def drain(self) -> None:
        """Return when the last request has left, and its KV with it."""
        self.begin_drain()
        await self.requests.idle.wait()
        await self.core.kv.lender.is_idle.wait()

    @property
    def num_sessions(self) -> int:
        """Streams of gateways."""
        return len(self._sessions)

    @property
    def num_requests(self) -> int:
        return len(self.requests.open)

    @property
    def num_open(self) -> int:
        """Requests that have yet to leave, to wait for the end of a drain."""
        return max(self.num_requests, self.core.kv.lender.num_open)

    async def stop(self) -> None:
        self._give_up(f"{self.replica_id} is shutting down")
        await self.remote_prefill.calls.close()
        await self.core.stop()

    # Calls of gateways.

    def open_session(self, gateway_epoch: Epoch) -> GatewaySession:
        """Raises Unavailable once the engine died or was stopped: all that came could only fail."""
        if self._given_up:
            raise Unavailable(self._given_up)
        for earlier in tuple(self._sessions):
            if earlier.gateway_epoch == gateway_epoch:  # it has one stream: that one is over
                earlier.end()
                self.close_session(earlier)
        session = GatewaySession(gateway_epoch, self.core.step_times)
        self._sessions.append(session)
        self._places.join(session)
        self._publish_capacity()
        return session

    def close_session(self, session: GatewaySession) -> None:
        """The stream is gone: nobody can receive these tokens, so nothing more is computed.

        Safe to repeat.
        """
        if session not in self._sessions:
            return
        session.close()
        self._sessions.remove(session)
        self._places.leave(session)
        for generating in self.requests.open.of_session(session):
            self.requests.lose(generating)
        self._publish_capacity()

    def observe(self, session: GatewaySession, demand: Demand) -> None:
        """Take note of what waits at the gateway."""
        self._places.observe(session, demand=demand.num_requests, credit_id=demand.credit_id)
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
        try:
            self.core.check_open()
        except Unavailable as error:
            session.put(failed(message, error))
            return
        fenced = self.requests.open.get(message.request_id)
        if fenced is not None:
            self.requests.end(fenced, num_delivered=0)
        self.requests.begin(session, message)

    def cancel(
        self, request_id: RequestId, attempt: int, num_delivered: int, *, is_finished: bool = False
    ) -> None:
        """Free everything of the request at once. Safe to repeat; unknown requests are ignored."""
        generating = self.requests.open.get(request_id)
        if generating is not None and generating.message.attempt == attempt:
            self.requests.cancel(generating, num_delivered, is_finished=is_finished)

    def take_stream(self, wanted: TakeStream) -> ParkedStream | None:
        """See `Lifecycle.take_stream`."""
        return self.requests.take_stream(wanted)

    # Calls of other replicas.

    def pull(self, request: PullRequest) -> AsyncGenerator[PullOffered, None]:
        """See `baton.kv_transfer.pulling.peer.PullService`."""
        self.core.check_open()
        return self.departures.pull(request)

    # Calls of operators.

    def capacity(self) -> Capacity:
        # Read from the engine's thread: may be ahead of us.
        num_running = self.core.engine.num_running
        return self.core.capacity(
            max_open=0 if self._given_up else self.max_open,
            num_running=num_running,
            num_waiting=max(0, len(self.requests.open) - num_running),
            num_queued_tokens=self.requests.open.num_queued_tokens,
        )

    def metrics(self) -> dict[str, float]:
        return {**self.core.metrics(), "requests_open": len(self.requests.open)}

    # On the event loop.

    def _on_tick(self) -> None:
        self.requests.parked.forget_old(self.core.engine.clock())
        self._publish_capacity()

    def _receive_reports(self) -> None:
        for report in self._reports.take():
            self.requests.receive(report)
        self._publish_capacity()

    def _publish_capacity(self) -> None:
        capacity = self.capacity()
        used = {session: session.num_open for session in self._sessions}
        for session, lent in self._places.lend(used, self.core.engine.clock()).items():
            max_open = min(lent.num, capacity.max_open)
            session.put_capacity(replace(capacity, max_open=max_open, credit_id=lent.id))

    def _give_up(self, reason: str) -> None:
        """Gateways learn that nothing can be placed here any more, then their streams end."""
        self._given_up = self._given_up or reason
        for generating in self.requests.open:
            self.requests.fail(generating, Unavailable(reason))
        for session in self._sessions:
            session.end()

    # On the engine's thread.

    def _on_failure(self, failure: BaseException) -> None:
        self._reports.flush()
        reason = f"the engine of {self.replica_id} died: {failure!r}"
        self.core.thread.tell(lambda: self._give_up(reason))
