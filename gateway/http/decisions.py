"""GET /v1/requests/{id} and /debug/decisions: placement decisions of requests, with outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from baton.core.errors import RequestNotFound
from baton.gateway.access.api_keys import Caller
from baton.gateway.http.errors import json_response
from baton.gateway.requests.gateway import Gateway
from baton.router.explain.decisions import KEPT_S, Considered, Decision, DecodeConsidered, Outcome

ANSWER_PREFIXES = ("cmpl-", "chatcmpl-", "resp_", "msg_")
"""Prefixes of the ids of answers; what follows is the request's id."""
JSON_LINES = "application/x-ndjson"


class ExplainedReplica(msgspec.Struct, kw_only=True):
    """A replica that was considered."""

    replica: str
    is_chosen: bool
    terms: Mapping[str, float]
    """The terms of its cost, in seconds, if the policy gives them."""
    held_tokens: int
    """Leading tokens of the prompt that it had cached, expected, or could fetch."""
    age_s: float | None
    """Seconds since the replica's last report."""


class ExplainedCandidate(ExplainedReplica, kw_only=True):
    """A replica that might have computed the prompt."""

    cost: float
    """The cost in the policy's own unit; the least is chosen."""
    wait_s: float
    """Predicted seconds until it would begin."""
    work_s: float
    """Predicted seconds to compute the tokens that it lacked."""
    latency_s: float
    """Predicted seconds until the KV would be on the decode replica."""


class ExplainedDecoder(ExplainedReplica, kw_only=True):
    """A replica that might have decoded the request."""

    cost_s: float


class ExplainedOutcome(msgspec.Struct, kw_only=True):
    first_token_s: float
    """Seconds since the request was asked for."""
    best_other: str | None
    """The best other candidate, in hindsight."""
    best_other_s: float | None
    regret_s: float
    """Seconds by which that would have been sooner; 0 if not sooner."""
    output_tokens: int
    itl_s: float | None
    """Mean from one output token to the next."""
    is_over: bool


class ExplainedObjective(msgspec.Struct, kw_only=True):
    """The request's service level objective."""

    slo_class: str
    """Empty: the request's own."""
    ttft_s: float | None
    itl_s: float | None
    outcome: str | None
    """`met`, or what was missed: `ttft` or `itl`. None until the first token is there."""


class ExplainedDecision(msgspec.Struct, kw_only=True):
    """Where one attempt of one choice went."""

    attempt: int
    decided_at: float
    """Unix time."""
    policy: str
    reason: str
    prompt_tokens: int
    computed_tokens: int
    """Prompt tokens that had to be computed."""
    adapter: str
    """The LoRA adapter that it is computed with; empty: none."""
    session: str
    slo: ExplainedObjective | None
    """None: it had no objective."""
    prefill_replica: str
    """The replica that computes the prompt; it may be the decode replica."""
    decode_replica: str
    waited_s: float
    """Seconds the request waited for a place, until the decision."""
    in_line_s: float
    """Seconds of `waited_s` spent in line for a busy replica."""
    foreseen_s: float
    """Time to first token, as predicted when the request came."""
    predicted_s: float
    """Time to first token, as predicted when the request was sent."""
    predicted_itl_s: float | None
    num_candidates: int
    candidates: tuple[ExplainedCandidate, ...]
    """The chosen one, then the cheapest of the others."""
    decode_candidates: tuple[ExplainedDecoder, ...]
    """The chosen decode replica, then the cheapest of the others. Empty where none were compared:
    the request was placed beside another choice, or without prefill replicas."""
    outcome: ExplainedOutcome | None
    """None until the first token is there."""


class ExplainedRequest(msgspec.Struct, kw_only=True):
    id: str
    """Its `x-request-id`."""
    decisions: tuple[ExplainedDecision, ...]
    """One for each choice and each attempt."""


