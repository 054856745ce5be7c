"""Explicit cache points: prefixes that are pinned in the cache for a time.

    pin --> pinned --use--> pinned, with its full time again
              |--> expired      its time passed without a use
              |--> displaced    others were pinned, and the share of the pool for pins was used up
              `--> given way    running requests needed its blocks

A pin is the chain of block names of a prefix, identified by its last name. Chains may share their
first names; a name is pinned as long as one pin contains it. This module only knows names:
`PrefixCache` knows which blocks they are, and which are idle.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class Pin:
    """One pinned prefix."""

    names: tuple[bytes, ...]
    """The names of the blocks, in token order."""
    tenant: str
    ttl_s: float
    expires_at: float

    @property
    def key(self) -> bytes:
        return self.names[-1]


class CachePins:
    """All pins, by names only. Pure bookkeeping."""

    def __init__(self) -> None:
        self._pins: OrderedDict[bytes, Pin] = OrderedDict()
        """Pins by their last block name; least recently used first."""
        self._num_by_name: dict[bytes, int] = {}
        """By name: the number of pins that contain it."""
        self._tenant_by_name: dict[bytes, str] = {}
        self._num_names_by_tenant: dict[str, int] = {}
        self._next_expiry = math.inf
        """A time before which no pin expires."""

    def __len__(self) -> int:
        return len(self._pins)

    def __iter__(self) -> Iterator[Pin]:
        """Least recently used first."""
        return iter(self._pins.values())

    @property
    def num_names(self) -> int:
        return len(self._num_by_name)

    def num_names_of(self, tenant: str) -> int:
        return self._num_names_by_tenant.get(tenant, 0)

    def has(self, name: bytes) -> bool:
        return name in self._num_by_name

    def num_unpinned(self, names: Iterable[bytes]) -> int:
        """How many of `names` are not pinned yet."""
        return sum(name not in self._num_by_name for name in names)

    def is_due(self, now: float) -> bool:
        """Whether a pin may have expired."""
        return now >= self._next_expiry

    def add(self, names: tuple[bytes, ...], tenant: str, ttl_s: float, now: float) -> list[bytes]:
        """Pin `names`, and return those that were not pinned before. A pin of the same names is
        prolonged instead."""
        known = self._pins.get(names[-1])
        if known is not None:
            known.ttl_s = max(known.ttl_s, ttl_s) if known.expires_at > now else ttl_s
            self.use(known.key, now)
            return []
        self._pins[names[-1]] = Pin(names, tenant, ttl_s, now + ttl_s)
        self._next_expiry = min(self._next_expiry, now + ttl_s)
        fresh = [name for name in names if name not in self._num_by_name]
        for name in names:
            self._num_by_name[name] = self._num_by_name.get(name, 0) + 1
        for name in fresh:
            self._tenant_by_name[name] = tenant
            self._num_names_by_tenant[tenant] = self.num_names_of(tenant) + 1
        return fresh

    def use(self, name: bytes, now: float) -> None:
        """Renew the pin that ends with `name`, if there is one: a prompt begins with its prefix."""
        pin = self._pins.get(name)
        if pin is not None:
            pin.expires_at = max(pin.expires_at, now + pin.ttl_s)
            self._pins.move_to_end(name)

    def drop(self, pin: Pin) -> list[bytes]:
        """Remove a pin, and return the names that are not pinned any more."""
        del self._pins[pin.key]
        gone: list[bytes] = []
        for name in pin.names:
            self._num_by_name[name] -= 1
            if not self._num_by_name[name]:
                del self._num_by_name[name]
                self._num_names_by_tenant[self._tenant_by_name.pop(name)] -= 1
                gone.append(name)
        return gone

    def expired(self, now: float) -> list[Pin]:
        """The pins whose time is up. They stay until they are dropped."""
        self._next_expiry = min(
            (pin.expires_at for pin in self._pins.values() if pin.expires_at > now),
            default=math.inf,
        )
        return [pin for pin in self._pins.values() if pin.expires_at <= now]

    def clear(self) -> None:
        self._pins.clear()
        self._num_by_name.clear()
        self._tenant_by_name.clear()
        self._num_names_by_tenant.clear()
        self._next_expiry = math.inf
