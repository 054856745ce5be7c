"""The requests of a trace with tokens: as many as it says, equal where its ids are.

    ids of 4 tokens    a     b          a a a a b b b b x x      x: the rest, this prompt's alone

What is generated for a turn of a session is what the next turn's prompt has at that place, so that
it is found again, as it is live.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from baton.core.ids import RequestId
from baton.core.sampling import SamplingParams
from baton.engine.request.request import Request
from baton.platform.simulator.arrivals import Arrival
from baton.platform.traces.trace import Trace, TraceRequest
from baton.router.cache.prompt_names import PromptNames
from baton.router.fairness.slo import NO_SLO, Slo
from baton.router.placement import Placement
from baton.router.speeds.prediction_errors import Interval

OWN = 1 << 31
"""Tokens of one request alone are from here on; below, those that a hash id stands for."""


class TtftEstimate(NamedTuple):
    """An estimate of a request's time to first token."""

    at_s: float
    predicted_s: float
    interval: Interval

    def holds(self, first_token_s: float) -> bool:
        return self.interval.low <= first_token_s - self.at_s <= self.interval.high


@dataclass(slots=True, eq=False)
class Turn:
    """One request under way, from its client's point of view."""

    arrival: Arrival
    request_id: RequestId
    prompt: list[int]
    answer: list[int]
    """The tokens that will be generated."""
    names: PromptNames
    slo: Slo = NO_SLO
    tenant: str = ""
    gateway: int = 0
    """Number of the gateway that it came to."""
    placement: Placement | None = None
    num_generated: int = 0
    """Tokens of the answer that its replica has."""
    num_given: int = 0
    """Output tokens that have come to the client."""
    num_cached: int = 0
    """Tokens of the prompt that were there when it was computed, wherever that was."""
    num_pulled: int = 0
    ttft_estimate: TtftEstimate | None = None
    """The estimate of its first token, if one was requested."""
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    """Seconds between tokens that did not come at once."""

    @property
    def arrived_s(self) -> float:
        return self.arrival.at_s

    def request(self, *, num_known: int = 0, max_new_tokens: int | None = None) -> Request:
        """The request as an engine takes it, behind the first `num_known` tokens of the answer."""
        return Request(
            self.request_id,
            self.prompt,
            output=self.answer[:num_known],
            sampling=SamplingParams(max_tokens=len(self.answer)),
            max_new_tokens=max_new_tokens,
        )

    def give(self, num_tokens: int, now: float) -> None:
        """Note that `num_tokens` have come to the client, at once."""
        if self.num_given:
            self.gaps_s.append(now - self.last_token_s)
        else:
            self.first_token_s = now
        self.num_given += num_tokens
        self.last_token_s = now

    @property
    def is_generated(self) -> bool:
        return self.num_generated == len(self.answer)

    @property
    def is_over(self) -> bool:
        return self.num_given == len(self.answer)


class Turns:
    def __init__(self, trace: Trace) -> None:
        self._block_size = trace.block_size or 1
        self._next_by_place = _next_turns(trace)

    def of(self, arrival: Arrival, number: int) -> Turn:
        request = arrival.request
        prompt = self._prompt(request, OWN + 2 * number)
        answer = [OWN + 2 * number + 1] * request.output_length
        following = self._next_by_place.get(id(request))
        if following is not None:
            later = self._prompt(following, OWN)
            known = later[len(prompt) : len(prompt) + len(answer)]
            answer[: len(known)] = known
        return Turn(arrival, RequestId(f"r{number}"), prompt, answer, PromptNames(prompt))

    def _prompt(self, request: TraceRequest, own: int) -> list[int]:
        tokens: list[int] = []
        for hash_id in request.hash_ids:
            tokens += [hash_id % OWN] * self._block_size
        del tokens[request.input_length :]
        tokens += [own] * (request.input_length - len(tokens))
        return tokens


def _next_turns(trace: Trace) -> dict[int, TraceRequest]:
    """The next turn of its session, by `id` of the turn before."""
    return {
        id(turn): following
        for turns in trace.sessions().values()
        for turn, following in pairwise(turns)
    }
