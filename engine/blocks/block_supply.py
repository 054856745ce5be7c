"""Supplies blocks to tenants: free ones, or evicted ones.

    free, or evicted: the least recently used of the idle blocks that the tenant may evict
       |
      take --> counts for the tenant until it is free again

A tenant at its limit may only evict its own blocks. Below its limit it may take free blocks, evict
its own, and evict what other tenants have cached beyond their reserved share. Pinned blocks are not
evicted. Pins are given up one by one if otherwise a running request could not go on, or no request
could run at all.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baton.core.clock import Clock
from baton.engine.blocks.cache_pins import Pin
from baton.engine.blocks.kv_accounts import KvAccounts
from baton.engine.blocks.prefix_cache import PrefixCache

NOTHING: Mapping[str, int] = {}


@dataclass(slots=True)
class PinCounters:
    """Counts of pins so far."""

    num_pinned: int = 0
    """Pins made or prolonged by requests."""
    num_expired: int = 0
    num_displaced: int = 0
    """Pins given up for other pins, because the share for pins was used up."""
    num_evicted: int = 0
    """Pins given up for requests that needed the blocks."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """The result of pinning one cache point."""

    num_blocks: int
    """Blocks of the prefix that are pinned now; fewer than asked for if the share for pins does not
    allow more."""
    num_displaced: int
    """Number of older pins given up for it."""


class BlockSupply:
    """Pure bookkeeping, with a clock for the pins. Reference counts are kept by the pool."""

    def __init__(
        self,
        prefixes: PrefixCache,
        accounts: KvAccounts,
        num_blocks: int,
        *,
        pinned_fraction: float,
        clock: Clock,
    ) -> None:
        self.counters = PinCounters()
        self.num_unpinned = 0
        """Number of pins that have ended so far; each may have made blocks available."""
        self._prefixes = prefixes
        self._accounts = accounts
        self._num_blocks = num_blocks
        self._pinned_fraction = pinned_fraction
        self._clock = clock
        # A stack, so that recently used memory, which may be in a CPU's caches, is reused first.
        self._free = array("i", range(num_blocks - 1, -1, -1))

    @property
    def num_available(self) -> int:
        """Unreferenced blocks, pinned ones included."""
        return len(self._free) + self._prefixes.num_idle

    @property
    def num_free(self) -> int:
        """Number of free blocks, without cached content."""
        return len(self._free)

    @property
    def free(self) -> array[int]:
        """A copy of the free blocks' numbers."""
        return self._free[:]

    def can_take(self, num_blocks: int, tenant: str, reviving: Mapping[str, int] = NOTHING) -> bool:
        """Whether `tenant` may take `num_blocks`. `reviving`: by tenant, the number of idle blocks
        that the same reservation references again, which therefore cannot be evicted for it."""
        room = min(self._num_within_limit(tenant, reviving), self._num_in_pool(tenant, reviving))
        return num_blocks <= room

    def is_at_limit(self, tenant: str) -> bool:
        """Whether `tenant` is limited by its own share before the pool is exhausted."""
        return self._num_within_limit(tenant, NOTHING) < self._num_in_pool(tenant, NOTHING)

    def is_kept_for(self, tenant: str, num_blocks: int) -> bool:
        """Whether `tenant` stays within its reserved share with `num_blocks` more in use."""
        num_in_use = self._accounts.num_held(tenant) - self._prefixes.num_evictable(tenant)
        return num_in_use + num_blocks <= self._accounts.num_kept(tenant)

    def take(self, tenant: str) -> int:
        """A block for new contents. The caller must have checked `can_take`."""
        if not self._accounts.num_left(tenant):
            block = self._evict([tenant])
        elif self._free:
            block = self._free.pop()
        else:
            block = self._evict(self._owners_open_to(tenant))
        self._accounts.add(block, tenant)
        return block

    def give_back(self, block: int) -> None:
        """Free a block that has neither references nor a name."""
        self._accounts.remove(block)
        self._free.append(block)

    def donors(self, tenant: str) -> list[str]:
        """Tenants whose blocks `tenant` could take if they were idle and not pinned; itself
        first."""
        return [tenant] if self.is_at_limit(tenant) else self._owners_open_to(tenant)

    def pin(self, names: Sequence[bytes], tenant: str, ttl_s: float) -> Pinned:
        """Pin the blocks of a chain of known names until `ttl_s` seconds after their last use.

        If that exceeds the share of the pool for pins, or of the tenant's blocks, the least
        recently used pins are given up.
        """
        self.expire()
        limit = self._accounts.max_held(tenant)
        max_own = min(int(self._pinned_fraction * limit), self._num_blocks)
        max_all = int(self._pinned_fraction * self._num_blocks)
        names = names[:max_own]
        if not names:
            return Pinned(0, 0)
        num_displaced = self._displace(names, max_own, tenant) + self._displace(names, max_all)
        self._prefixes.pin(names, tenant, ttl_s, self._clock())
        self.counters.num_pinned += 1
        return Pinned(len(names), num_displaced)

    def use(self, names: Sequence[bytes]) -> None:
        """Renew the pins of these names, with which a prompt begins."""
        self._prefixes.use(names, self._clock())

    def expire(self) -> None:
        """End the pins whose time is up."""
        num_expired = self._prefixes.expire(self._clock())
        self.counters.num_expired += num_expired
        self.num_unpinned += num_expired

    def evict_pin(self, tenant: str) -> bool:
        """Remove the oldest pin from idle blocks, so that `tenant` can take them. Returns False
        if there is none."""
        pin = next(self._prefixes.idle_pins(self.donors(tenant)), None)
        if pin is None:
            return False
        self._unpin(pin)
        self.counters.num_evicted += 1
        return True

    def clear(self) -> None:
        """Free every idle block and end every pin."""
        for block in self._prefixes.clear():
            self.give_back(block)

    def _owners_open_to(self, tenant: str) -> list[str]:
        """Tenants whose idle blocks may be evicted for `tenant`; itself first."""
        others = self._accounts.num_held_by_tenant.keys() - {tenant}
        return [tenant, *filter(self._accounts.num_beyond_kept, others)]

    def _evict(self, tenants: Sequence[str]) -> int:
        block = self._prefixes.evict(tenants)
        self._accounts.remove(block)
        return block

    def _num_within_limit(self, tenant: str, reviving: Mapping[str, int]) -> int:
        num_own = self._prefixes.num_evictable(tenant) - reviving.get(tenant, 0)
        return self._accounts.num_left(tenant) + num_own

    def _num_in_pool(self, tenant: str, reviving: Mapping[str, int]) -> int:
        num_evictable = 0
        for owner in self._prefixes.idle_tenants:
            num_idle = self._prefixes.num_evictable(owner) - reviving.get(owner, 0)
            if owner != tenant:
                num_idle = min(num_idle, self._accounts.num_beyond_kept(owner))
            num_evictable += num_idle
        return len(self._free) + num_evictable

    def _displace(self, names: Sequence[bytes], limit: int, tenant: str | None = None) -> int:
        """Give up the oldest pins, of `tenant` if one is given, until `names` fit within `limit`
        pinned names. Returns how many were given up."""
        pins, num_displaced = self._prefixes.pins, 0
        candidates = [pin for pin in pins if pin.key != names[-1] and tenant in (None, pin.tenant)]
        for pin in candidates:
            num_others = pins.num_names if tenant is None else pins.num_names_of(tenant)
            if num_others + pins.num_unpinned(names) <= limit:
                break
            self._unpin(pin)
            num_displaced += 1
        self.counters.num_displaced += num_displaced
        return num_displaced

    def _unpin(self, pin: Pin) -> None:
        self._prefixes.unpin(pin)
        self.num_unpinned += 1
