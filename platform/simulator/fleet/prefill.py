"""A simulated prefill replica: prompts in the order of the engine's scheduler, KV handed off.

What it admits, and what it lends to gateways, is said by the code of a live one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from baton.core.errors import Overloaded
from baton.core.replicas import Capacity, Demand, ReplicaInfo
from baton.engine.request.request import Request
from baton.kv_transfer.handoff.lease import SenderEvent
from baton.platform.simulator.fleet.engine import EngineHooks, SimulatedEngine, Step
from baton.platform.simulator.fleet.event_queue import EventQueue
from baton.platform.simulator.fleet.handoff import Handoff
from baton.platform.simulator.fleet.pulling import Puller
from baton.platform.simulator.fleet.replica_updates import Listener, ReplicaUpdates
from baton.prefill_service.lending import lending_budget
from baton.prefill_service.open_prompts import OpenPrompts
from baton.replica_core.credits import Credits


class Receiver(Protocol):
    """The decode replica of a handoff; called when a message is there."""

    def refused(self, handoff: Handoff) -> None: ...

    def granted(self, handoff: Handoff) -> None: ...

    def computed(self, handoff: Handoff, since_s: float) -> None:
        """KV of all computed so far may travel; that of the last step, from its beginning on."""

    def got_first_token(self, handoff: Handoff) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The parts that a simulated replica is given."""

    event_queue: EventQueue
    latency_s: float
    make_engine: Callable[[EngineHooks], SimulatedEngine]
    make_puller: Callable[[SimulatedEngine], Puller]
    engine_of: Callable[[str], SimulatedEngine]
    """Looks up a replica's engine by its id."""


class PrefillReplica:
    def __init__(self, info: ReplicaInfo, updates: ReplicaUpdates, wiring: Wiring) -> None:
        self.info = info
        self.engine = wiring.make_engine(
            EngineHooks(draw=self._draw, on_step=self._on_step, on_scheduled=self._on_scheduled)
        )
        self.puller = wiring.make_puller(self.engine)
        self._updates = updates
        self._wiring = wiring
        self._is_draining = False
        self._prompts = OpenPrompts(info.max_queued_tokens)
        self._handoffs: dict[str, tuple[Handoff, Receiver]] = {}
        """Handoffs by transfer id, until their prompt is computed."""
        device = self.engine.device
        times = device.step_times  # given ones are measured
        times = replace(times, num_prompt_steps=max(times.num_prompt_steps, 1))
        budget = lending_budget(times, device.scheduler.max_chunk, info.max_queued_tokens)
        self._credits: Credits[int] = Credits(budget)

    def tell(self) -> None:
        """All gateways that have joined what they are lent."""
        self._publish()

    def join(self, number: int, gateway: Listener) -> None:
        """A gateway comes, which is lent something once all are informed."""
        self._credits.join(number)
        self._updates.join(number, gateway, self.engine.pool, self.engine.events)

    def leave(self, number: int) -> None:
        """Forget a gateway that is gone. Its prompts are computed all the same."""
        self._credits.leave(number)
        self._updates.leave(number)
        self._publish()

    def drain(self) -> None:
        """Take nothing more."""
        self._is_draining = True
        self._publish()

    @property
    def is_idle(self) -> bool:
        """Nothing is computed, and nothing waits to be fetched."""
        return not self._handoffs and not self.engine.pool.num_in_use

    def observe(self, gateway: int, demand: Demand) -> None:
        self._credits.observe(gateway, demand=demand.num_tokens, credit_id=demand.credit_id)
        self._publish()

    def ask(self, handoff: Handoff, receiver: Receiver) -> None:
        """Compute the prompt, or refuse at once."""
        try:
            prompt = self._prompts.admit(handoff.message)
        except Overloaded:
            self._send(lambda: receiver.refused(handoff))
            return
        request = handoff.request = prompt.request
        self._handoffs[handoff.message.transfer_id] = (handoff, receiver)
        self._publish()
        source = handoff.message.source

        def begin(num_pulled: int) -> None:
            handoff.turn.num_pulled += num_pulled
            if not handoff.is_given_up:
                self.engine.add(request)

        if source is None:
            self.engine.call(lambda: begin(0))
        else:
            peer = self._wiring.engine_of(source.replica_id)
            self.puller.pull(peer, handoff.message.prompt, begin)

    def settle(self, handoff: Handoff, event: SenderEvent) -> None:
        """D has sealed the transfer, or given it up: nothing more is needed of it here."""
        self.engine.call(lambda: self._release(handoff, event))

    def _release(self, handoff: Handoff, event: SenderEvent) -> None:
        handoff.sender_hears(event)
        self._leave(handoff)
        if handoff.sender.is_released:
            if handoff.request is not None:
                self.engine.finish(handoff.request)
            self.engine.pool.release(handoff.holder)
        self._publish()

    def _leave(self, handoff: Handoff) -> None:
        self._handoffs.pop(handoff.message.transfer_id, None)
        prompt = self._prompts.get(handoff.message.transfer_id)
        if prompt is not None:
            self._prompts.remove(prompt)

    def _draw(self, request: Request) -> int:
        handoff, _ = self._handoffs[request.request_id]
        return handoff.turn.answer[len(request.output)]

    def _on_scheduled(self, request: Request) -> None:
        handoff, receiver = self._handoffs[request.request_id]
        handoff.turn.num_cached = request.num_cached
        self._send(lambda: receiver.granted(handoff))

    def _on_step(self, step: Step, sampled: Sequence[Request]) -> None:
        ran = [self._handoffs[chunk.request.request_id] for chunk in step.chunks]
        for request in sampled:  # a first token overtakes the KV behind it
            self._finish(request)
        for handoff, receiver in ran:
            receiver.computed(handoff, step.began_s)
        self._publish()

    def _finish(self, request: Request) -> None:
        """The first token is there; the KV stays until D has it."""
        handoff, receiver = self._handoffs[request.request_id]
        pool = self.engine.pool
        pool.share(request.holder, handoff.holder, len(pool.table(request.holder)))
        self.engine.finish(request)
        handoff.sender_hears(SenderEvent.COMPUTED)
        self._leave(handoff)
        self._send(lambda: receiver.got_first_token(handoff))

    def _publish(self) -> None:
        self._updates.report_kv_events(self.engine.events)
        pending: Counter[int] = Counter()
        computed: Counter[int] = Counter()
        for handoff, _ in self._handoffs.values():
            prompt = self._prompts.get(handoff.message.transfer_id)
            assert prompt is not None, "a handoff under way has its prompt here"
            pending[handoff.gateway] += prompt.num_queued_tokens
            computed[handoff.gateway] += prompt.num_computed_tokens
        gateways = self._updates.gateways
        used = {gateway: pending[gateway] for gateway in gateways}
        lent = self._credits.lend(used, self._wiring.event_queue.now)
        engine = self.engine
        self._updates.tell(
            {
                gateway: Capacity(
                    is_draining=self._is_draining,
                    credit_tokens=0 if self._is_draining else lent[gateway].num + computed[gateway],
                    credit_id=lent[gateway].id,
                    num_running=engine.num_running,
                    num_waiting=engine.num_waiting,
                    num_queued_tokens=self._prompts.num_queued_tokens,
                    num_blocks=engine.pool.num_blocks,
                    num_free_blocks=engine.pool.num_available,
                )
                for gateway in gateways
            }
        )

    def _send(self, message: Callable[[], None]) -> None:
        self._wiring.event_queue.after(self._wiring.latency_s, message)
