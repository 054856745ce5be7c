"""Flips a replica to the other role, keeping its engine, weights and cached KV.

    asked      the configuration allows it, and the registry can spare it   or it is refused at once
    draining   nothing new; what runs here moves elsewhere, with its KV     or it stays what it is:
    shut       no request is left: no other begins, and nobody is lent KV   its time is over, it got
               any more, until what was lent is back                        another order, or the
    leaving    it says farewell to the registry                             registry is away
    turning    this incarnation ends; another begins in the other role,     or it is not well, and
               with an epoch and an address of its own                      Serve replaces it

A replacement by Serve has the role of the original pool.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from baton.core.clock import monotonic
from baton.core.errors import EngineFailed, InvalidRequest, Unavailable
from baton.core.replicas import ReplicaInfo, Role
from baton.core.wording import count_of
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.config.flip import check_flip
from baton.platform.replica.replica import Replica
from baton.proto import replica_pb2 as pb

log = logging.getLogger(__name__)

ASK_TIMEOUT_S = 5.0
"""Seconds for the registry to answer, through Serve: less than a gateway waits for this replica."""
LOOK_S = 0.05
LINGER_S = 0.2
"""Seconds without a request before it shuts, since a gateway may not know yet that it drains."""
TURN_TIMEOUT_S = 30.0
TURNS = "it leaves its role at this moment; ask again"


class Turning(Protocol):
    """The owner of the replica, which turns it."""

    @property
    def config(self) -> DeploymentConfig: ...

    @property
    def replica(self) -> Replica | None:
        """The current incarnation; None while it turns."""

    async def spare(self, info: ReplicaInfo) -> str:
        """See `Registry.spare`."""

    async def report_state(self) -> None:
        """Report the present state to the registry."""

    async def deregister(self) -> None:
        """Deregister this incarnation. Raises any error of the call."""

    async def turn(self, role: Role) -> None:
        """Begin in the other role. Raises if that fails, and then it has no role."""

    def fail(self, error: BaseException) -> None:
        """The replica has failed."""


@dataclass(slots=True)
class _Flip:
    role: Role
    replica: Replica
    """The incarnation that leaves."""
    was_draining: bool
    failure: str = ""
    is_turning: bool = False
    """Whether it has deregistered, so that the flip cannot be stopped."""


class Flips:
    """The role changes of one replica, one at a time. Belongs to its event loop."""

    def __init__(self, of: Turning) -> None:
        self._of = of
        self._flip: _Flip | None = None
        self._task: asyncio.Task[None] | None = None
        self._asking = asyncio.Lock()
        self._is_closed = False

    @property
    def current(self) -> pb.Flip | None:
        """See `baton.platform.replica.replica_server.Flips`, here as below."""
        flip = self._flip
        return None if flip is None else pb.Flip(role=flip.role, failure=flip.failure)

    async def begin(self, role: Role) -> int:
        async with self._asking:
            replica = self._of.replica
            if replica is None or self._is_closed or self._turns_from(role):
                raise Unavailable(TURNS)
            if role is replica.info.role:
                self._stay(f"it was ordered to stay {role}")
            elif not self._is_under_way:
                await self._end_given_up()
                await self._leave_role(replica, role)
            return replica.worker.num_open

    def give_up(self, why: str) -> None:
        if self._flip is not None and self._flip.is_turning:
            raise Unavailable(TURNS)
        self._give_up(why)

    async def close(self) -> None:
        """Give up a draining flip, or wait for a turning one; no further flip begins."""
        self._is_closed = True
        async with self._asking:
            self._give_up("the replica leaves")
        await self._end_given_up()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def _is_under_way(self) -> bool:
        return self._flip is not None and not self._flip.failure

    def _turns_from(self, role: Role) -> bool:
        flip = self._flip
        return flip is not None and flip.is_turning and flip.role is not role

    def _give_up(self, why: str) -> None:
        flip = self._flip
        if flip is not None and not (flip.is_turning or flip.failure):
            flip.failure = why
            flip.replica.is_flipping = flip.replica.worker.core.is_shut = False
            log.info("no flip to %s: %s", flip.role, why)

    async def _end_given_up(self) -> None:
        """End what a flip that was given up still does: it may wait for a busy engine, or for the
        registry, and nobody needs the answer."""
        if self._task is not None and self._flip is not None and not self._flip.is_turning:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _stay(self, why: str) -> None:
        """Keep the role that it had before it was asked."""
        flip = self._flip
        if flip is not None and not (flip.failure or flip.was_draining):
            flip.replica.worker.end_drain()
        self._give_up(why)

    async def _leave_role(self, replica: Replica, role: Role) -> None:
        """Raises InvalidConfig, InvalidRequest and Unavailable, without any change."""
        check_flip(self._of.config)
        replica.is_flipping = True
        try:
            await self._ask_registry(replica.info)
        except BaseException:
            replica.is_flipping = False
            raise
        flip = self._flip = _Flip(role, replica, was_draining=replica.worker.core.is_draining)
        replica.worker.begin_drain()
        self._task = asyncio.create_task(self._run(flip), name=f"flip to {role}")

    async def _ask_registry(self, info: ReplicaInfo) -> None:
        """Raises InvalidRequest if the registry cannot do without it, and Unavailable."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                why = await self._of.spare(info)
        except Exception as error:  # whatever Ray raises
            raise Unavailable(
                f"the registry does not say whether it can be spared: {error!r}"
            ) from error
        if why:
            raise InvalidRequest(why, field="replica")

    async def _run(self, flip: _Flip) -> None:
        began_s = monotonic()
        await self._of.report_state()
        if not (await self._is_emptied(flip) and await self._has_left(flip)):
            await self._of.report_state()
            return
        emptied_s = monotonic()
        try:
            async with asyncio.timeout(TURN_TIMEOUT_S):
                await self._of.turn(flip.role)
        except Exception as error:
            flip.failure = f"{type(error).__name__}: {error}"
            log.exception("the role of %s could not be taken", flip.role)
            self._of.fail(error)
            return
        self._flip = None
        now = monotonic()
        drained_s, turned_s = emptied_s - began_s, now - emptied_s
        log.info(
            "serves as %s: drained in %.2f s, turned in %.2f s", flip.role, drained_s, turned_s
        )

    async def _is_emptied(self, flip: _Flip) -> bool:
        """Drain; whether it is empty in time. Then it is shut, so that no block can be held any
        more."""
        worker, core = flip.replica.worker, flip.replica.worker.core
        limit_s = self._of.config.health.drain_s
        idle_since, deadline = monotonic(), monotonic() + limit_s
        while not flip.failure:
            now = monotonic()
            if worker.num_requests:
                idle_since = now
            elif now - idle_since >= LINGER_S:
                core.is_shut = True
            try:
                if core.is_shut and not worker.num_open and await _holds_nothing(flip.replica):
                    return not flip.failure
            except EngineFailed as error:
                self._give_up(str(error))
                return False
            if monotonic() >= deadline:
                num_open = count_of(worker.num_open, "request")
                self._stay(f"still here after {limit_s:g} s: {num_open}, or KV that they lend")
                return False
            await asyncio.sleep(LOOK_S)
        return False

    async def _has_left(self, flip: _Flip) -> bool:
        """Deregister. Only the registry can announce a new incarnation, so without it the replica
        stays."""
        flip.is_turning = True
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                await self._of.deregister()
        except Exception as error:  # whatever Ray raises
            flip.is_turning = False
            self._stay(f"the registry is away: {error!r}")
            return False
        return True


async def _holds_nothing(replica: Replica) -> bool:
    """Whether no block is lent, used, or still being written; cached blocks stay."""
    audit = await replica.worker.core.audit()
    return not (audit.quarantined or audit.leased or audit.live)
