"""The planner at work in the registry: one decision a period, carried out through Serve.

    propose --> as it is | only told | held | flipped | nodes asked for | scaled | not done: why

The registry is one process that Serve starts anew; of several the one plans that gateways tell of
traffic, the first that they reach. A change is made in turns and only of the numbers that were
looked at (`applications.py`): two planners, for a moment, change nothing twice.
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
from baton.platform.planner.planner import Planned, Planner
from baton.platform.planner.proposal import Counts, Proposal

log = logging.getLogger(__name__)

AS_IT_IS, TOLD, HELD = "as it is", "only told", "held"
SCALED, FLIPPED, ASKED = "scaled", "flipped", "nodes asked for"
FAILED = "could not decide"
OVERTAKEN = "not done: others changed the numbers meanwhile"
OVERTAKEN_FLIPS = "done in part: a gateway has yet to hear of the flip that it was asked for before"
WAKE_S = 1.0
"""A period of pools that sleep, at most: somebody may wait."""
LOOK_AT_SERVE_S = 30.0
"""How often Serve is asked why replicas do not come."""
FLIP_SLACK_S = 10.0
"""Most seconds that a replica takes after its drain to begin in the other role."""

Scale = Callable[[Counts, Counts, Counts], bool]
"""Blocking: from some numbers of replicas to others, and for how many nodes are asked for; False
if they are not the first any more."""
Places = Callable[[], Counts]
"""Blocking: replicas of each role that the nodes which are there hold."""
Flip = Callable[[Role, Role], Awaitable[ReplicaId]]
"""Have whichever replica of the first role has least to do take the second."""
Messages = Callable[[], dict[str, str]]
"""Blocking: what Serve says of deployments, by their names."""


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
    """Plan and scale for ever, one change at a time; while Ray's head is away there is none."""
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
        except Exception:  # whatever Ray raises while its head is away, and what nobody foresaw
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
    except Exception as error:  # it is the last of its role, or nobody answers
        planner.add_instead()
        return f"not done: {error}"
    if not proposal.is_told_to_serve:
        return FLIPPED
    looked_at = planner.planned
    before, started, asked = proposal.started_before, proposal.started, proposal.asked
    try:
        is_done = await asyncio.to_thread(scale, before, started, asked)
    except Exception as error:  # no document, no turn, no head: it is tried again
        return f"not done: {error}"
    if not is_done:
        return OVERTAKEN
    if planner.planned is looked_at:  # else it was told meanwhile, of these numbers or later ones
        planner.want(started, asked)
    return ASKED if dict(started) == dict(before) else SCALED


async def _flip_all(planner: Planner, proposal: Proposal, flip: Flip) -> bool:
    """False if one was named twice: of the others the next period thinks anew."""
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
