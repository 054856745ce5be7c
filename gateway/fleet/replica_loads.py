"""The load of each replica as placements see it: by its own reports, and by what this gateway has
sent there since.

    a replica's report, the state of its stream  --> its row in the Pool of its role
    a request opened there, ended                -->   how many run there
    a prompt booked there, over                  -->   when it is free again, by prediction
    a receipt                                    --> the cost of computing and of fetching KV
"""

from __future__ import annotations

from collections.abc import Callable, Container
from math import isclose

from baton.core.clock import Clock
from baton.core.ids import Epoch, RequestId
from baton.core.kv_layout import KvLayout
from baton.core.messages import Receipt
from baton.core.replicas import Capacity, ReplicaInfo, Role
from baton.gateway.fleet.links.decode_link import DecodeLink
from baton.gateway.fleet.links.links import Links
from baton.gateway.fleet.links.prefill_link import PrefillLink
from baton.router.cache.pulling import RateMeter
from baton.router.placement import Placement
from baton.router.prompt import Prompt
from baton.router.replicas.candidate import Candidate
from baton.router.replicas.pool import KnownReplica, Pool
from baton.router.speeds.link_times import Pair
from baton.router.speeds.speed import MeasuredSpeed

ENOUGH_STEPS = 16
"""Steps with prompts in them that a fit of a replica's rate needs; with fewer, the pool's rate is
used."""
NEWS_OF_RATE = 0.02
"""The least relative change of the pool's rate that is passed on, since each one invalidates cached
lookups."""


