"""Places requests: chooses the replica that decodes, and the one that computes the prompt.

    place(request) -> Placement     it is sent there now
                   -> Prompt        it waits for a prefill replica that is busy (`prefill_queue.py`)
                   -> None          no decode replica has room, or it would wait and may not
    served(...)   --> Prompt, Placement ...    waiting prompts that can be sent after a change
    stranded(...) --> Prompt ...               whose replica left or does not answer: place anew

The decode replica is the one where decoding costs least (`decode_costs.py`); a request that belongs
with another one goes there, if there is room. It computes the prompt itself if it must, or if that
costs less than a handoff (`local_prefill.py`). Otherwise, and if there are no prefill replicas, the
routing policy chooses. Blocks that another replica has cached count as present if fetching them is
clearly cheaper than computing them (`pulling.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from baton.core.ids import Epoch
from baton.router.answer import Answers, Options, Question
from baton.router.cache.matches import Lookup
from baton.router.cache.prompt_names import PromptNames, WayToName, way_to_name
from baton.router.cache.pulling import PullRates
from baton.router.decode_choice import TypicalOutput, choose_decode
from baton.router.defaults import DEFAULT_POLICY, LOCAL_PREFILL_TOKENS
from baton.router.eligible import but_draining, in_time, is_late, opened, ready
from baton.router.explain.decisions import Considered
from baton.router.fetching import held_by
from baton.router.local_prefill import Choice, why_compute_locally, why_here
from baton.router.placement import Placement, PlacementRequest
from baton.router.policies.routing_policy import RoutingPolicy
from baton.router.prefill_queue import PrefillQueue
from baton.router.prompt import Prompt, drawn
from baton.router.replicas.candidate import Candidate
from baton.router.replicas.view import NOBODY, PoolView, ReplicaView, View
from baton.router.sessions import Sessions
from baton.router.sources import source_for

LINE_PER_REPLICA = 4
"""Prompts in line for each prefill replica: enough to choose from; more wait their turn outside."""

NumCached = Callable[[Sequence[PromptNames], Epoch], Sequence[int]]
"""How many leading tokens of each prompt a replica has."""
LookupOf = Callable[[Epoch], Lookup | None]
"""Returns the arguments for compiled look-ups in a replica's cache; None if these are not
possible."""
NOTHING = PromptNames()
"""No prompt: replicas are looked at for what they do."""


@dataclass(frozen=True, slots=True)
class Routing:
    """How requests are routed: what is configured."""

    policy: RoutingPolicy
    local_prefill_tokens: int = LOCAL_PREFILL_TOKENS
    """A decode replica that lacks no more of a prompt computes it itself where that costs no more
    than a prefill replica that is free; 0: never."""
    pull_rates: PullRates = field(default_factory=PullRates)
    """Costs of fetching and computing KV, until they are measured."""
    name: str = DEFAULT_POLICY
    """The policy's."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights of tenants, in tokens computed while several wait; 1 where none is given."""


@dataclass(frozen=True, slots=True)
class _InLine:
    request: PlacementRequest
    prompt: Prompt
    names: PromptNames
    choice: Candidate
    """The candidate in whose line the prompt stands."""
    foreseen_s: float
    """Seconds until its first token, as predicted when it came."""
    way: WayToName
    """By which `prompt.names` name its blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPlacement:
    """The placement that a request would get now."""

    decode: ReplicaView
    computes: ReplicaView
    taken: Considered
    """The estimate for the replica that would compute it."""
    is_measured: bool
    """Whether by that replica's own step times."""


