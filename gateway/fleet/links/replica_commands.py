"""Commands to replicas: drain, undrain, flip to the other role, drop the cache.

From a drain command on, this gateway places nothing there, however late the replica reports it:

    commanded --> its own report that it drains, which holds from then on --------> forgotten
    answered ---> another report, when all from before the answer must have come -> forgotten

A replica may never report a short state, such as a change of roles that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

import grpc.aio

from baton.core.clock import Clock
from baton.core.ids import Epoch
from baton.core.replicas import HEARTBEAT_S, Role
from baton.gateway.fleet.links.links import Links
from baton.gateway.fleet.links.replica_link import CapacityReport

OLD_WORDS_S = 2 * HEARTBEAT_S
"""Reports that arrive this much later than the replica's answer were made after the command."""
ANSWER_S = 5.0
"""Seconds for a replica to answer, which has little to do, on a machine that may be busy."""
FLIP_ANSWER_S = ANSWER_S + 2.5
"""Seconds for one to answer that asks the registry first."""


class ReplicaCommands:
    """`epoch in commands`: it was commanded to drain, and has not reported that yet. `on_change` is
    called with a replica that may get more, or less, than before.
    """

    def __init__(self, links: Links, on_change: Callable[[Epoch], None], clock: Clock) -> None:
        self._links = links
        self._on_change = on_change
        self._clock = clock
        self._answered_at_s: dict[Epoch, float] = {}
        """When the replica answered; infinite while the command runs."""

    def __contains__(self, epoch: object) -> bool:
        return epoch in self._answered_at_s

    async def drain(self, epoch: Epoch) -> int:
        """Drain a replica; return its open requests. Raises AioRpcError."""
        with self._empty_from_now_on(epoch):
            return await self._links.calls(epoch).drain(ANSWER_S)

    async def undrain(self, epoch: Epoch) -> int:
        """Undo a drain. Raises AioRpcError."""
        num_open = await self._links.calls(epoch).undrain(ANSWER_S)
        self._take_back(epoch)
        return num_open

    async def flip(self, epoch: Epoch, role: Role) -> int:
        """Make a replica take a role; return its open requests. Raises AioRpcError."""
        calls = self._links.calls(epoch)
        if role is not self._links[epoch].info.role:
            with self._empty_from_now_on(epoch):
                return await calls.flip(role, FLIP_ANSWER_S)
        num_open = await calls.flip(role, FLIP_ANSWER_S)
        self._take_back(epoch)
        return num_open

    async def reset_prefix_cache(self, epoch: Epoch) -> int:
        """Empty a replica's prefix cache; return the blocks dropped. Raises AioRpcError."""
        if epoch not in self._links.watches:  # it has left, and took its cache along
            return 0
        return await self._links.calls(epoch).reset_prefix_cache(ANSWER_S)

    def observe(self, epoch: Epoch, said: CapacityReport) -> None:
        answered_at_s, received_at_s = self._answered_at_s.get(epoch), said.received_at_s
        if answered_at_s is None or said.capacity is None or received_at_s is None:
            return
        if said.capacity.is_draining or received_at_s > answered_at_s + OLD_WORDS_S:
            self.forget(epoch)

    def forget(self, epoch: Epoch) -> None:
        self._answered_at_s.pop(epoch, None)

    @contextmanager
    def _empty_from_now_on(self, epoch: Epoch) -> Iterator[None]:
        """Place nothing there while the command runs, and after it succeeded until the replica
        reports."""
        link = self._links.get(epoch)
        is_news = epoch not in self and not (link is not None and link.is_draining)
        if is_news:
            self._answered_at_s[epoch] = inf
            self._on_change(epoch)
        try:
            yield
        except grpc.aio.AioRpcError:
            if is_news:
                self._take_back(epoch)
            raise
        finally:  # also where the caller is cancelled: the command may have arrived
            if is_news and epoch in self:
                self._answered_at_s[epoch] = self._clock()

    def _take_back(self, epoch: Epoch) -> None:
        self.forget(epoch)
        self._on_change(epoch)
