"""A simulated decode replica: prompts from prefill replicas or computed here, then tokens.

    generate -> asks P, P', ... -> granted: blocks reserved -> sealed -> adopted -> tokens
             \\-> none can, or none was chosen: computed here -----------------------/

Leases take their share of the pool, and are given up, as a live receiver's are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Protocol

from baton.core.ids import TransferId
from baton.core.messages import PrefillRequest
from baton.core.replicas import Capacity, Demand, ReplicaAddress, ReplicaInfo
from baton.decode_service.step_reports import StepReports
from baton.engine.request.request import Request
from baton.engine.request.step_report import RequestOutput, StepReport
from baton.kv_transfer.config import DEFAULTS
from baton.kv_transfer.handoff.lease import ReceiverEvent, ReceiverLease, SenderEvent
from baton.platform.simulator.fleet.engine import EngineHooks, Step
from baton.platform.simulator.fleet.handoff import Handoff
from baton.platform.simulator.fleet.prefill import PrefillReplica, Wiring
from baton.platform.simulator.fleet.replica_updates import Listener, ReplicaUpdates
from baton.platform.simulator.fleet.turns import Turn
from baton.replica_core.credits import Credits

SALT = b""


class Client(Protocol):
    """The gateway of some requests; called when a frame of their tokens arrives."""

    def give(self, frame: Mapping[Turn, int]) -> None: ...


class DecodeReplica:
    def __init__(
        self,
        info: ReplicaInfo,
        updates: ReplicaUpdates,
        wiring: Wiring,
        peers: Mapping[str, PrefillReplica],
        clients: Sequence[Client],
    ) -> None:
        self.info = info
        self.engine = wiring.make_engine(
            EngineHooks(
                draw=self._draw,
                on_step=self._on_step,
                reclaim=self._reclaim,
                before_commands=lambda: self._reports.flush(),
            )
        )
        self._reports = StepReports(
            lambda: wiring.event_queue.after(0.0, self._receive), clock=wiring.event_queue
        )
        self.puller = wiring.make_puller(self.engine)
        self.num_computed_here = 0
        """Prompts."""
        self._updates = updates
        self._wiring = wiring
        self._peers = peers
        self._clients = clients
        self._is_draining = False
        self._open: dict[str, tuple[Turn, int]] = {}
        """Open requests by id, each with the number of its gateway."""
        self._handoffs: list[Handoff] = []
        """Handoffs that have blocks, or wait for them; the oldest first."""
        self._numbers = count()
        self._places: Credits[int] = Credits(info.max_open)

    def tell(self) -> None:
        """Send each joined gateway its credit."""
        self._publish()

    def join(self, number: int, gateway: Listener) -> None:
        """A gateway joins; it gets a credit with the next report."""
        self._places.join(number)
        self._updates.join(number, gateway, self.engine.pool, self.engine.events)

    def leave(self, number: int) -> None:
        """Forget a gateway that is gone. Its requests are still computed."""
        self._places.leave(number)
        self._updates.leave(number)
        self._publish()

    def drain(self) -> None:
        """Take nothing more."""
        self._is_draining = True
        self._publish()

    @property
    def is_idle(self) -> bool:
        return not self._open and not self._handoffs

    def observe(self, gateway: int, demand: Demand) -> None:
        self._places.observe(gateway, demand=demand.num_requests, credit_id=demand.credit_id)
        self._publish()

    def generate(self, turn: Turn, gateway: int) -> None:
        placement = turn.placement
        assert placement is not None
        self._open[turn.request_id] = (turn, gateway)
        self._publish()
        self._ask(turn, placement.prefill)

    # The prompt's way here.

    def _ask(self, turn: Turn, peers: Sequence[ReplicaAddress]) -> None:
        if not peers:
            self._compute_here(turn)
            return
        assert turn.placement is not None
        peer, source = peers[0], turn.placement.source
        _, gateway = self._open[turn.request_id]
        message = PrefillRequest(
            request_id=turn.request_id,
            transfer_id=TransferId(f"{turn.request_id}/{next(self._numbers)}"),
            receiver_epoch=self.info.epoch,
            layout=self.info.layout,
            prompt=tuple(turn.prompt),
            source=None if source is None or source.epoch == peer.epoch else source,
            time_left_ms=int(DEFAULTS.prefill_timeout_s * 1e3),
        )
        handoff = Handoff(turn, gateway, message, peer, tuple(peers[1:]))
        asked = self._peers[peer.replica_id]
        self._send(lambda: asked.ask(handoff, self))

    def refused(self, handoff: Handoff) -> None:
        self._ask(handoff.turn, handoff.others)

    def granted(self, handoff: Handoff) -> None:
        self.engine.call(lambda: self._reserve(handoff))

    def _reserve(self, handoff: Handoff) -> None:
        if handoff.is_given_up:
            return
        pool = self.engine.pool
        num_blocks = pool.layout.num_blocks_for(handoff.num_tokens)
        max_leased = DEFAULTS.max_leased_fraction * pool.num_blocks
        num_held = None
        if not self.engine.is_starving and self._num_leased_blocks + num_blocks <= max_leased:
            num_held = pool.reserve(handoff.holder, handoff.message.prompt, SALT)
        if num_held is None:
            self._give_up(handoff)
            return
        handoff.lease, handoff.num_sent = ReceiverLease(), num_held
        handoff.num_fresh_blocks = num_blocks - num_held // pool.layout.block_size
        self._handoffs.append(handoff)
        self.computed(handoff, self._wiring.event_queue.now)  # before it got blocks

    @property
    def _num_leased_blocks(self) -> int:
        return sum(handoff.num_fresh_blocks for handoff in self._handoffs)

    def computed(self, handoff: Handoff, since_s: float) -> None:
        """KV of all computed so far may travel; that of the last step, from its beginning on."""
        if not handoff.is_open:
            return
        num_computed = handoff.num_computed
        num_new = num_computed - handoff.num_sent
        if num_new > 0:
            if handoff.is_reserved:
                handoff.receiver_hears(ReceiverEvent.FILL_BEGUN)
            handoff.num_sent = num_computed
            handoff.arrives_s = self.puller.arrives_s(num_new, since_s)
        if num_computed >= handoff.num_tokens:
            arrives_s = max(
                handoff.arrives_s, self._wiring.event_queue.now + self._wiring.latency_s
            )
            self._wiring.event_queue.at(arrives_s, lambda: self._seal(handoff))

    def got_first_token(self, handoff: Handoff) -> None:
        """Take the first token, which is final even if the KV fails."""
        if handoff.is_given_up:
            return
        turn = handoff.turn
        turn.num_generated = 1
        self._give({turn: 1}, handoff.gateway)
        if turn.is_generated:
            del self._open[turn.request_id]
            self._end(handoff)
            self._publish()

    def _seal(self, handoff: Handoff) -> None:
        if not handoff.is_open:
            return
        if handoff.is_reserved:  # all of it was cached here
            handoff.receiver_hears(ReceiverEvent.FILL_BEGUN)
        handoff.receiver_hears(ReceiverEvent.FILL_ENDED)
        handoff.receiver_hears(ReceiverEvent.SEAL)
        self._settle(handoff, SenderEvent.ACK)
        self.engine.call(lambda: self._adopt(handoff))

    def _adopt(self, handoff: Handoff) -> None:
        turn, pool = handoff.turn, self.engine.pool
        handoff.receiver_hears(ReceiverEvent.ADOPT)
        self._handoffs.remove(handoff)
        request = turn.request(num_known=1)
        pool.hand_over(handoff.holder, request.holder)
        request.num_computed = handoff.num_tokens
        pool.commit(request.holder, request.tokens, request.num_computed, SALT)
        self.engine.add(request)

    def _reclaim(self, tenant: str | None) -> bool:
        """Give up the youngest lease without received KV; there is only one tenant here."""
        youngest = next((one for one in reversed(self._handoffs) if one.is_reserved), None)
        if youngest is None:
            return False
        self._give_up(youngest)
        return True

    def _give_up(self, handoff: Handoff) -> None:
        """Let the prompt be computed elsewhere, or here."""
        self._end(handoff)
        peers = () if handoff.turn.num_generated else handoff.others
        self._wiring.event_queue.after(0.0, lambda: self._ask(handoff.turn, peers))

    def _end(self, handoff: Handoff) -> None:
        """Free its blocks here, and on P when the message arrives."""
        if handoff.is_open:
            if not handoff.is_reserved:
                handoff.receiver_hears(ReceiverEvent.FILL_ENDED)
            handoff.receiver_hears(ReceiverEvent.ABORT)
            self._handoffs.remove(handoff)
            self.engine.pool.release(handoff.holder)
        if not handoff.is_given_up:
            handoff.is_given_up = True
            self._settle(handoff, SenderEvent.ABORT)

    def _settle(self, handoff: Handoff, event: SenderEvent) -> None:
        asked = self._peers[handoff.peer.replica_id]
        self._send(lambda: asked.settle(handoff, event))

    def _compute_here(self, turn: Turn) -> None:
        assert turn.placement is not None
        source = turn.placement.source
        self.num_computed_here += 1

        def begin(num_pulled: int) -> None:
            turn.num_pulled += num_pulled
            self.engine.add(turn.request(num_known=turn.num_generated))

        if source is None or source.epoch == self.info.epoch:
            self.engine.call(lambda: begin(0))
        else:
            self.puller.pull(self._wiring.engine_of(source.replica_id), turn.prompt, begin)

    # Tokens.

    def _draw(self, request: Request) -> int:
        turn, _ = self._open[request.request_id]
        if not request.output:
            turn.num_cached = request.num_cached
        return turn.answer[len(request.output)]

    def _on_step(self, step: Step, sampled: Sequence[Request]) -> None:
        outputs: list[RequestOutput] = []
        for request in sampled:
            turn, _ = self._open[request.request_id]
            turn.num_generated = len(request.output)
            if turn.is_generated:
                self.engine.finish(request)
            outputs.append(RequestOutput(request, turn.is_generated, request.num_run))
        self._reports.put(
            StepReport(
                outputs=tuple(outputs),
                num_tokens=step.work.num_tokens,
                num_running=self.engine.num_running,
                num_waiting=self.engine.num_waiting,
            )
        )
        self._publish()

    def _receive(self) -> None:
        """Send all tokens of a gateway in one frame."""
        frames: dict[int, Counter[Turn]] = {}
        for report in self._reports.take():
            for output in report.outputs:
                turn, gateway = self._open[output.request.request_id]
                frames.setdefault(gateway, Counter())[turn] += 1
                if output.is_finished:
                    del self._open[turn.request_id]
        for gateway, frame in frames.items():
            self._give(frame, gateway)
        self._publish()

    def _give(self, frame: Mapping[Turn, int], gateway: int) -> None:
        client = self._clients[gateway]
        self._send(lambda: client.give(frame))

    def _publish(self) -> None:
        self._updates.report_kv_events(self.engine.events)
        engine, num_running = self.engine, self.engine.num_running
        num_open = Counter(gateway for _, gateway in self._open.values())
        used = {gateway: num_open[gateway] for gateway in self._updates.gateways}
        lent = self._places.lend(used, self._wiring.event_queue.now)
        self._updates.tell(
            {
                gateway: Capacity(
                    is_draining=self._is_draining,
                    max_open=min(lent[gateway].num, self.info.max_open),
                    credit_id=lent[gateway].id,
                    num_running=num_running,
                    num_waiting=max(0, len(self._open) - num_running),
                    num_queued_tokens=engine.num_queued_tokens,
                    num_context_tokens=engine.last_work.num_context if num_running else 0,
                    num_blocks=engine.pool.num_blocks,
                    num_free_blocks=engine.pool.num_available,
                )
                for gateway in used
            }
        )

    def _send(self, message: Callable[[], None]) -> None:
        self._wiring.event_queue.after(self._wiring.latency_s, message)
