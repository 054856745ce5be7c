"""Runs the planner in the registry: one decision per period, carried out through Serve.

    propose --> unchanged | only reported | held | flipped | nodes requested | scaled | not done:
    why

Of several registries, the one plans that gateways report to: the first that they reach. A change
holds a lock and only applies to the numbers that were read (`applications.py`), so two planners,
for a moment, change nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from baton.core.errors import InvalidConfig
from baton.core.ids import ReplicaId
from baton.core.replicas import Membership, Role
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.config.flip import check_flip
from baton.platform.config.live import DECODE, PREFILL
from baton.platform.planner.planned import Planned
from baton.platform.planner.planner import Planner
from baton.platform.planner.proposal import Counts, Proposal

log = logging.getLogger(__name__)

AS_IT_IS, TOLD, HELD = "as it is", "only told", "held"
SCALED, FLIPPED, ASKED = "scaled", "flipped", "nodes asked for"
FAILED = "could not decide"
OVERTAKEN = "not done: others changed the numbers meanwhile"
OVERTAKEN_FLIPS = (
    "done in part: a gateway does not know yet of the flip that it was asked for before"
)
WAKE_S = 1.0
"""The longest period while the pools sleep, since a request may wait."""
LOOK_AT_SERVE_S = 30.0
"""Seconds between questions to Serve why replicas do not come."""
FLIP_SLACK_S = 10.0
"""The most seconds from a replica's drain to its start in the other role."""

Scale = Callable[[Counts, Counts, Counts], bool]
"""Changes the numbers of replicas from the first to the second, and requests nodes for the third;
False if the first do not hold any more. Blocks."""
Places = Callable[[], Counts]
"""Replicas of each role that fit on the existing nodes. Blocks."""
Flip = Callable[[Role, Role], Awaitable[ReplicaId]]
"""Flips the least loaded replica of the first role to the second."""
Messages = Callable[[], dict[str, str]]
"""Serve's messages by deployment. Blocks."""


def planned(config: DeploymentConfig) -> Planned:
    return Planned(
        rules=config.planner,
        wanted=config.started_replicas,
        has_prefill=config.prefill.replicas > 0,
        num_gateways=config.gateway.replicas,
        engines={role: config.pool(role).parallel.data for role in Role},
        max_running={role: config.pool(role).scheduler.max_running for role in Role},
        can_flip=_can_flip(config),
        flip_s=config.health.drain_s + FLIP_SLACK_S,
    )


def _can_flip(config: DeploymentConfig) -> bool:
    try:
        check_flip(config)
    except InvalidConfig:
        return False
    return True


async def keep_planned(
    planner: Planner,
    membership: Callable[[], Membership],
    scale: Scale,
    flip: Flip,
    messages: Messages,
    places: Places,
) -> None:
    """Plan and scale for ever, one change at a time; none while Ray's head is away."""
    looked_s = planner.clock() - LOOK_AT_SERVE_S
    while True:
        period_s = planner.rules.period_s
        await asyncio.sleep(min(period_s, WAKE_S) if planner.planned.is_asleep else period_s)
        try:
            if planner.short() and planner.clock() - looked_s >= LOOK_AT_SERVE_S:
                looked_s = planner.clock()
                said = await asyncio.to_thread(messages)
                for role, name in ((Role.PREFILL, PREFILL), (Role.DECODE, DECODE)):
                    planner.told_of(role, said.get(name, ""))
            if planner.rules.nodes == "kuberay":
                planner.places = await asyncio.to_thread(places)
            proposal = planner.propose(membership())
            if proposal is not None:
                planner.keep(proposal, await _carry_out(planner, proposal, scale, flip))
        except Exception:  # Ray's errors while its head is away, and unexpected ones
            planner.metrics.ended(FAILED)
            log.exception("the planner could not decide; the pools stay as they are")


async def _carry_out(planner: Planner, proposal: Proposal, scale: Scale, flip: Flip) -> str:
    if not proposal.is_change:
        return HELD if proposal.is_held else AS_IT_IS
    if planner.rules.mode == "observe":
        return TOLD
    try:
        if not await _flip_all(planner, proposal, flip):
            return OVERTAKEN_FLIPS
    except Exception as error:  # it is the last of its role, or no gateway answers
        planner.add_instead()
        return f"not done: {error}"
    if not proposal.is_told_to_serve:
        return FLIPPED
    looked_at = planner.planned
    before, started, asked = proposal.started_before, proposal.started, proposal.asked
    try:
        is_done = await asyncio.to_thread(scale, before, started, asked)
    except Exception as error:  # no document, no lock, no head: tried again in the next period
        return f"not done: {error}"
    if not is_done:
        return OVERTAKEN
    if planner.planned is looked_at:  # else it was told meanwhile, of these numbers or later ones
        planner.want(started, asked)
    return ASKED if dict(started) == dict(before) else SCALED


async def _flip_all(planner: Planner, proposal: Proposal, flip: Flip) -> bool:
    """Flip replicas; False if the same one was chosen twice. The next period decides about the
    rest."""
    giver, taker = Role.PREFILL, Role.DECODE
    if proposal.flips < 0:
        giver, taker = taker, giver
    told = set[ReplicaId]()
    for _ in range(abs(proposal.flips)):
        replica_id = await flip(giver, taker)
        if replica_id in told:
            return False
        told.add(replica_id)
        planner.flips(replica_id, taker)
    return True
