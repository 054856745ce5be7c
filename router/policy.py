"""What a router policy is asked, and what it answers.

    PlacementRequest, View, now --place--> Placement   or None: no room now, the request waits

Gateways know policies by this protocol alone. The reason is for people: it goes into every receipt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from baton.core.ids import Epoch, RequestId
from baton.core.messages import GenerateRequest, ReplicaAddress, ReplicaInfo
from baton.router.prompt_names import wants_prompt_logprobs
from baton.router.view import View


class PlacementPolicy(Protocol):
    """A pure function: it keeps nothing from one call to the next that changes its answers."""

    def place(self, request: PlacementRequest, view: View, now: float) -> Placement | None:
        """Choose, or return None if no decode replica has room: the request waits its turn.

        `now`, in seconds, is for policies that weigh the age of what they know.
        """


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    decode: ReplicaInfo
    prefill: tuple[ReplicaAddress, ...] = ()
    """Best first. Empty: the decode replica computes the prompt itself."""
    num_prefill_tokens: int = 0
    """Tokens that the best of them has to compute."""
    source: ReplicaAddress | None = None
    """The replica whose cache spares whoever computes the prompt a part of it."""
    reason: str


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