class Placer:
    """Keeps the line. What a replica has to do is in its candidate's books."""

    def __init__(
        self,
        routing: Routing,
        num_cached: NumCached,
        lookup_of: LookupOf = lambda epoch: None,
    ) -> None:
        self._policy = routing.policy
        self._answers = Answers(routing.policy)
        self._num_cached = num_cached
        self._lookup_of = lookup_of
        self._local_prefill_tokens = routing.local_prefill_tokens
        self._line = PrefillQueue(routing.policy, self._num_held, self._lookup_at)
        self._in_line: dict[int, _InLine] = {}
        """Prompts in line, by number."""
        self._num_by_way = Counter[WayToName]()
        """How many of them have their blocks named by each way."""
        self._numbers = count()
        self._sessions = Sessions()
        self._outputs = TypicalOutput()

    def observe_output(self, num_tokens: int) -> None:
        """A request has ended after so many tokens of output."""
        self._outputs.observe(num_tokens)

    def reroute(self, routing: Routing) -> None:
        """Go by another policy from now on. What was measured of pulls stays."""
        self._policy = routing.policy
        self._answers = Answers(routing.policy)
        self._local_prefill_tokens = routing.local_prefill_tokens
        self._line.go_by(routing.policy)

    def __len__(self) -> int:
        """Prompts in line."""
        return len(self._in_line)

    @property
    def num_line_tokens(self) -> int:
        """Tokens of those in line."""
        return sum(one.prompt.num_tokens for one in self._in_line.values())

    def has_space(self, view: View) -> bool:
        """Whether one more may stand in line."""
        return len(self) < LINE_PER_REPLICA * max(len(view.prefill), 1)

    def place(
        self,
        request: PlacementRequest,
        names: PromptNames,
        view: View,
        now: float,
        *,
        may_wait: bool = True,
    ) -> Placement | Prompt | None:
        """Choose replicas; nothing is booked until the caller has sent the request. None also for a
        request that needs a prefill replica when no more may wait."""
        choice = choose_decode(request, view, now, self._outputs)
        if choice is None:
            return None
        decode, is_beside, decode_considered = choice
        peers = in_time(ready(view.prefill, request), now)
        if not peers and not is_beside:
            return self._aggregated(request, names, view, now)
        why = self._why_here(request, Choice(decode, is_beside, peers, view, now))
        if not why and not may_wait:
            return None
        taker = decode if why or not peers else peers[0]
        prompt = self._prompt(request, names, taker, now)
        asked = Question(request, prompt, decode, is_beside, view, now, decode_considered)
        if why:
            return self._answers.here(asked, why)
        options = asked.options(peers, self._policy)
        chosen = self._line.arrive(prompt, options.candidates, options.held, now, options.cheapest)
        if chosen is not None:
            return self._answers.apart(asked, options, chosen)
        there_s = self._line.at_once_s(prompt, now)
        why = why_compute_locally(prompt, decode, peers, view, now, at_most_s=there_s)
        if why:
            self._line.leave(prompt)
            return self._answers.here(asked, why)
        foreseen_s = self._line.foreseen_s(prompt, now) + view.rates.latency_s
        waits_for = self._line.choice(prompt)
        way = way_to_name(taker.info.layout)
        entry = _InLine(request, prompt, names, waits_for, foreseen_s, way)
        self._in_line[prompt.number] = entry
        self._num_by_way[way] += 1
        return prompt

    def _aggregated(
        self, request: PlacementRequest, names: PromptNames, view: View, now: float
    ) -> Placement:
        """The policy's choice of the decode replicas, which compute their prompts themselves."""
        replicas = opened(view.decode, request)
        prompt = self._prompt(request, names, replicas[0], now)
        held = held_by(replicas, view, request, None)
        options = Options.of(replicas, prompt, held, self._policy, now)
        decode = replicas[options.cheapest]
        why = self._why_here(request, Choice(decode, False, NOBODY, view, now))
        return self._answers.here(Question(request, prompt, decode, False, view, now), why, options)

    def outlook(
        self, request: PlacementRequest, names: PromptNames, view: View, now: float
    ) -> PredictedPlacement | None:
        """A prediction of `place`, without any effect."""
        choice = choose_decode(request, view, now, self._outputs)
        if choice is None:
            return None
        decode, is_beside, _ = choice
        peers = ready(view.prefill, request)
        if not peers and not is_beside:
            replicas = opened(view.decode, request)
            decode = computes = self._cheapest(request, names, replicas, view, now)
        elif self._why_here(request, Choice(decode, is_beside, peers, view, now)):
            computes = decode
        else:
            computes = self._cheapest(request, names, peers, view, now, decode)
            prompt = self._prompt(request, names, computes, now, is_kept=False)
            if why_compute_locally(prompt, decode, peers, view, now):
                computes = decode
        prompt = self._prompt(request, names, computes, now, is_kept=False)
        asked = Question(request, prompt, decode, is_beside, view, now)
        return PredictedPlacement(
            decode=decode,
            computes=computes,
            taken=self._answers.alone(asked, computes, source_for(computes, view, request)),
            is_measured=computes.candidate.speed.is_measured,
        )

    def _cheapest(
        self,
        request: PlacementRequest,
        names: PromptNames,
        replicas: PoolView,
        view: View,
        now: float,
        decode: ReplicaView | None = None,
    ) -> ReplicaView:
        prompt = self._prompt(request, names, replicas[0], now, is_kept=False)
        held = held_by(replicas, view, request, None if decode is None else decode.info)
        return replicas[Options.of(replicas, prompt, held, self._policy, now).cheapest]

    def served(
        self, look: Callable[[PromptNames], View], now: float
    ) -> Iterator[tuple[Prompt, Placement]]:
        """Yield the prompts in line whose turn has come, as `look` sees replicas for each of them.

        The caller sends one on its way before it asks for the next.
        """
        while self._in_line:
            view = look(NOTHING)  # the one before has taken a place
            if not view.decode.pool.num_open:
                return
            takers = but_draining(view.prefill)
            found = self._line.next(takers.candidates, now)
            if found is None:
                return
            candidate, prompt = found
            entry = self._forget(prompt)
            assert entry is not None, "only this one takes prompts out of line"
            yield prompt, self._bound(entry, candidate, look(entry.names), now)

    def foreseen(self, prompt: Prompt, now: float) -> tuple[int, float]:
        """How many go before one in line, and how long it takes to its first token."""
        return self._line.num_before(prompt), self._line.foreseen_s(prompt, now)

    def _bound(self, entry: _InLine, chosen: Candidate, view: View, now: float) -> Placement:
        """`chosen` computes the prompt, for the decode replica that is best at this moment."""
        choice = choose_decode(entry.request, view, now, self._outputs)
        assert choice is not None, "the caller has seen that one is open"
        asked = Question(
            *(entry.request, entry.prompt, choice.replica, choice.is_beside),
            *(view, now, choice.considered),
        )
        options = asked.options(ready(view.prefill, entry.request), self._policy)
        first = options.candidates.place(chosen)
        if first is None:  # an earlier attempt failed there
            return self._answers.apart(asked, options, options.cheapest, "", entry.foreseen_s)
        if chosen is entry.choice:
            in_line_s = now - entry.prompt.arrived_s
            why = f"its turn for {chosen.name} came after {in_line_s:.1f} s in line"
        else:
            why = f"{chosen.name} was free, and it gained by leaving the line of "
            why += entry.choice.name
        return self._answers.apart(asked, options, first, why, entry.foreseen_s)

    def stranded(self, view: View, now: float) -> list[Prompt]:
        """The prompts whose replica takes none any more, or is late; they are taken out of line."""
        pool = view.prefill.pool
        is_bad = pool.is_draining | pool.is_away | is_late(pool, now)
        lost = [
            waiting.prompt
            for waiting in self._line
            if waiting.candidate not in pool.table or is_bad[waiting.candidate.row]
        ]
        for prompt in lost:
            self.leave(prompt)
        return lost

    def leave(self, prompt: Prompt) -> None:
        """It waits no more. Safe to repeat."""
        self._line.leave(prompt)
        self._forget(prompt)

    def _forget(self, prompt: Prompt) -> _InLine | None:
        entry = self._in_line.pop(prompt.number, None)
        if entry is not None:
            self._num_by_way[entry.way] -= 1
            if not self._num_by_way[entry.way]:
                del self._num_by_way[entry.way]
        return entry

    def _lookup_at(self, candidate: Candidate) -> Lookup | None:
        """None, too, where it names blocks otherwise than some of those in line."""
        assert candidate.epoch is not None, "replicas of a fleet have one"
        lookup = self._lookup_of(candidate.epoch)
        return lookup if lookup and self._num_by_way.keys() == {lookup.way} else None

    def _num_held(self, prompts: Sequence[Prompt], candidate: Candidate) -> Sequence[int]:
        assert candidate.epoch is not None, "replicas of a fleet have one"
        in_line = self._in_line
        names = [in_line[prompt.number].names for prompt in prompts]
        held = self._num_cached(names, candidate.epoch)
        return [
            num_held if num_held < prompt.num_tokens else prompt.num_tokens - 1
            for num_held, prompt in zip(held, prompts, strict=True)
        ]

    def _why_here(self, request: PlacementRequest, choice: Choice) -> str:
        return why_here(request, choice, self._local_prefill_tokens)

    def _prompt(
        self,
        request: PlacementRequest,
        names: PromptNames,
        taker: ReplicaView,
        now: float,
        *,
        is_kept: bool = True,
    ) -> Prompt:
        """If it is not kept, nothing is learnt of it: it is only asked about."""
        layout = taker.info.layout
        named = names.under(layout)
        find = self._sessions.of if is_kept else self._sessions.known
        session, is_first_turn = find(named, request.session)
        return Prompt(
            number=next(self._numbers) if is_kept else -1,
            num_tokens=request.num_tokens,
            arrived_s=now if request.arrived_s is None else request.arrived_s,
            priority=request.priority,
            names=named,
            num_blocks=-(-request.num_tokens // layout.block_size),
            block_size=layout.block_size,
            session=session,
            is_first_turn=is_first_turn,
            due_s=request.due_s,
            draw=drawn(request.request_id),
        )