class ReplicaLoads:
    def __init__(
        self,
        links: Links,
        told_to_drain: Container[Epoch],
        meter: RateMeter,
        on_change: Callable[[], None],
        clock: Clock,
    ) -> None:
        """`told_to_drain`: replicas on which nothing is placed though they have not reported that
        they drain. `on_change`: called when a prompt is over, so that another may be placed."""
        self._links = links
        self._ordered_to_drain = told_to_drain
        self._on_change = on_change
        self._clock = clock
        self.meter = meter
        """The cost of fetching and of computing KV, measured from receipts."""
        self._told_rate = meter.rates.tokens_per_s
        """The rate last passed on to the candidates that use the pool's rate."""
        self._pool_by_role = {Role.DECODE: Pool(), Role.PREFILL: Pool()}
        self._epoch_by_request: dict[RequestId, Epoch] = {}

    def pool(self, role: Role) -> Pool:
        return self._pool_by_role[role]

    def replica(self, epoch: Epoch) -> KnownReplica | None:
        pools = self._pool_by_role
        return pools[Role.DECODE].replica(epoch) or pools[Role.PREFILL].replica(epoch)

    def candidate(self, epoch: Epoch) -> Candidate | None:
        """The candidate of a replica; None if it has left."""
        replica = self.replica(epoch)
        return None if replica is None else replica.candidate

    @property
    def layouts(self) -> tuple[KvLayout, ...]:
        """KV layouts of all replicas that may compute a prompt or have it cached: one or two for
        each way of hashing blocks."""
        return self.pool(Role.DECODE).layouts + self.pool(Role.PREFILL).layouts

    # Replicas come, report and leave.

    def meet(self, info: ReplicaInfo) -> None:
        """Take in the registry's entry of a replica that has a link; it may be new."""
        pool = self.pool(info.role)
        replica = pool.replica(info.epoch)
        if replica is None:
            replica = KnownReplica(info, self._new_candidate(info))
            pool.join(replica)
        replica.info = info
        self._write(replica, self._links[info.epoch])

    def leave(self, role: Role, epoch: Epoch) -> None:
        """Safe to repeat."""
        if epoch in self.pool(role):
            self.pool(role).leave(epoch)

    def observe(self, epoch: Epoch) -> None:
        """Take in a change of a replica, or of the stream to it."""
        link, replica = self._links.get(epoch), self.replica(epoch)
        if link is not None and replica is not None:
            self._write(replica, link)
            if link.capacity is not None:
                self._credit(replica, link, link.capacity)

    def observe_again(self, epoch: Epoch) -> bool:
        """Take in a repeated report of an idle replica. False if it contradicts what is booked
        here: then nothing is taken in."""
        link, replica = self._links.get(epoch), self.replica(epoch)
        if link is None or replica is None or epoch in self._ordered_to_drain:
            return False
        if replica.candidate.num_running:
            return False
        replica.received_at_s = link.capacity_report.received_at_s
        return True

    def apply_drain(self, epoch: Epoch) -> None:
        """Stop placing on a replica that is ordered to drain, or resume."""
        link, replica = self._links.get(epoch), self.replica(epoch)
        if link is not None and replica is not None:
            self._write(replica, link)

    def hear_receipt(
        self, receipt: Receipt, pair: Pair | None, handed_off: Pair | None = None
    ) -> None:
        """Learn from the receipt of one attempt, which sets the speed of replicas that have
        measured none. `pair`: lender and taker of a pull; `handed_off`: prefill and decode replica
        of a handoff."""
        self.meter.observe(receipt, pair, self._clock(), handed_off)
        rate = self.meter.rates.tokens_per_s
        if not isclose(rate, self._told_rate, rel_tol=NEWS_OF_RATE):
            self._told_rate = rate
            for pool in self._pool_by_role.values():
                pool.table.observe_pace(self.meter)

    # Requests run there.

    def where_runs(self, request_id: RequestId | None) -> Epoch | None:
        """The decode replica of a request of this gateway; None if it does not run."""
        return None if request_id is None else self._epoch_by_request.get(request_id)

    def has_started(self, request_id: RequestId, epoch: Epoch) -> None:
        self._epoch_by_request[request_id] = epoch
        replica = self.replica(epoch)
        if replica is not None:
            replica.candidate.num_running += 1
            self._write(replica, self._links.decode[epoch])

    def has_ended(self, request_id: RequestId, epoch: Epoch) -> None:
        """Forget where a request ran, unless it runs on another replica by now."""
        if self._epoch_by_request.get(request_id) == epoch:
            del self._epoch_by_request[request_id]
            candidate = self.candidate(epoch)
            if candidate is not None:
                candidate.num_running = max(candidate.num_running - 1, 0)

    # Prompts are computed there.

    def book(self, placement: Placement, epoch: Epoch) -> None:
        """Count the prompt of `placement` as work of `epoch`."""
        candidate = self.candidate(epoch)
        if candidate is not None:
            prompt = placement.prompt
            num_held = prompt.num_tokens - placement.num_prefill_tokens
            candidate.book(prompt, num_held, self._clock())
            self._await_prompts(epoch, candidate)

    def prompt_is_over(self, prompt: Prompt, epoch: Epoch, *, is_taken_back: bool = False) -> None:
        """The prompt is computed, or cancelled: stop counting it, and serve prompts that wait for
        `epoch`."""
        candidate, now = self.candidate(epoch), self._clock()
        if candidate is None:
            return
        if candidate.finished(prompt, now, is_taken_back=is_taken_back) is not None:
            self._await_prompts(epoch, candidate)
            self._on_change()

    def _new_candidate(self, info: ReplicaInfo) -> Candidate:
        """Until it reports, it computes at the pool's rate and has a credit of one prompt."""
        credit_tokens = 0 if info.role is Role.PREFILL else None
        return Candidate(info.replica_id, self.meter, epoch=info.epoch, credit_tokens=credit_tokens)

    def _write(self, replica: KnownReplica, link: DecodeLink | PrefillLink) -> None:
        """Update the replica's row, which placements read."""
        replica.is_connected = link.is_connected
        replica.is_ordered_to_drain = replica.info.epoch in self._ordered_to_drain
        if isinstance(link, PrefillLink):
            replica.is_away = link.is_away
        else:
            replica.is_connected, replica.num_open = link.answers, link.num_open
        replica.capacity = link.capacity
        replica.received_at_s = link.capacity_report.received_at_s
        self.pool(replica.info.role).write(replica)

    def _credit(
        self, replica: KnownReplica, link: DecodeLink | PrefillLink, report: Capacity
    ) -> None:
        """Update its queue, its speed and its credit from its own report."""
        candidate, info = replica.candidate, link.info
        if isinstance(link, PrefillLink) and not link.is_connected:
            candidate.credit_tokens = 0  # others are lent it
            return
        times = report.step_times
        if times is not None and times.num_prompt_steps >= ENOUGH_STEPS:
            speed = MeasuredSpeed(times=times, max_chunk=info.max_chunk, slowness=report.slowness)
            if speed != candidate.speed:
                if speed.is_sound:
                    candidate.speed = speed
                else:
                    link.capacity_report.doubt(report)
        if info.role is Role.PREFILL:
            candidate.credit_tokens = report.credit_tokens
        num_running = 0
        if isinstance(link, DecodeLink):
            num_running = max(report.num_running, link.num_open)
        candidate.observe(report.num_queued_tokens, num_running, self._clock())

    def _await_prompts(self, epoch: Epoch, candidate: Candidate) -> None:
        link = self._links.prefill.get(epoch)
        if link is not None:
            link.await_prompts(len(candidate.open))
