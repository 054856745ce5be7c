"""Where a request runs: which replica decodes it, and which computes its prompt.

    place(request) -> Placement     it goes there now
                   -> Prompt        it waits in line for a prefill replica that is busy (`line.py`)
                   -> None          no decode replica has room
    served(...)   --> Prompt, Placement ...    of those in line, when something has changed
    stranded(...) --> Prompt ...               whose replica left, or answers nobody: place anew

The decode replica is the one with the least to do, counting what it lacks of the prompt; a request
that belongs beside another goes there, if there is room. It computes the prompt itself if it must,
if it lacks no more than `local_prefill_tokens` of it, or if that is clearly sooner than waiting for
a prefill replica. Else, and where there are none, the routing policy chooses. What another replica
has cached counts as there if fetching it is clearly cheaper than computing it (`pulling.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from baton.core.ids import Epoch
from baton.core.messages import Role
from baton.router.candidate import Candidate
from baton.router.decisions import Considered
from baton.router.line import Line
from baton.router.placement import Placement, PlacementRequest
from baton.router.policies.by_name import DEFAULT
from baton.router.prompt import Prompt, drawn, mixed
from baton.router.prompt_names import PromptNames
from baton.router.pulling import Holding, PullRates, best_source
from baton.router.routing_policy import Held, RoutingPolicy, cheapest
from baton.router.sessions import Sessions
from baton.router.view import ReplicaView, View

RUNNING_REQUEST_COST = 8
"""Tokens' worth of a request that decodes on a replica: it slows every step a little."""

MAX_PREFILL_CANDIDATES = 2

CLEARLY = 1.25
"""How many times what computing a prompt here takes, waiting for a prefill replica must take."""

OVERDUE_S = 0.5
"""A replica whose oldest prompt is later than this is not waited for."""

LINE_PER_REPLICA = 4
"""Prompts in line for each prefill replica: enough to choose from; more wait their turn outside."""

LOCAL_PREFILL_TOKENS = 64

MAX_TOLD = 8
"""Candidates that a decision tells of: the cheapest."""

NumCached = Callable[[PromptNames, Epoch], int]
"""How many leading tokens of a prompt a replica has."""


@dataclass(frozen=True, slots=True)
class Routing:
    """How requests are routed: what is configured."""

    policy: RoutingPolicy
    local_prefill_tokens: int = LOCAL_PREFILL_TOKENS
    """A decode replica that lacks no more of a prompt computes it itself."""
    pull_rates: PullRates = field(default_factory=PullRates)
    """What fetching and computing KV cost, until that is measured."""
    name: str = DEFAULT
    """The policy's."""


@dataclass(frozen=True, slots=True)
class _InLine:
    request: PlacementRequest
    prompt: Prompt
    names: PromptNames
    foreseen_s: float
    """Until its first token, as predicted when it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Where a request would go now, if it were asked for."""

    decode: ReplicaView
    computes: ReplicaView
    taken: Considered
    """What is known of the one that would compute the prompt."""
    is_measured: bool
    """Whether by that replica's own step times."""


