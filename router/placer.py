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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from baton.core.ids import Epoch
from baton.router.answer import Answers
from baton.router.candidate import Candidate
from baton.router.decisions import Considered
from baton.router.decode_choice import choose_decode
from baton.router.eligible import in_time, is_late, opened, ready
from baton.router.line import Line
from baton.router.local_prefill import why_here, why_sooner_here
from baton.router.placement import Placement, PlacementRequest
from baton.router.policies.by_name import DEFAULT
from baton.router.prompt import Prompt, drawn
from baton.router.prompt_names import PromptNames
from baton.router.pulling import PullRates
from baton.router.routing_policy import Held, RoutingPolicy, cheapest
from baton.router.sessions import Sessions
from baton.router.view import ReplicaView, View

LINE_PER_REPLICA = 4
"""Prompts in line for each prefill replica: enough to choose from; more wait their turn outside."""

LOCAL_PREFILL_TOKENS = 64

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
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of tenants, in what is computed while several wait; 1 where it is not given."""


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
        self._answers = Answers(routing.policy)
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
        decode, is_beside = choose_decode(request, view)
        if decode is None:
            return None
        everybody = ready(view.prefill, request)
        peers = in_time(everybody, now)
        if not peers and not is_beside:
            decode = self._least_cost(request, names, view, now)
        why = self._why_here(request, decode, view, is_beside=is_beside, has_peers=bool(peers))
        taker = decode if why or not peers else peers[0]
        prompt = self._prompt(request, names.under(taker.info.layout), taker, now)
        if why:
            return self._answers.here(request, prompt, decode, view, why, is_beside=is_beside)
        held = Held([replica.num_soon_tokens for replica in peers])
        candidates = [replica.candidate for replica in peers]
        costs = self._policy.costs(prompt, candidates, held, now)
        chosen = self._line.arrive(prompt, candidates, held, now, costs)
        if chosen is not None:
            known = (
                costs if len(peers) == len(everybody) else None
            )  # the answer ranks the late, too
            return self._answers.apart(request, prompt, chosen, view, now, known)
        why = why_sooner_here(prompt, decode, peers, view, now)
        if why:
            self._line.leave(prompt)
            return self._answers.here(request, prompt, decode, view, why, is_beside=is_beside)
        foreseen_s = self._line.foreseen_s(prompt, now) + view.rates.latency_s
        self._in_line[prompt.number] = _InLine(request, prompt, names, foreseen_s)
        return prompt

    def outlook(
        self, request: PlacementRequest, names: PromptNames, view: View, now: float
    ) -> Outlook | None:
        """What `place` would do, as far as can be told; nothing is kept of the question."""
        decode, is_beside = choose_decode(request, view)
        if decode is None:
            return None
        peers = ready(view.prefill, request)
        if not peers and not is_beside:
            decode = self._least_cost(request, names, view, now)
        why = self._why_here(request, decode, view, is_beside=is_beside, has_peers=bool(peers))
        takers = [decode] if why or not peers else peers
        prompt = _unnumbered(request, names, takers[0], now)
        held = Held([replica.num_soon_tokens for replica in takers])
        candidates = [replica.candidate for replica in takers]
        costs = self._policy.costs(prompt, candidates, held, now)
        computes = takers[cheapest(prompt, candidates, costs)]
        if computes is not decode and why_sooner_here(prompt, decode, peers, view, now):
            computes = decode
        return Outlook(
            decode=decode,
            computes=computes,
            taken=self._answers.considered(request, prompt, [computes], view, now)[0],
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
            placement = self._answers.apart(entry.request, prompt, candidate, view, now)
            yield (
                prompt,
                replace(placement, in_line_s=now - prompt.arrived_s, foreseen_s=entry.foreseen_s),
            )

    def foreseen(self, prompt: Prompt, now: float) -> tuple[int, float]:
        """How many go before one in line, and how long it takes to its first token."""
        return self._line.num_before(prompt), self._line.foreseen_s(prompt, now)

    def stranded(self, view: View, now: float) -> list[Prompt]:
        """Those whose replica takes nobody any more, or is late: they are in line no more."""
        good = {
            id(replica.candidate)
            for replica in view.prefill
            if not replica.is_draining and not is_late(replica, now)
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

    def _why_here(
        self,
        request: PlacementRequest,
        decode: ReplicaView,
        view: View,
        *,
        is_beside: bool,
        has_peers: bool,
    ) -> str:
        limit = self._local_prefill_tokens
        return why_here(request, decode, view, limit, is_beside=is_beside, has_peers=has_peers)

    def _prompt(
        self, request: PlacementRequest, names: Sequence[bytes], taker: ReplicaView, now: float
    ) -> Prompt:
        session, is_first_turn = self._sessions.of(names, request.session)
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
        open_ = opened(view.decode, request)
        prompt = _unnumbered(request, names, open_[0], now)
        held = Held([replica.num_soon_tokens for replica in open_])
        candidates = [replica.candidate for replica in open_]
        costs = self._policy.costs(prompt, candidates, held, now)
        return open_[cheapest(prompt, candidates, costs)]


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
