"""A gateway's decisions as JSON lines, from which its load can be played again.

    {"capture": 1, "policy", "block_size", "replicas": [...]}          who computed, and how fast
    {"timestamp": ms, "input_length", "output_length", "hash_ids",     as Mooncake's traces have it
     "decision": {...}}                                                where it went; what came

Names of blocks become numbers in the order in which they first occur: equal names stay equal, and
nothing else of the prompts is contained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

import msgspec

from baton.core.step_times import StepTimes
from baton.router.explain.decisions import Decision
from baton.router.replicas.candidate import Speed
from baton.router.replicas.view import View
from baton.router.speeds.speed import ConstantRate, MeasuredSpeed

Count = Annotated[int, msgspec.Meta(ge=1)]


class CapturedReplica(msgspec.Struct, frozen=True, kw_only=True):
    """One that computed prompts, as it was at the end of the capture."""

    replica: str
    num_blocks: Count
    block_size: Count
    max_chunk: Count
    step_times: StepTimes | None
    """None: it has not measured enough, and `tokens_per_s` stands in for them."""
    slowness: float
    tokens_per_s: Annotated[float, msgspec.Meta(gt=0)]

    @property
    def speed(self) -> Speed:
        if self.step_times is None:
            return ConstantRate(tokens_per_s=self.tokens_per_s)
        return MeasuredSpeed(
            times=self.step_times, max_chunk=self.max_chunk, slowness=self.slowness
        )


class CaptureHead(msgspec.Struct, frozen=True, kw_only=True):
    capture: Literal[1]
    """The format's version."""
    policy: str
    block_size: Count
    """Tokens that a hash id stands for."""
    replicas: tuple[CapturedReplica, ...]


class CapturedDecision(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    session: str
    computes: str
    decodes: str
    reason: str
    foreseen_s: float
    predicted_s: float
    first_token_s: float | None
    """None if it has come to none, or not yet."""
    regret_s: float | None


class CapturedRequest(msgspec.Struct, frozen=True, kw_only=True):
    timestamp: float
    """Unix time in milliseconds."""
    input_length: Count
    output_length: Count
    hash_ids: tuple[int, ...]
    decision: CapturedDecision


def capture(
    decisions: Iterable[Decision], policy: str, replicas: Sequence[CapturedReplica]
) -> Iterator[bytes]:
    """Each line with its end. First attempts alone: what came after them was no arrival; and only
    those of which it is known still what their prompts have in common."""
    encode = msgspec.json.Encoder().encode
    block_size = replicas[0].block_size if replicas else 1
    head = CaptureHead(capture=1, policy=policy, block_size=block_size, replicas=tuple(replicas))
    yield encode(head) + b"\n"
    number_by_name: dict[bytes, int] = {}
    for decision in decisions:
        if decision.attempt > 1 or decision.names is None:
            continue
        names = decision.names if decision.block_size == block_size else ()
        hash_ids = tuple(number_by_name.setdefault(name, len(number_by_name)) for name in names)
        yield encode(_captured(decision, hash_ids)) + b"\n"


def captured_replicas(view: View) -> tuple[CapturedReplica, ...]:
    """Prefill replicas, or decode replicas where there are none, by their names."""
    found = (
        CapturedReplica(
            replica=one.info.replica_id,
            num_blocks=one.info.num_blocks,
            block_size=one.info.layout.block_size,
            max_chunk=one.info.max_chunk,
            step_times=_step_times(one.candidate.speed),
            slowness=1.0 if one.capacity is None else one.capacity.slowness,
            tokens_per_s=view.rates.tokens_per_s,
        )
        for one in view.prefill or view.decode
    )
    return tuple(sorted(found, key=lambda one: one.replica))


def _captured(decision: Decision, hash_ids: tuple[int, ...]) -> CapturedRequest:
    outcome = decision.outcome
    return CapturedRequest(
        timestamp=(decision.decided_at - decision.waited_s) * 1e3,
        input_length=decision.num_tokens,
        output_length=max(outcome.num_output_tokens if outcome else 0, 1),
        hash_ids=hash_ids,
        decision=CapturedDecision(
            request_id=decision.request_id,
            session=decision.session,
            computes=decision.computes,
            decodes=decision.decodes,
            reason=decision.reason,
            foreseen_s=decision.foreseen_s,
            predicted_s=decision.predicted_s,
            first_token_s=None if outcome is None else outcome.first_token_s,
            regret_s=None if outcome is None else outcome.regret_s,
        ),
    )


def _step_times(speed: Speed) -> StepTimes | None:
    return speed.times if isinstance(speed, MeasuredSpeed) else None
