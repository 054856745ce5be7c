"""Empties one replica at an operator's request, so that it can be removed or take the other role;
or empties only its prefix cache.

    command --> the replica reports that it drains --> every gateway places nothing more there, and
                                                       moves what runs there elsewhere

Asking again returns how many requests have yet to leave. How a replica takes the other role is in
`platform/replica/flips.py`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import grpc
import grpc.aio

from baton.core.errors import InvalidRequest, Unavailable
from baton.core.replicas import ReplicaInfo, Role
from baton.gateway.fleet.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainProgress:
    replica: str
    role: str
    num_open: int
    """Requests that have yet to leave."""


async def drain(fleet: Fleet, replica_id: str, *, is_forced: bool) -> DrainProgress:
    """Drain a replica. Raises InvalidRequest if it is unknown, or the last that decodes;
    Unavailable if it cannot be reached."""
    info = _find(fleet, replica_id)
    if not (is_forced or _can_be_spared(fleet, info)):
        raise InvalidRequest(
            f"{replica_id} is the last decode replica that takes requests: without it all would "
            "wait; add another first, or drain it with force",
            field="replica",
        )
    try:
        num_open = await fleet.commands.drain(info.epoch)
    except grpc.aio.AioRpcError as error:
        raise Unavailable(f"the command to {replica_id} failed: {error.details()}") from error
    return DrainProgress(replica=replica_id, role=info.role.value, num_open=num_open)


async def undrain(fleet: Fleet, replica_id: str) -> DrainProgress:
    """Let a drained replica take requests again. Raises as `drain` does. Repeatable."""
    info = _find(fleet, replica_id)
    try:
        num_open = await fleet.commands.undrain(info.epoch)
    except grpc.aio.AioRpcError as error:
        raise Unavailable(f"the command to {replica_id} failed: {error.details()}") from error
    return DrainProgress(replica=replica_id, role=info.role.value, num_open=num_open)


async def flip(fleet: Fleet, replica: str, to: str) -> DrainProgress:
    """Make a replica serve in the role `to` once it is empty; its present role cancels a flip that
    is under way. A role in place of a replica's id means the least loaded replica of that role.
    Raises InvalidRequest if it may not, or cannot; Unavailable if it cannot be reached.
    """
    if to not in tuple(Role):
        raise InvalidRequest(f"to must be prefill or decode, not {to!r}", field="to")
    info = _idlest(fleet, Role(replica)) if replica in tuple(Role) else _find(fleet, replica)
    role = Role(to)
    if role is not info.role and not _can_be_spared(fleet, info):
        raise InvalidRequest(
            f"{info.replica_id} is the last decode replica that takes requests: without it all "
            "would wait; add another first",
            field="replica",
        )
    try:
        num_open = await fleet.commands.flip(info.epoch, role)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
            raise InvalidRequest(error.details() or "it cannot", field="replica") from error
        raise Unavailable(f"the command to {info.replica_id} failed: {error.details()}") from error
    return DrainProgress(replica=info.replica_id, role=info.role.value, num_open=num_open)


async def reset_prefix_cache(fleet: Fleet, replica_id: str) -> dict[str, int]:
    """Empty the prefix cache of one replica, or of all if none is named; return the blocks dropped
    by each. Raises InvalidRequest if it is unknown; Unavailable if one cannot be reached, after the
    others have done it. Repeatable."""
    infos = [_find(fleet, replica_id)] if replica_id else list(fleet.replicas)
    asked = (fleet.commands.reset_prefix_cache(info.epoch) for info in infos)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    num_blocks: dict[str, int] = {}
    for info, answer in zip(infos, answers, strict=True):
        if isinstance(answer, grpc.aio.AioRpcError):
            why = f"the command to {info.replica_id} failed: {answer.details()}"
            raise Unavailable(f"{why}; ask again, or stop it") from answer
        if isinstance(answer, BaseException):
            raise answer
        num_blocks[info.replica_id] = answer
    return num_blocks


def _idlest(fleet: Fleet, role: Role) -> ReplicaInfo:
    """The least loaded replica of a role. Raises InvalidRequest if there is none."""
    ready = [it for it, why in fleet.trouble_by_replica().items() if it.role is role and not why]
    if not ready:
        raise InvalidRequest(f"no {role} replica takes requests", field="replica")

    def num_requests(info: ReplicaInfo) -> int:
        candidate = fleet.loads.candidate(info.epoch)
        return 0 if candidate is None else candidate.num_running + len(candidate.open)

    return min(ready, key=num_requests)


def _find(fleet: Fleet, replica_id: str) -> ReplicaInfo:
    for info in fleet.replicas:
        if info.replica_id == replica_id:
            return info
    known = ", ".join(sorted(info.replica_id for info in fleet.replicas)) or "none"
    raise InvalidRequest(
        f"no replica is called {replica_id!r}; there are: {known}", field="replica"
    )


def _can_be_spared(fleet: Fleet, info: ReplicaInfo) -> bool:
    """False for the last decode replica: decode replicas can compute prompts, but only they
    decode."""
    open_ = set(fleet.open_decode)
    return info.role is not Role.DECODE or info.epoch not in open_ or len(open_) > 1
