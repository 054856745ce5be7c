"""What replicas report about themselves to the registry, and to the gateways that use them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from baton.core.ids import Epoch, ReplicaId
from baton.core.kv_layout import KvLayout
from baton.core.step_times import StepTimes


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


def counts_by_role(counts: Mapping[Role, int]) -> str:
    """For people: `2 decode and 1 prefill replicas`, `1 decode replica`, `no replicas`."""
    noun = "replica" if sum(counts.values()) == 1 else "replicas"
    return f"{' and '.join(f'{number} {role}' for role, number in counts.items()) or 'no'} {noun}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAddress:
    """The address of a replica's gRPC server, and the expected incarnation."""

    replica_id: ReplicaId
    epoch: Epoch
    address: str
    """host:port"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Gateway -> replica: what waits at the gateway for any replica of this role."""

    num_requests: int = 0
    num_tokens: int = 0
    """Tokens of them that a prefill replica would have to compute."""
    credit_id: int = 0
    """The credit that the gateway goes by; what it sent before, it sent by an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Replica -> gateway: how full it is, how fast, and how much this gateway may send."""

    max_open: int = 0
    """Decode: requests this gateway may have open on the replica."""
    credit_tokens: int = 0
    """Prefill: tokens this gateway may have placed there whose first token has not come: those it
    is lent, and those of such prompts that are computed already."""
    credit_id: int = 0
    """The number of this credit (`max_open`, `credit_tokens`); a higher one came later."""
    num_running: int = 0
    num_waiting: int = 0
    num_queued_tokens: int = 0
    """Tokens known but not yet computed."""
    num_context_tokens: int = 0
    """Tokens of context that a step of those who decode reads, all together."""
    num_blocks: int = 0
    num_free_blocks: int = 0
    """Free or merely cached."""
    is_draining: bool = False
    """Place nothing more; what runs is to move elsewhere."""
    slowness: float = 1.0
    """How many times what `step_times` says recent steps took."""
    step_times: StepTimes | None = None
    """None: as last said."""

    @property
    def is_sound(self) -> bool:
        """Whether what it says of its speed can be at all."""
        is_slowness = math.isfinite(self.slowness) and self.slowness >= 0
        return is_slowness and (self.step_times is None or self.step_times.is_sound)

    @property
    def is_at_rest(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.num_running or self.num_waiting or self.num_queued_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaInfo:
    """What a replica registers about itself. It is constant for an incarnation, except for
    readiness and a pending change of role; in another role it is another incarnation."""

    replica_id: ReplicaId
    epoch: Epoch
    role: Role
    address: str
    layout: KvLayout
    num_blocks: int
    max_model_len: int
    """Tokens of prompt and output together."""
    max_open: int
    """Requests the replica takes at once, from all gateways together."""
    max_queued_tokens: int
    """Prefill only: more queued tokens than these are refused."""
    max_chunk: int
    """Tokens of one prompt in one pass, at most."""
    model: str = ""
    """Identifies its model. During an update of a deployment there may be two."""
    is_ready: bool = True
    is_flipped: bool = False
    """It was started in the other role."""
    is_flipping: bool = False
    """It drains so as to take the other role."""

    @property
    def endpoint(self) -> ReplicaAddress:
        return ReplicaAddress(replica_id=self.replica_id, epoch=self.epoch, address=self.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingReplica:
    """A replica that does not serve yet, for those who wait for it."""

    replica_id: ReplicaId
    role: Role
    stage: str
    """What it is doing: `loading weights`."""
    fraction: float | None = None
    """The completed fraction, if known."""
    failure: str = ""
    """Why it gave up; then it ends."""
    is_final: bool = False
    """Starting it anew would fail in the same way."""
    stage_s: float = 0.0
    """Seconds it has been at this stage, by the registry's clock."""
    is_flipped: bool = False
    """It was started in the other role, and takes this one."""

    def at(self, stage: str, fraction: float | None = None) -> StartingReplica:
        return replace(self, stage=stage, fraction=fraction)

    def failed(self, failure: str, *, is_final: bool) -> StartingReplica:
        return replace(self, failure=failure, is_final=is_final)


HEARTBEAT_S = 1.0
"""How often a replica checks whether it has news for the registry, and, where replicas are few,
reports at least that it is alive: see `ReportIntervals`. How often it reports to gateways while it
has anything to do."""
IDLE_HEARTBEAT_S = 5.0
"""How often an idle replica reports to gateways."""

BEATS_PER_S = 20.0
"""The most heartbeats a second of all replicas together: each costs the registry 0.3 to 1 ms of
CPU."""
WHOLES_PER_S = 2.0
"""Likewise, through Serve: each costs about 3 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportIntervals:
    """Registry -> replica: how often it is to report while it has nothing new to say."""

    beat_s: float = HEARTBEAT_S
    whole_s: float = 10 * HEARTBEAT_S
    """Interval at which everything is reported through Serve, even without changes."""

    @staticmethod
    def of(num_replicas: int) -> ReportIntervals:
        """The intervals for `num_replicas` replicas, where each says something as often."""
        return ReportIntervals(
            beat_s=max(HEARTBEAT_S, num_replicas / BEATS_PER_S),
            whole_s=max(10 * HEARTBEAT_S, num_replicas / WHOLES_PER_S),
        )

    @property
    def settled_after_s(self) -> float:
        """The age of a registry to which everybody who lives has reported: two heartbeats."""
        return 2 * self.beat_s + 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The registry's view at one moment. A hint: liveness is the stream itself.

    A new incarnation of the registry starts empty; its first snapshots remove nothing from a
    gateway's view until the replicas had time to register again.
    """

    incarnation: Epoch
    version: int
    age_s: float
    """Seconds since this incarnation began."""
    replicas: tuple[ReplicaInfo, ...]
    starting: tuple[StartingReplica, ...] = ()
    left: tuple[Epoch, ...] = ()
    """Replicas that deregistered lately. Others that are missing have not reported for a while."""
    intervals: ReportIntervals = ReportIntervals()
    """How often each replica reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipUpdate:
    """Registry -> gateway: the registry's view since a version that the gateway has.

    It may be lost, or arrive twice. It has states, not changes, so it can be applied to any version
    from `since` on.
    """

    incarnation: Epoch
    version: int
    age_s: float
    intervals: ReportIntervals
    since: int | None
    """The version this update builds on, of the same incarnation; None: this is all there is."""
    layouts: tuple[KvLayout, ...]
    """The layouts of `replicas` that a receiver with version `since` may not know."""
    replicas: tuple[ReplicaInfo, ...]
    """New, or other than they were."""
    gone: tuple[Epoch, ...]
    starting: tuple[StartingReplica, ...]
    """New, or at another stage; all of them where nothing else is new, with how far they are."""
    no_longer_starting: tuple[ReplicaId, ...]
    left: tuple[Epoch, ...]
    """The replicas in `gone` that said farewell."""
    address: str = ""
    """Address of the registry's own port; empty: none."""
