"""What the router is asked, and what it answers. The reason is for people: in every receipt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baton.core.ids import Epoch, ReplicaId, RequestId
from baton.core.messages import GenerateRequest, ReplicaAddress, ReplicaInfo
from baton.router.prompt import Prompt
from baton.router.prompt_names import wants_prompt_logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    request_id: RequestId
    num_tokens: int
    lost: frozenset[Epoch] = frozenset()
    """Replicas on which an earlier attempt failed."""
    near: Epoch | None = None
    """Where another choice of the same request runs, or has run."""
    local_because: str = ""
    """Why the decode replica must compute the prompt itself. Empty: it need not."""


@dataclass(frozen=True, slots=True)
class Considered:
    """A replica that might have computed the prompt, and what the policy made of it."""

    replica_id: ReplicaId
    cost: float
    """In the policy's own unit."""
    num_held_tokens: int
    terms: Mapping[str, float]
    """What the cost is made of, if the policy says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    decode: ReplicaInfo
    prompt: Prompt
    """What is booked with who computes it."""
    prefill: tuple[ReplicaAddress, ...] = ()
    """Best first. Empty: the decode replica computes the prompt itself."""
    num_prefill_tokens: int = 0
    """Tokens that whoever computes the prompt has to compute."""
    source: ReplicaAddress | None = None
    """The replica whose cache spares whoever computes the prompt a part of it."""
    reason: str
    considered: tuple[Considered, ...] = ()
    """The prefill replicas, where one was chosen."""


def placement_request(
    message: GenerateRequest,
    known: Sequence[int],
    *,
    lost: frozenset[Epoch] = frozenset(),
    near: Epoch | None = None,
) -> PlacementRequest:
    """What a policy is asked for `message`, of which `known` are the prompt and the output."""
    return PlacementRequest(
        request_id=message.request_id,
        num_tokens=len(known),
        lost=lost,
        near=near,
        local_because=_why_local(message),
    )


def _why_local(message: GenerateRequest) -> str:
    """What only the decode replica can answer with, and only if it computes the prompt."""
    if message.pooling is not None:
        return "an embedding of the prompt"
    if wants_prompt_logprobs(message):
        return "logprobs of the prompt"
    return ""
