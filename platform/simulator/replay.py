"""Replays a gateway's captured load under another policy, and compares the SLOs met.

    capture --> its arrivals, on as many replicas, each as fast as it was --policy--> TTFT of each

The same capture, policy and seed give the same result to the last byte. Caches begin empty, as
nothing says what they held before; so the captured policy is best replayed as well, beside the
other, and shows how far the simulation is from what came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.platform.simulator.prefill_pool import PrefillPool
from baton.platform.simulator.setup import Setup
from baton.platform.traces.capture import Capture
from baton.router.policies.by_name import policy

SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRequest:
    request_id: str
    was_s: float | None
    """Time to first token as captured; None if it came to none."""
    would_be_s: float
    """Time to first token as simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    policy: str
    captured_policy: str
    slo_ttft_s: float
    num_left_out: int
    """Requests of the capture whose prompts were computed by other replicas."""
    requests: Sequence[ReplayedRequest]

    @property
    def num_met(self) -> int:
        """Requests that had their first token in time, as captured."""
        return sum(self._is_met(one.was_s) for one in self.requests)

    @property
    def num_would_meet(self) -> int:
        return sum(self._is_met(one.would_be_s) for one in self.requests)

    @property
    def gained(self) -> tuple[str, ...]:
        """Requests that only the replayed policy would have served in time."""
        return tuple(
            one.request_id
            for one in self.requests
            if self._is_met(one.would_be_s) and not self._is_met(one.was_s)
        )

    @property
    def lost(self) -> tuple[str, ...]:
        return tuple(
            one.request_id
            for one in self.requests
            if self._is_met(one.was_s) and not self._is_met(one.would_be_s)
        )

    def _is_met(self, ttft_s: float | None) -> bool:
        return ttft_s is not None and ttft_s <= self.slo_ttft_s


def replay(capture: Capture, policy_name: str, slo_ttft_s: float) -> Replayed:
    """Raises InvalidConfig if there is no such policy."""
    replicas = capture.head.replicas
    setup = Setup(
        num_replicas=len(replicas),
        num_blocks=min(one.num_blocks for one in replicas),
        block_size=capture.head.block_size,
        tokens_per_s=replicas[0].tokens_per_s,
        slo_ttft_s=slo_ttft_s,
    )
    speeds = [one.speed for one in replicas]
    pool = PrefillPool(capture.trace, setup, policy(policy_name), SEED, speeds)
    ttft_by_place = {one.place: one.ttft_s for one in pool.play().served}
    return Replayed(
        policy=policy_name,
        captured_policy=capture.head.policy,
        slo_ttft_s=slo_ttft_s,
        num_left_out=capture.num_left_out,
        requests=[
            ReplayedRequest(
                request_id=decision.request_id,
                was_s=decision.first_token_s,
                would_be_s=ttft_by_place[place],
            )
            for place, decision in enumerate(capture.decisions)
        ],
    )