class Placer:
    """Keeps the line. What a replica has to do is in its candidate's books."""

    def __init__(self, routing: Routing, num_cached: NumCached) -> None:
        self._policy = routing.policy
        self._num_cached = num_cached
        self._local_prefill_tokens = routing.local_prefill_tokens
        self._line = Line(routing.policy, self._num_held)
        self._in_line: dict[int, _InLine] = {}
        """By the prompt's number."""
        self._numbers = count()
        self._sessions = Sessions()

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
        self, request: PlacementRequest, names: PromptNames, view: View, now: float
    ) -> Placement | Prompt | None:
        """Choose; nothing is booked until the caller has sent the request on its way."""
        decode, is_beside = _decode(request, view)
        if decode is None:
            return None
        ready = _in_time(_ready(view.prefill, request), now)
        if not ready and not is_beside:
            decode = self._least_cost(request, names, view, now)
        why_here = self._why_here(request, decode, view, is_beside=is_beside, has_peers=bool(ready))
        taker = decode if why_here or not ready else ready[0]
        prompt = self._prompt(request, names.under(taker.info.layout), taker, now)
        if why_here:
            return self._here(request, prompt, decode, view, why_here, is_beside=is_beside)
        held = Held([replica.num_soon_tokens for replica in ready])
        candidates = [replica.candidate for replica in ready]
        costs = self._policy.costs(prompt, candidates, held, now)
        chosen = self._line.arrive(prompt, candidates, held, now, costs)
        if chosen is not None:
            return self._apart(request, prompt, chosen, view, now, costs)
        sooner = self._sooner_here(prompt, decode, ready, view, now)
        if sooner:
            self._line.leave(prompt)
            return self._here(request, prompt, decode, view, sooner, is_beside=is_beside)
        foreseen_s = self._line.foreseen_s(prompt, now) + view.rates.latency_s
        self._in_line[prompt.number] = _InLine(request, prompt, names, foreseen_s)
        return prompt

    def outlook(
        self, request: PlacementRequest, names: PromptNames, view: View, now: float
    ) -> Outlook | None:
        """What `place` would do, as far as can be told; nothing is kept of the question."""
        decode, is_beside = _decode(request, view)
        if decode is None:
            return None
        ready = _ready(view.prefill, request)
        if not ready and not is_beside:
            decode = self._least_cost(request, names, view, now)
        why_here = self._why_here(request, decode, view, is_beside=is_beside, has_peers=bool(ready))
        takers = [decode] if why_here or not ready else ready
        prompt = _unnumbered(request, names, takers[0], now)
        held = Held([replica.num_soon_tokens for replica in takers])
        candidates = [replica.candidate for replica in takers]
        costs = self._policy.costs(prompt, candidates, held, now)
        computes = takers[cheapest(prompt, candidates, costs)]
        if computes is not decode and self._sooner_here(prompt, decode, ready, view, now):
            computes = decode
        return Outlook(
            decode=decode,
            computes=computes,
            taken=self._considered(request, prompt, [computes], view, now)[0],
            is_measured=computes.candidate.speed.is_measured,
        )

    def served(
        self, look: Callable[[PromptNames], View], now: float
    ) -> Iterator[tuple[Prompt, Placement]]:
        """Those in line whose turn has come, as `look` sees replicas for each of them.

        The caller sends one on its way before it asks for the next.
        """
        while self._in_line:
            view = look(PromptNames())  # the one before has taken a place
            if not any(replica.is_open for replica in view.decode):
                return
            candidates = [replica.candidate for replica in view.prefill if not replica.is_draining]
            found = self._next(candidates, now)
            if found is None:
                return
            candidate, prompt = found
            entry = self._in_line.pop(prompt.number)
            view = look(entry.names)
            placement = self._apart(entry.request, prompt, candidate, view, now)
            yield (
                prompt,
                replace(placement, in_line_s=now - prompt.arrived_s, foreseen_s=entry.foreseen_s),
            )

    def stranded(self, view: View, now: float) -> list[Prompt]:
        """Those whose replica takes nobody any more, or is late: they are in line no more."""
        good = {
            id(replica.candidate)
            for replica in view.prefill
            if not replica.is_draining and replica.candidate.overdue_s(now) <= OVERDUE_S
        }
        lost = [waiting.prompt for waiting in self._line if id(waiting.candidate) not in good]
        for prompt in lost:
            self.leave(prompt)
        return lost

    def leave(self, prompt: Prompt) -> None:
        """It waits no more. Safe to repeat."""
        self._line.leave(prompt)
        self._in_line.pop(prompt.number, None)

    def _next(self, candidates: Sequence[Candidate], now: float) -> tuple[Candidate, Prompt] | None:
        for candidate in candidates:
            prompt = self._line.free(candidate, candidates, now)
            if prompt is not None:
                return candidate, prompt
        return None

    def _num_held(self, prompt: Prompt, candidate: Candidate) -> int:
        entry = self._in_line.get(prompt.number)
        if entry is None or candidate.epoch is None:
            return 0
        return min(self._num_cached(entry.names, candidate.epoch), prompt.num_tokens - 1)

    def _prompt(
        self, request: PlacementRequest, names: Sequence[bytes], taker: ReplicaView, now: float
    ) -> Prompt:
        session, is_first_turn = self._sessions.of(names)
        block_size = taker.info.layout.block_size
        return Prompt(
            number=next(self._numbers),
            num_tokens=request.num_tokens,
            arrived_s=now if request.arrived_s is None else request.arrived_s,
            priority=request.priority,
            names=names,
            num_blocks=-(-request.num_tokens // block_size),
            block_size=block_size,
            session=session,
            is_first_turn=is_first_turn,
            draw=drawn(request.request_id),
        )

    def _least_cost(
        self, request: PlacementRequest, names: PromptNames, view: View, now: float
    ) -> ReplicaView:
        """Of decode replicas that compute their prompts themselves."""
        open_ = _but_lost([replica for replica in view.decode if replica.is_open], request)
        prompt = _unnumbered(request, names, open_[0], now)
        held = Held([replica.num_soon_tokens for replica in open_])
        candidates = [replica.candidate for replica in open_]
        costs = self._policy.costs(prompt, candidates, held, now)
        return open_[cheapest(prompt, candidates, costs)]

    def _why_here(
        self,
        request: PlacementRequest,
        decode: ReplicaView,
        view: View,
        *,
        is_beside: bool,
        has_peers: bool,
    ) -> str:
        """Why `decode` computes the prompt; empty: another should."""
        if request.local_because:
            return f"{request.local_because}: computed locally"
        if not has_peers:
            return "no prefill replica: computed locally"
        source = _source(view, request, decode)
        # The first choice has shown that its prompt is there; events may tell of it later.
        num_held = decode.num_soon_tokens if is_beside else decode.num_cached_tokens
        num_missing = request.num_tokens - max(num_held, source.num_tokens if source else 0)
        limit = self._local_prefill_tokens
        if is_beside:
            limit = max(limit, decode.info.layout.block_size)  # what no cache ever holds
        if num_missing > limit:
            return ""
        return f"{num_missing} of {request.num_tokens} tokens uncached: computed locally"

    def _sooner_here(
        self,
        prompt: Prompt,
        decode: ReplicaView,
        ready: Sequence[ReplicaView],
        view: View,
        now: float,
    ) -> str:
        """Why `decode` should not wait for a prefill replica; empty: it should.

        Where none of them answers, nobody waits.

        Computing it here holds up all that decode here, who count as much as this request.
        """
        here = decode.candidate
        if all(replica.candidate.overdue_s(now) > OVERDUE_S for replica in ready):
            return "all prefill replicas are late: computed locally"
        if not here.speed.is_measured:
            return ""
        work_s = here.speed.prefill_s(prompt.num_tokens, decode.num_cached_tokens)
        here_s = here.busy_s(now) + work_s * (1 + here.num_running)
        there_s = min(
            replica.candidate.busy_s(now)
            + replica.candidate.ahead_s(prompt.arrived_s)
            + replica.candidate.speed.prefill_s(prompt.num_tokens, replica.num_soon_tokens)
            for replica in ready
        )
        there_s += view.rates.latency_s
        if CLEARLY * here_s >= there_s:
            return ""
        return (
            f"{here_s:.3f} s here with {here.num_running} held up, {there_s:.3f} s with the wait"
            " for a prefill replica: computed locally"
        )

    def _here(
        self,
        request: PlacementRequest,
        prompt: Prompt,
        decode: ReplicaView,
        view: View,
        why: str,
        *,
        is_beside: bool,
    ) -> Placement:
        now = prompt.arrived_s
        source = _source(view, request, decode)
        num_held = max(decode.num_soon_tokens, source.num_tokens if source else 0)
        peers = _ready(view.prefill, request)
        others = peers or _but_lost([one for one in view.decode if one.is_open], request)
        others = [one for one in others if one is not decode]
        if peers:  # they are not what was chosen from: the soonest of them will do
            others = sorted(others, key=lambda one: one.candidate.busy_s(now))[: MAX_TOLD - 1]
        considered = self._considered(request, prompt, [decode, *others], view, now)
        self._policy.placed(prompt, decode.candidate)
        return Placement(
            decode=decode.info,
            prompt=prompt,
            num_prefill_tokens=max(request.num_tokens - num_held, 1),
            source=None if source is None else source.info.endpoint,
            reason=_told(why, source, is_beside=is_beside),
            considered=considered,
            num_candidates=1 + len(others),
            foreseen_s=considered[0].first_token_s,
        )

    def _apart(
        self,
        request: PlacementRequest,
        prompt: Prompt,
        chosen: Candidate,
        view: View,
        now: float,
        costs: Sequence[float] | None = None,
    ) -> Placement:
        """`chosen` computes the prompt, for the decode replica that is best at this moment."""
        decode, is_beside = _decode(request, view)
        assert decode is not None, "the caller has seen that one is open"
        ready = _ready(view.prefill, request)
        held = Held([replica.num_soon_tokens for replica in ready])
        candidates = [replica.candidate for replica in ready]
        if costs is None:
            costs = self._policy.costs(prompt, candidates, held, now)
        ranked = sorted(
            range(len(ready)),
            key=lambda place: (
                candidates[place] is not chosen,
                costs[place],
                mixed(prompt.draw, candidates[place].draw),
            ),
        )
        best = ready[ranked[0]]
        in_order = [ready[place] for place in ranked]
        considered = self._considered(
            request, prompt, in_order, view, now, [costs[place] for place in ranked]
        )
        source = _source(view, request, best)
        num_held = max(best.num_soon_tokens, source.num_tokens if source else 0)
        num_equals = sum(cost == costs[ranked[0]] for cost in costs)
        why = (
            f"{best.info.replica_id} has least cost of {len(ready)}: "
            f"{best.candidate.busy_s(now):.3f} s until it is free, "
            f"{best.num_soon_tokens} tokens cached"
        )
        if num_equals > 1:
            why += f"; drawn by the request's id from {num_equals} equal prefill replicas"
        return Placement(
            decode=decode.info,
            prompt=prompt,
            prefill=tuple(ready[place].info.endpoint for place in ranked[:MAX_PREFILL_CANDIDATES]),
            num_prefill_tokens=max(request.num_tokens - num_held, 1),
            source=None if source is None else source.info.endpoint,
            reason=_told(why, source, is_beside=is_beside),
            considered=considered,
            num_candidates=len(ready),
            foreseen_s=considered[0].first_token_s,
        )

    def _considered(
        self,
        request: PlacementRequest,
        prompt: Prompt,
        replicas: Sequence[ReplicaView],
        view: View,
        now: float,
        costs: Sequence[float] | None = None,
    ) -> tuple[Considered, ...]:
        """The first of them, and the cheapest of the others."""
        held = Held([replica.num_soon_tokens for replica in replicas])
        candidates = [replica.candidate for replica in replicas]
        if costs is None:
            costs = self._policy.costs(prompt, candidates, held, now)
        first, *others = range(len(replicas))
        others.sort(key=costs.__getitem__)
        places = (first, *others[: MAX_TOLD - 1])
        terms = self._policy.explain(prompt, candidates, held, now, places)
        found: list[Considered] = []
        for place, parts in zip(places, terms, strict=True):
            replica, num_held = replicas[place], held.tokens[place]
            source = _source(view, request, replica) if place == first else None
            num_has = max(num_held, source.num_tokens if source else 0)
            work_s = replica.candidate.speed.prefill_s(prompt.num_tokens, num_has)
            found.append(
                Considered(
                    replica_id=replica.info.replica_id,
                    epoch=replica.info.epoch,
                    cost=costs[place],
                    num_held_tokens=num_has,
                    wait_s=self._wait_s(prompt, replica, work_s, now),
                    work_s=work_s,
                    latency_s=view.rates.latency_s if replica.info.role is Role.PREFILL else 0.0,
                    corrected_s=replica.candidate.corrected_s,
                    age_s=replica.capacity_age_s,
                    terms=parts,
                )
            )
        return tuple(found)

    def _wait_s(self, prompt: Prompt, replica: ReplicaView, work_s: float, now: float) -> float:
        """For what it has to do, and for those in line who go before."""
        candidate, turns = replica.candidate, self._policy.turns
        wait_s = candidate.busy_s(now)
        if turns is not None and candidate.waiting:
            wait_s += candidate.ahead_s(turns.due_s(prompt, work_s, candidate.line_s))
        return wait_s


def _unnumbered(
    request: PlacementRequest, names: PromptNames, taker: ReplicaView, now: float
) -> Prompt:
    """A prompt that is only asked about."""
    layout = taker.info.layout
    return Prompt(
        number=-1,
        num_tokens=request.num_tokens,
        arrived_s=now,
        names=names.under(layout),
        num_blocks=-(-request.num_tokens // layout.block_size),
        block_size=layout.block_size,
        draw=drawn(request.request_id),
    )


def _told(why: str, source: Holding | None, *, is_beside: bool) -> str:
    if source is not None:
        why = f"{why}; {source.num_tokens} tokens cached on {source.info.replica_id}"
    return f"beside another choice of this request; {why}" if is_beside else why


def _decode(request: PlacementRequest, view: View) -> tuple[ReplicaView | None, bool]:
    """Who decodes it, if anybody has room, and whether that is beside another choice of it."""
    open_ = [replica for replica in view.decode if replica.is_open]
    for replica in open_:
        if replica.info.epoch == request.near and replica.info.epoch not in request.lost:
            return replica, True
    draw = drawn(request.request_id)
    ranked = sorted(open_, key=lambda one: (_decode_cost(one, request), _draw(one, draw)))
    return (ranked[0] if ranked else None), False


def _decode_cost(replica: ReplicaView, request: PlacementRequest) -> tuple[bool, int, int]:
    """The smallest wins; of equal work, who has more of the prompt: the pool computes less."""
    num_has = replica.num_soon_tokens
    busy = replica.num_queued_tokens + RUNNING_REQUEST_COST * replica.num_open
    return replica.info.epoch in request.lost, busy + request.num_tokens - num_has, -num_has


def _draw(replica: ReplicaView, draw: int) -> int:
    """Fair among all replicas over many requests, and the same each time for one of them."""
    return mixed(draw, replica.candidate.draw)


def _ready(replicas: Sequence[ReplicaView], request: PlacementRequest) -> list[ReplicaView]:
    return _but_lost([replica for replica in replicas if not replica.is_draining], request)


def _in_time(replicas: list[ReplicaView], now: float) -> list[ReplicaView]:
    """Without those that are late, unless all are."""
    return [r for r in replicas if r.candidate.overdue_s(now) <= OVERDUE_S] or replicas


def _but_lost(replicas: list[ReplicaView], request: PlacementRequest) -> list[ReplicaView]:
    """Without those on which an earlier attempt failed, unless there are no others."""
    return [r for r in replicas if r.info.epoch not in request.lost] or replicas


def _source(view: View, request: PlacementRequest, taker: ReplicaView) -> Holding | None:
    """The replica that has enough more of the prompt than `taker` to be asked for it."""
    draw = drawn(request.request_id)
    replicas = (
        replica
        for replica in (*view.decode, *view.prefill)
        if replica.num_cached_tokens
        and replica.is_connected
        and replica.info.epoch not in request.lost
    )
    holdings = (
        Holding(replica.info, replica.num_cached_tokens)
        for replica in sorted(replicas, key=lambda replica: _draw(replica, draw))
    )
    return best_source(
        holdings, num_held=taker.num_soon_tokens, taker=taker.info.epoch, rates=view.rates
    )
