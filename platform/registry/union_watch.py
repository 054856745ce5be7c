"""A gateway's watch of several registries, merged.

    registry 0 --+
    registry 1 --+--> MembershipUnion --> Fleet.follow, as from one registry
    registry 2 --+

A registry that hangs, is away or restarts does not delay the others. While none answers, gateways
keep their replicas.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

from baton.core.clock import Clock, monotonic
from baton.core.errors import Unavailable
from baton.core.ids import Epoch
from baton.core.replicas import Membership
from baton.platform.registry.registry import CALM_WATCH_S, LIVELY_S, NEWS_GAP_S, WATCH_S
from baton.platform.registry.union import MembershipUnion

log = logging.getLogger(__name__)

ASK_S = 10.0
"""Seconds for one answer of one registry."""
RETRY_S = 0.5


class WatchedRegistry(Protocol):
    async def watch(self, incarnation: Epoch | None, version: int) -> Membership:
        """Raises any error of the call."""


class UnionWatch:
    """Belongs to an event loop. To be closed."""

    def __init__(self, registries: Mapping[str, WatchedRegistry], clock: Clock = monotonic) -> None:
        """`registries`: by their names."""
        self._registries = registries
        self._clock = clock
        self._union = MembershipUnion(clock)
        self._trouble: dict[str, str] = {}
        """Why a registry does not answer."""
        self._news = asyncio.Event()
        self._told_at_s = self._lively_until_s = float("-inf")
        self._seen_version = -1
        self._following: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start watching. Safe to repeat."""
        if not self._following:
            self._following = [
                asyncio.create_task(self._follow(index, name), name=f"follows {name}")
                for index, name in enumerate(self._registries)
            ]

    def membership(self) -> Membership | None:
        """The merged state; None while no registry answers."""
        return self._union.membership()

    async def watch(self, incarnation: Epoch | None, version: int) -> Membership:
        """Return the merged state once it differs from the caller's version, or after a timeout.
        Raises Unavailable while no registry answers."""
        self.start()
        began_s = self._clock()
        while True:
            self._news.clear()
            known = self._union.membership()
            is_news = known is not None and self._is_news(known, incarnation, version)
            now = self._clock()
            rest_s = (self._told_at_s + NEWS_GAP_S if is_news else began_s + self._patience_s) - now
            if known is not None and rest_s <= 0:
                self._told_at_s = now
                return known
            if rest_s <= 0:
                raise Unavailable(f"no registry answers: {self._troubles()}")
            with suppress(TimeoutError):
                async with asyncio.timeout(min(rest_s, self._union.changes_in_s())):
                    await self._news.wait()

    def _is_news(self, known: Membership, incarnation: Epoch | None, version: int) -> bool:
        if known.version != self._seen_version or known.starting:
            self._seen_version, self._lively_until_s = known.version, self._clock() + LIVELY_S
        return (known.incarnation, known.version) != (incarnation, version)

    @property
    def _patience_s(self) -> float:
        """As `Registry.patience_s`."""
        is_calm = self._lively_until_s < self._clock() and self._union.heard()
        return CALM_WATCH_S if is_calm else WATCH_S

    def told(self) -> list[dict[str, Any]]:
        """The state of each registry for operators: whether it answers, or why not, and how many
        replicas it knows."""
        heard = self._union.heard()
        return [
            {
                "registry": name,
                "is_heard": index in heard,
                "num_replicas": self._union.num_replicas(index),
                "trouble": self._trouble.get(name, ""),
            }
            for index, name in enumerate(self._registries)
        ]

    def close(self) -> None:
        """Safe to repeat."""
        for task in self._following:
            task.cancel()
        self._following = []

    async def _follow(self, index: int, name: str) -> None:
        """Follow one registry for ever."""
        registry = self._registries[name]
        incarnation: Epoch | None = None
        version = -1
        while True:
            try:
                async with asyncio.timeout(ASK_S):
                    known = await registry.watch(incarnation, version)
            except Exception as error:  # whatever Ray raises while it or its head is away
                if name not in self._trouble:
                    log.warning("%s does not answer (%r); others are asked", name, error)
                self._trouble[name] = f"{type(error).__name__}: {error}"
                await asyncio.sleep(RETRY_S)
                continue
            if self._trouble.pop(name, None) is not None:
                log.info("%s answers again", name)
            self._union.take(index, known)
            incarnation, version = known.incarnation, known.version
            self._news.set()

    def _troubles(self) -> str:
        return "; ".join(
            f"{name}: {self._trouble.get(name, 'not yet')}" for name in self._registries
        )
