"""Comparing answers. Pure: judges values.

Dtypes narrower than float32 round differently in batches of other shapes, which can change the
token where two are nearly equally probable. Such a near tie is counted, but is no error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from baton.core.messages import Receipt
from baton.core.sampling import TokenLogprob
from baton.core.wording import count_of
from baton.platform.verify.cases import Case
from baton.platform.verify.fleets import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first token that is not the expected one."""

    prompt_len: int
    position: int
    """Index of the first differing token in the output."""
    expected: int | None
    found: int | None
    top2_gap: float
    """Nats between the two most probable tokens there: few make a near tie."""

    def __str__(self) -> str:
        return (
            f"prompt of {self.prompt_len}: output token {self.position} is {self.found}, not "
            f"{self.expected} (the two best are {self.top2_gap:.2g} nats apart)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    case: str
    transport: str
    num_prompts: int
    num_equal: int
    num_near_ties: int
    kv_bytes: int
    num_drafted: int
    num_accepted: int
    """Drafted tokens that were right."""
    ms: float
    first_difference: Difference | None
    problems: tuple[str, ...]
    """Other problems: leaks, corrupt pieces, KV that was not transferred."""

    @property
    def is_good(self) -> bool:
        return self.first_difference is None and not self.problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The evidence of a case."""

    expected: Sequence[Answer]
    found: Sequence[Answer]
    leaks: Sequence[str]
    num_corrupt: int
    num_squeezed: int
    """Requests preempted and handoffs refused or taken back, for lack of room."""
    ms: float
    is_drafting: bool = False
    """The decoding side was to guess tokens."""

    def total(self, counted: Callable[[Receipt], int]) -> int:
        """Sum over the receipts of all answers found."""
        return sum(counted(answer.receipt) for answer in self.found)


def judge(case: Case, transport: str, evidence: Evidence, *, tolerance: float = 0.0) -> Verdict:
    """`tolerance`: nats between two tokens that make a near tie."""
    pairs = list(zip(evidence.expected, evidence.found, strict=True))
    all_differences = [difference for pair in pairs if (difference := _difference(*pair))]
    differences = [one for one in all_differences if not one.top2_gap < tolerance]
    return Verdict(
        case=case.name,
        transport=transport,
        num_prompts=len(pairs),
        num_equal=len(pairs) - len(all_differences),
        num_near_ties=len(all_differences) - len(differences),
        kv_bytes=evidence.total(lambda receipt: receipt.kv_bytes),
        num_drafted=evidence.total(lambda receipt: receipt.drafted_tokens),
        num_accepted=evidence.total(lambda receipt: receipt.accepted_tokens),
        ms=evidence.ms,
        first_difference=differences[0] if differences else None,
        problems=tuple(_problems(case, transport, evidence)),
    )


def _difference(expected: Answer, found: Answer) -> Difference | None:
    for position, (wanted, got) in enumerate(zip_longest(expected.tokens, found.tokens)):
        if wanted != got:
            return Difference(
                prompt_len=expected.receipt.prompt_tokens,
                position=position,
                expected=wanted,
                found=got,
                top2_gap=_top2_gap(expected.logprobs[position : position + 1]),
            )
    return None


def _top2_gap(logprobs: Sequence[TokenLogprob]) -> float:
    values = [value for entry in logprobs for _, value in entry.top]
    return values[0] - values[1] if len(values) > 1 else math.inf


def _problems(case: Case, transport: str, evidence: Evidence) -> list[str]:
    problems = list(evidence.leaks)
    num_handed_over = sum(a.receipt.transport == transport for a in evidence.found)
    if num_handed_over < len(evidence.found) and not case.is_crowded:
        notes = {note for answer in evidence.found for note in answer.receipt.notes}
        why = f": {min(notes)}" if notes else ""
        problems.append(f"the KV of {len(evidence.found) - num_handed_over} did not travel{why}")
    if evidence.num_corrupt:
        problems.append(f"{count_of(evidence.num_corrupt, 'piece')} came corrupt")
    if case.is_crowded and not evidence.num_squeezed:
        problems.append("there was room for all, so nothing was tried")
    if case.is_repeated and not any(a.receipt.cached_tokens for a in evidence.found):
        problems.append("nothing was in a prefix cache, so nothing was tried")
    if evidence.is_drafting and case.is_repeating:
        problems += _problems_of_drafts(evidence)
    return problems


def _problems_of_drafts(evidence: Evidence) -> list[str]:
    num_drafted = evidence.total(lambda receipt: receipt.drafted_tokens)
    if not num_drafted:
        return ["nothing was drafted, so nothing was tried"]
    if not evidence.total(lambda receipt: receipt.accepted_tokens):
        return [f"none of {num_drafted} drafted tokens was right, so little was tried"]
    return []
