"""The router's question and its answer. The reason is for people, and is part of every receipt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from baton.core.ids import Epoch, RequestId
from baton.core.messages import GenerateRequest
from baton.core.replicas import ReplicaAddress, ReplicaInfo
from baton.router.cache.prompt_names import wants_prompt_logprobs
from baton.router.explain.decisions import Considered, DecodeConsidered
from baton.router.prompt import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    request_id: RequestId
    num_tokens: int
    priority: int = 0
    """Smaller goes first, within bounds (`turns.py`)."""
    arrived_s: float | None = None
    """When it was first asked for; None: now."""
    lost: frozenset[Epoch] = frozenset()
    """Replicas on which an earlier attempt failed."""
    near: Epoch | None = None
    """Replica where another choice of the same request runs, or has run."""
    session: str = ""
    """The conversation, if the caller says; empty: found by what it begins with."""
    max_output: int | None = None
    """Most output tokens that it may still have; None if unknown."""
    due_s: float = math.inf
    """When its first token is due, by its objective; infinite: it has none."""
    itl_s: float = math.inf
    """Seconds from token to token that its objective allows."""
    local_because: str = ""
    """Why the decode replica must compute the prompt itself. Empty: it need not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    decode: ReplicaInfo
    prompt: Prompt
    """The work that is booked with the replica that computes it."""
    prefill: tuple[ReplicaAddress, ...] = ()
    """Best first. Empty: the decode replica computes the prompt itself."""
    num_prefill_tokens: int = 0
    """Tokens that the replica that computes the prompt has to compute."""
    source: ReplicaAddress | None = None
    """The replica from whose cache a part of the prompt can be fetched."""
    reason: str
    considered: Sequence[Considered] = ()
    """The replicas that might have computed the prompt, best first: the first of them does."""
    num_candidates: int = 1
    """The cheapest of which are in `considered`."""
    decode_considered: Sequence[DecodeConsidered] = ()
    """The replicas that might have decoded it, best first: the first of them does. None of another
    choice's neighbour, nor where the policy has chosen both replicas."""
    in_line_s: float = 0.0
    """How long the prompt stood in line."""
    foreseen_s: float = 0.0
    """Seconds from its coming into line to its first token, as predicted then."""


def placement_request(
    message: GenerateRequest,
    known: Sequence[int],
    *,
    lost: frozenset[Epoch] = frozenset(),
    near: Epoch | None = None,
) -> PlacementRequest:
    """The policy's view of `message`; `known` are its prompt and output so far."""
    return PlacementRequest(
        request_id=message.request_id,
        num_tokens=len(known),
        priority=message.priority,
        max_output=message.sampling.max_tokens - len(message.output),
        lost=lost,
        near=near,
        local_because=_why_local(message),
    )


def _why_local(message: GenerateRequest) -> str:
    """A wanted result that only the decode replica can return, and only if it computes the
    prompt."""
    if message.pooling is not None:
        return "an embedding of the prompt"
    if wants_prompt_logprobs(message):
        return "logprobs of the prompt"
    return ""