class DecisionsApi:
    def __init__(self, gateway: Gateway, *, tells_all: bool) -> None:
        """`tells_all`: include requests of all owners, not only the caller's."""
        self._gateway = gateway
        self._tells_all = tells_all

    async def get(self, request: Request) -> Response:
        request_id: str = request.path_params["request_id"]
        for name in _names(request_id):
            found = self._visible(name, request.state.caller)
            if found:
                decisions = tuple(map(explained, found))
                return json_response(ExplainedRequest(id=name, decisions=decisions))
        max_kept = self._gateway.dispatcher.decisions.max_kept
        raise RequestNotFound(
            f"no request {request_id!r} of yours is known to this gateway, which keeps the last "
            f"{max_kept} placements (gateway.kept_decisions) for {KEPT_S / 60:.0f} minutes at most;"
            " give the x-request-id of a recent one, or the id of its answer",
            field="request_id",
        )

    async def capture(self, request: Request) -> Response:
        """All kept decisions, for `baton replay`."""
        return StreamingResponse(
            _in_turns(self._gateway.dispatcher.captured()), media_type=JSON_LINES
        )

    def _visible(self, public_id: str, caller: Caller) -> list[Decision]:
        decisions = self._gateway.dispatcher.decisions.of(public_id)
        return [one for one in decisions if self._tells_all or one.owner == caller.owner]


async def _in_turns(lines: Iterable[bytes]) -> AsyncIterator[bytes]:
    for line in lines:
        yield line
        await asyncio.sleep(0)  # let other tasks run in between


def explained(decision: Decision) -> ExplainedDecision:
    return ExplainedDecision(
        attempt=decision.attempt,
        decided_at=decision.decided_at,
        policy=decision.policy,
        reason=decision.reason,
        prompt_tokens=decision.num_tokens,
        computed_tokens=decision.num_prefill_tokens,
        adapter=decision.adapter,
        session=decision.session,
        slo=_objective(decision),
        prefill_replica=decision.computes,
        decode_replica=decision.decodes,
        waited_s=decision.waited_s,
        in_line_s=decision.in_line_s,
        foreseen_s=decision.foreseen_s,
        predicted_s=decision.predicted_s,
        predicted_itl_s=decision.predicted_itl_s,
        num_candidates=decision.num_candidates,
        candidates=tuple(
            _candidate(one, is_chosen=place == 0) for place, one in enumerate(decision.considered)
        ),
        decode_candidates=tuple(
            _decoder(one, is_chosen=place == 0)
            for place, one in enumerate(decision.decode_considered)
        ),
        outcome=None if decision.outcome is None else _outcome(decision.outcome),
    )


def _objective(decision: Decision) -> ExplainedObjective | None:
    slo, outcome = decision.slo, decision.outcome
    if not slo.is_given:
        return None
    return ExplainedObjective(
        slo_class=slo.name,
        ttft_s=slo.ttft_s,
        itl_s=slo.itl_s,
        outcome=None if outcome is None else slo.outcome(outcome.first_token_s, outcome.itl_s),
    )


def _candidate(one: Considered, *, is_chosen: bool) -> ExplainedCandidate:
    return ExplainedCandidate(
        replica=one.replica_id,
        is_chosen=is_chosen,
        cost=one.cost,
        terms=one.terms,
        held_tokens=one.num_held_tokens,
        wait_s=one.wait_s,
        work_s=one.work_s,
        latency_s=one.latency_s,
        age_s=one.age_s,
    )


def _decoder(one: DecodeConsidered, *, is_chosen: bool) -> ExplainedDecoder:
    return ExplainedDecoder(
        replica=one.replica_id,
        is_chosen=is_chosen,
        cost_s=one.cost_s,
        terms=one.terms,
        held_tokens=one.num_held_tokens,
        age_s=one.age_s,
    )


def _outcome(outcome: Outcome) -> ExplainedOutcome:
    return ExplainedOutcome(
        first_token_s=outcome.first_token_s,
        best_other=outcome.best_other,
        best_other_s=outcome.best_other_s,
        regret_s=outcome.regret_s,
        output_tokens=outcome.num_output_tokens,
        itl_s=outcome.itl_s,
        is_over=outcome.is_over,
    )


def _names(request_id: str) -> list[str]:
    """The possible ids of a request: a client's own id may look like the id of an answer."""
    stripped = [request_id.removeprefix(one) for one in ANSWER_PREFIXES]
    return list(dict.fromkeys((request_id, *stripped)))
