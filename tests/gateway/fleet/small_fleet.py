"""A fleet of replicas that serve what they are scripted to, and a registry that tells of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.gateway.fleet.known_replicas import make_replica
from tests.gateway.fleet.scripted_replica import ScriptedReplica, Step, snapshot, until

from baton.core.clock import Clock, monotonic
from baton.core.ids import RequestId, new_epoch
from baton.core.messages import GenerateRequest
from baton.core.replicas import ReplicaInfo, Role
from baton.gateway.fleet.fleet import Fleet
from baton.proto.channels import Channels
from baton.router.cache.prompt_names import PromptNames
from baton.router.placement import Placement
from baton.router.prompt import Prompt

P = make_replica("p", role=Role.PREFILL)


REQUEST = GenerateRequest(request_id=RequestId("r"), attempt=1, prompt=(1, 2, 3))


PROMPT = PromptNames(range(12))


HASHES = PROMPT.under(P.layout)


def silent(request: GenerateRequest) -> list[Step]:
    return []


@asynccontextmanager
async def fleet_of(
    *replicas: ScriptedReplica, others: tuple[ReplicaInfo, ...] = (), clock: Clock = monotonic
) -> AsyncIterator[Fleet]:
    """A fleet that is connected to `replicas` and has heard of `others`."""
    fleet = Fleet(new_epoch(), lambda: None, Channels(), clock=clock)
    try:
        for replica in replicas:
            await replica.start()
        await fleet.apply(snapshot(*(replica.info for replica in replicas), *others))
        await until(lambda: len(fleet.connected) == len(replicas))
        yield fleet
    finally:
        await fleet.close()
        for replica in replicas:
            await replica.stop()


def names(fleet: Fleet) -> set[str]:
    return {info.replica_id for info in fleet.replicas}


def placement(num_tokens: int) -> Placement:
    """Of a prompt of which nothing is cached."""
    prompt = Prompt(number=num_tokens, num_tokens=num_tokens, arrived_s=0.0)
    decode = make_replica("d")
    return Placement(decode=decode, prompt=prompt, num_prefill_tokens=num_tokens, reason="a test")
