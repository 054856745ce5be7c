"""A discrete-event simulation of a prefill pool, routed by the gateway's own code.

    arrival --Line.arrive--> a replica, at once or when it is free --> first token --> answer
                                                                        '-- a session's next turn

The router works as in a live gateway: the index follows the caches' events; bookings begin at
dispatch and end at first tokens. Prompts wait at a replica in order of arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf

import numpy as np

from baton.core.ids import Epoch
from baton.core.kv_events import KvEvents
from baton.platform.simulator.arrivals import Arrival, Arrivals
from baton.platform.simulator.block_cache import BlockCache
from baton.platform.simulator.block_names import BlockNames
from baton.platform.simulator.outcome import Outcome, Served
from baton.platform.simulator.setup import Setup
from baton.platform.traces.trace import Trace
from baton.router.cache.kv_index import KvIndex
from baton.router.fairness.slo import Slo
from baton.router.policies.routing_policy import PrefixHits, RoutingPolicy
from baton.router.prefill_queue import PrefillQueue
from baton.router.prompt import Prompt, mixed
from baton.router.replicas.candidate import Candidate, Speed
from baton.router.replicas.candidates import CandidateTable
from baton.router.sessions import Sessions
from baton.router.speeds.speed import ConstantRate


class _Replica:
    def __init__(self, number: int, setup: Setup, speed: Speed) -> None:
        self.epoch = Epoch(f"{number:032x}")
        self.candidate = Candidate(f"prefill-{number}", speed)
        self.cache = BlockCache(setup.num_blocks)
        self.queue: deque[_Turn] = deque()
        self.computing: _Turn | None = None
        self.next_sequence = 1
        self.busy_s = 0.0


class _Turn:
    """One request of the trace, under way."""

    __slots__ = ("arrival", "num_cached", "prompt", "slo")

    def __init__(self, arrival: Arrival, prompt: Prompt, slo: Slo) -> None:
        self.arrival = arrival
        self.prompt = prompt
        self.slo = slo
        self.num_cached = 0


class PrefillPool:
    """Plays one trace, once."""

    def __init__(
        self,
        trace: Trace,
        setup: Setup,
        policy: RoutingPolicy,
        seed: int,
        speeds: Sequence[Speed] = (),
    ) -> None:
        """`speeds`: of each replica, where the setup's rate is not that of all.

        Raises InvalidConfig if the trace's hash ids do not fit the block size.
        """
        rate = ConstantRate(tokens_per_s=setup.tokens_per_s)
        speeds = speeds or [rate] * setup.num_replicas
        self._setup = setup
        self._seed = seed
        self._arrivals = Arrivals(trace)
        self._names_of = BlockNames(trace, setup.block_size, seed).of
        self._replicas = [_Replica(number, setup, speed) for number, speed in enumerate(speeds)]
        self._candidates = CandidateTable(replica.candidate for replica in self._replicas).all
        self._replica_by_name = {replica.candidate.name: replica for replica in self._replicas}
        self._index = KvIndex()
        for replica in self._replicas:
            self._index.apply(replica.epoch, KvEvents(first_sequence=1, is_snapshot=True))
        self._line = PrefillQueue(policy, self._num_held)
        self._turn_by_number: dict[int, _Turn] = {}
        self._sessions = Sessions()
        self._numbers = count()
        self._computing: list[tuple[float, int, _Replica]] = []
        """Replicas by the time when they have computed their prompt."""
        self._num_waiting = 0
        self._now = 0.0
        self._outcome = Outcome()

    def play(self) -> Outcome:
        """Simulate from the first request to the last first token."""
        while True:
            done_s = self._computing[0][0] if self._computing else inf
            arrival_s = self._arrivals.next_s
            if done_s == arrival_s == inf:
                break
            self._now = min(done_s, arrival_s)
            if done_s <= arrival_s:
                self._is_done(heappop(self._computing)[2])
            else:
                self._arrives(self._arrivals.pop())
        self._outcome.ended(self._now, [replica.busy_s for replica in self._replicas])
        return self._outcome

    def _arrives(self, arrival: Arrival) -> None:
        slo = self._setup.slo_of(self._seed, arrival.request.session or f"{arrival.place}")
        prompt = self._prompt(arrival, slo)
        held = self._held(prompt)
        chosen = self._line.arrive(prompt, self._candidates, held, self._now)
        if self._is_full and not self._is_idle(chosen):
            self._line.leave(prompt)
            self._outcome.reject(slo)
            self._arrivals.answered(arrival, self._now)
            return
        turn = self._turn_by_number[prompt.number] = _Turn(arrival, prompt, slo)
        self._num_waiting += 1
        if chosen is not None:
            self._send(turn, self._candidates[chosen], int(held.tokens[chosen]))

    @property
    def _is_full(self) -> bool:
        """Nobody more may wait."""
        limit = self._setup.max_waiting
        return limit is not None and self._num_waiting >= limit

    def _is_idle(self, chosen: int | None) -> bool:
        """Whether a prompt that is sent there is computed at once."""
        return chosen is not None and self._replicas[chosen].computing is None

    def _prompt(self, arrival: Arrival, slo: Slo) -> Prompt:
        request = arrival.request
        number = next(self._numbers)
        names = self._names_of(request)
        size = self._setup.block_size
        if request.session is not None:
            session, is_first_turn = request.session, arrival.is_first_turn
        else:
            session, is_first_turn = self._sessions.of(names[: request.input_length // size])
        return Prompt(
            number=number,
            num_tokens=request.input_length,
            arrived_s=self._now,
            names=names,
            num_blocks=-(-request.input_length // size),
            block_size=size,
            session=session,
            is_first_turn=is_first_turn,
            due_s=slo.due_s(self._now),
            draw=mixed(self._seed, number + 1),
        )

    def _held(self, prompt: Prompt) -> PrefixHits:
        cached = self._index.num_cached_blocks(prompt.names) if prompt.names else {}
        held = [self._tokens(prompt, cached.get(replica.epoch, 0)) for replica in self._replicas]
        return PrefixHits(np.array(held, float))

    def _num_held(self, prompts: Sequence[Prompt], candidate: Candidate) -> Sequence[int]:
        cache = self._replica_by_name[candidate.name].cache
        return [self._tokens(prompt, cache.num_held(prompt.names)) for prompt in prompts]

    def _tokens(self, prompt: Prompt, num_blocks: int) -> int:
        return min(num_blocks * self._setup.block_size, prompt.num_tokens - 1)

    def _send(self, turn: _Turn, candidate: Candidate, num_held: int) -> None:
        candidate.book(turn.prompt, num_held, self._now)
        replica = self._replica_by_name[candidate.name]
        replica.queue.append(turn)
        if replica.computing is None:
            self._begin(replica)

    def _begin(self, replica: _Replica) -> None:
        turn = replica.computing = replica.queue.popleft()
        self._num_waiting -= 1
        names = turn.prompt.names
        turn.num_cached = self._tokens(turn.prompt, replica.cache.num_held(names))
        work_s = replica.candidate.speed.prefill_s(turn.prompt.num_tokens, turn.num_cached)
        replica.busy_s += work_s
        events = tuple(replica.cache.store(names))
        if events:
            self._index.apply(
                replica.epoch, KvEvents(first_sequence=replica.next_sequence, events=events)
            )
            replica.next_sequence += len(events)
        heappush(self._computing, (self._now + work_s, turn.prompt.number, replica))

    def _is_done(self, replica: _Replica) -> None:
        turn = replica.computing
        assert turn is not None
        replica.computing = None
        prompt = self._turn_by_number.pop(turn.prompt.number).prompt
        replica.candidate.finished(prompt, self._now)
        self._outcome.serve(
            Served(
                self._now - prompt.arrived_s,
                turn.arrival.place,
                prompt.num_tokens,
                turn.num_cached,
                turn.slo,
            )
        )
        answered_s = self._now + self._setup.decode_s(turn.arrival.request.output_length)
        self._arrivals.answered(turn.arrival, answered_s)
        if replica.queue:
            self._begin(replica)
            return
        following = self._line.free(replica.candidate, self._candidates, self._now)
        if following is not None:
            self._send(
                self._turn_by_number[following.number],
                replica.candidate,
                *self._num_held([following], replica.candidate),
            )
