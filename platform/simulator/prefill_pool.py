"""Discrete events of one pool that computes prompts, routed by the gateway's own code.

    arrival --Line.arrive--> a replica, at once or when it is free --> first token --> answer
                                                                        '-- a session's next turn

The router sees what a live one sees: the index follows the caches' events, bookings are made at
dispatch and ended by first tokens. Prompts sent to a replica wait there in the order they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import count

from baton.core.ids import Epoch
from baton.core.kv_events import KvEvents
from baton.platform.simulator.block_cache import BlockCache
from baton.platform.simulator.outcome import Outcome, Served
from baton.platform.simulator.setup import ConstantRate, Setup
from baton.platform.traces.trace import Trace, TraceRequest
from baton.router.candidate import Candidate
from baton.router.kv_index import KvIndex
from baton.router.line import Line
from baton.router.prompt import Prompt, mixed
from baton.router.routing_policy import Held, RoutingPolicy
from baton.router.sessions import Sessions


class _Replica:
    def __init__(self, number: int, setup: Setup) -> None:
        self.epoch = Epoch(f"{number:032x}")
        self.candidate = Candidate(
            f"prefill-{number}", ConstantRate(tokens_per_s=setup.tokens_per_s)
        )
        self.cache = BlockCache(setup.num_blocks)
        self.queue: deque[_Turn] = deque()
        self.computing: _Turn | None = None
        self.next_sequence = 1
        self.busy_s = 0.0


class _Turn:
    """One request of the trace, under way."""

    __slots__ = ("following", "num_cached", "prompt", "request")

    def __init__(self, request: TraceRequest, prompt: Prompt, following: Iterator[TraceRequest]):
        self.request = request
        self.prompt = prompt
        self.following = following
        """The turns of its session that come after it."""
        self.num_cached = 0


class PrefillPool:
    def __init__(self, setup: Setup, policy: RoutingPolicy, seed: int) -> None:
        self._setup = setup
        self._seed = seed
        self._replicas = [_Replica(number, setup) for number in range(setup.num_replicas)]
        self._candidates = [replica.candidate for replica in self._replicas]
        self._replica_by_name = {replica.candidate.name: replica for replica in self._replicas}
        self._index = KvIndex()
        for replica in self._replicas:
            self._index.apply(replica.epoch, KvEvents(first_sequence=1, is_snapshot=True))
        self._line = Line(policy, self._num_held)
        self._turn_by_number: dict[int, _Turn] = {}
        self._sessions = Sessions()
        self._numbers = count()
        self._events: list[tuple[float, int, TraceRequest | _Replica, Iterator[TraceRequest]]] = []
        self._num_waiting = 0
        self._now = 0.0
        self._outcome = Outcome()

    def run(self, trace: Trace) -> Outcome:
        """Play the whole trace, until its last first token."""
        order = count()
        self._order = order
        if trace.is_closed_loop:
            for turns in trace.sessions().values():
                following = iter(turns)
                first = next(following)
                heappush(self._events, (first.gap_s, next(order), first, following))
        else:
            for request in trace.requests:
                heappush(self._events, (request.arrival_s or 0.0, next(order), request, iter(())))
        while self._events:
            self._now, _, what, following = heappop(self._events)
            if isinstance(what, _Replica):
                self._is_done(what)
            else:
                self._arrives(what, following)
        self._outcome.ended(self._now, [replica.busy_s for replica in self._replicas])
        return self._outcome

    def _arrives(self, request: TraceRequest, following: Iterator[TraceRequest]) -> None:
        limit = self._setup.max_waiting
        if limit is not None and self._num_waiting >= limit:
            self._outcome.rejected += 1
            return
        prompt = self._prompt(request)
        turn = self._turn_by_number[prompt.number] = _Turn(request, prompt, following)
        held = self._held(prompt)
        self._num_waiting += 1
        chosen = self._line.arrive(prompt, self._candidates, held, self._now)
        if chosen is not None:
            self._send(turn, chosen, held.tokens[self._candidates.index(chosen)])

    def _prompt(self, request: TraceRequest) -> Prompt:
        number = next(self._numbers)
        names = _names(request.hash_ids)
        size = self._setup.block_size
        whole = names[: request.input_length // size]
        if request.session is not None:
            session, is_first_turn = request.session, request.turn == 0
        else:
            session, is_first_turn = self._sessions.of(whole)
        return Prompt(
            number=number,
            num_tokens=request.input_length,
            arrived_s=self._now,
            names=names,
            num_blocks=-(-request.input_length // size),
            block_size=size,
            session=session,
            is_first_turn=is_first_turn,
            draw=mixed(self._seed, number + 1),
        )

    def _held(self, prompt: Prompt) -> Held:
        cached = self._index.num_cached_blocks(prompt.names) if prompt.names else {}
        return Held(
            [self._tokens(prompt, cached.get(replica.epoch, 0)) for replica in self._replicas]
        )

    def _num_held(self, prompt: Prompt, candidate: Candidate) -> int:
        cache = self._replica_by_name[candidate.name].cache
        return self._tokens(prompt, cache.num_held(prompt.names))

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
        heappush(self._events, (self._now + work_s, next(self._order), replica, iter(())))

    def _is_done(self, replica: _Replica) -> None:
        turn = replica.computing
        assert turn is not None
        replica.computing = None
        prompt = self._turn_by_number.pop(turn.prompt.number).prompt
        replica.candidate.finished(prompt, self._now)
        self._outcome.serve(
            Served(self._now - prompt.arrived_s, prompt.num_tokens, turn.num_cached)
        )
        self._follow_up(turn)
        if replica.queue:
            self._begin(replica)
            return
        following = self._line.free(replica.candidate, self._candidates, self._now)
        if following is not None:
            self._send(
                self._turn_by_number[following.number],
                replica.candidate,
                self._num_held(following, replica.candidate),
            )

    def _follow_up(self, turn: _Turn) -> None:
        """The session's next turn comes once this answer is there and read."""
        following = next(turn.following, None)
        if following is not None:
            answer_s = self._now + self._setup.itl_s * max(turn.request.output_length - 1, 0)
            at = answer_s + following.gap_s
            heappush(self._events, (at, next(self._order), following, turn.following))


def _names(hash_ids: Sequence[int]) -> tuple[bytes, ...]:
    return tuple(hash_id.to_bytes(16, "big") for hash_id in hash_ids)
