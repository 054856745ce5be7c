"""Rate limits of tenants, in requests and tokens: token buckets.

    60 requests a minute: a bucket of 60, one more each second; each request takes one out

A request takes its prompt's tokens on arrival and its output's tokens as they are generated; the
level may go below 0, and the next request waits until it is back. So a tenant gets no more than its
limit over time, but may be ahead by the outputs of its running requests. A request larger than its
bucket is let in once the bucket is full.

Where several gateways serve a tenant, each has a share of its limits (`share`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from baton.core.clock import Clock, monotonic
from baton.core.errors import RateLimited
from baton.gateway.access.config import TenantConfig

REQUESTS, TOKENS = "requests", "tokens"
PERIODS = {"second": 1.0, "minute": 60.0}
DEMAND_S = 10.0
"""Time constant of the decaying demand by which gateways share a tenant's limits."""


class Bucket:
    """`limit` per `period_s` seconds. A level below 0 is owed."""

    def __init__(self, setting: str, unit: str, limit: int, period_s: float, now: float) -> None:
        self.setting = setting
        self.unit = unit
        self.limit = limit
        self._period_s = period_s
        self.share = 1.0
        self._level = float(limit)
        self._at_s = now

    @property
    def size(self) -> float:
        """The most that it holds at this gateway."""
        return self.limit * self.share

    def level(self, now: float) -> float:
        """What is left of it."""
        return min(self._level + (now - self._at_s) * self._rate, self.size)

    def take(self, amount: float, now: float) -> None:
        self._level = self.level(now) - amount
        self._at_s = now

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until `amount` is there, or until the bucket is full if it never holds as
        much."""
        return max(min(amount, self.size) - self.level(now), 0.0) / self._rate

    def be_share(self, share: float, now: float) -> None:
        """Change this gateway's share of the limit. The level stays, and fills at the new rate."""
        self._level, self._at_s = self.level(now), now
        self.share = share
        self._level = min(self._level, self.size)

    @property
    def _rate(self) -> float:
        return self.size / self._period_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What a tenant has left of one unit, by its tightest limit."""

    unit: str
    limit: int
    remaining: int
    reset_s: float
    """Seconds until all of it is there again."""


class _Demand:
    """Recent demand, of admitted and refused requests alike."""

    def __init__(self, now: float) -> None:
        self._amount = 0.0
        self._at_s = now

    def by(self, now: float) -> float:
        return self._amount * math.exp2((self._at_s - now) / DEMAND_S)

    def add(self, amount: float, now: float) -> None:
        self._amount = self.by(now) + amount
        self._at_s = now


class RateLimits:
    def __init__(self, tenants: Mapping[str, TenantConfig], clock: Clock = monotonic) -> None:
        self._clock = clock
        self._buckets = {name: _buckets(name, tenant, clock()) for name, tenant in tenants.items()}
        limited = [name for name, buckets in self._buckets.items() if buckets]
        self._demand = {name: _Demand(clock()) for name in limited}

    def reconfigure(self, tenants: Mapping[str, TenantConfig]) -> None:
        """Buckets whose limits stay keep their level; others begin full, at the same share."""
        now = self._clock()
        before = {one.setting: one for buckets in self._buckets.values() for one in buckets}
        self._buckets = {
            name: [_kept(one, before.get(one.setting), now) for one in _buckets(name, tenant, now)]
            for name, tenant in tenants.items()
        }
        limited = [name for name, buckets in self._buckets.items() if buckets]
        self._demand = {name: self._demand.get(name) or _Demand(now) for name in limited}

    def admit(self, tenant: str, num_tokens: int, *, leaves: float = 0.0) -> None:
        """Admit a request of `num_tokens` prompt tokens if the fraction `leaves` of its tenant's
        limits stays for other requests. Raises RateLimited."""
        buckets = self._buckets.get(tenant)
        if not buckets:
            return
        now = self._clock()
        self._demand[tenant].add(1.0, now)
        amounts = {REQUESTS: 1, TOKENS: num_tokens}

        def wait_of(bucket: Bucket) -> float:
            return bucket.wait_s(amounts[bucket.unit] + leaves * bucket.size, now)

        short = max(buckets, key=wait_of)
        wait_s = wait_of(short)
        if wait_s > 0:
            raise RateLimited(
                f"the {short.limit} {short.unit} of {short.setting} are used up; send this "
                f"request again in {wait_s:.1f} s",
                retry_after_s=wait_s,
            )
        for bucket in buckets:
            bucket.take(amounts[bucket.unit], now)

    def charge(self, tenant: str, num_tokens: int) -> None:
        """Count `num_tokens` output tokens."""
        for bucket in self._buckets.get(tenant, ()):
            if bucket.unit == TOKENS:
                bucket.take(num_tokens, self._clock())

    def allowances(self, tenant: str) -> list[Allowance]:
        """What is left of each limited unit."""
        now = self._clock()
        found: list[Allowance] = []
        for unit in (REQUESTS, TOKENS):
            buckets = [one for one in self._buckets.get(tenant, ()) if one.unit == unit]
            if buckets:
                tightest = min(buckets, key=lambda one: one.level(now) / one.size)
                found.append(
                    Allowance(
                        unit=unit,
                        limit=tightest.limit,
                        remaining=max(int(tightest.level(now)), 0),
                        reset_s=tightest.wait_s(tightest.size, now),
                    )
                )
        return found

    @property
    def demand(self) -> dict[str, float]:
        """Recent demand by tenant, for tenants with limits: gateways share the limits in
        proportion."""
        now = self._clock()
        return {name: demand.by(now) for name, demand in self._demand.items()}

    def be_share(self, share_by_tenant: Mapping[str, float]) -> None:
        """This gateway's part of the limits; tenants that are not named keep theirs."""
        now = self._clock()
        for tenant, share in share_by_tenant.items():
            for bucket in self._buckets.get(tenant, ()):
                bucket.be_share(share, now)


def _kept(new: Bucket, old: Bucket | None, now: float) -> Bucket:
    if old is None:
        return new
    if old.limit == new.limit:
        return old
    new.be_share(old.share, now)
    return new


def _buckets(name: str, tenant: TenantConfig, now: float) -> list[Bucket]:
    found: list[Bucket] = []
    for unit in (REQUESTS, TOKENS):
        for period, period_s in PERIODS.items():
            field = f"{unit}_per_{period}"
            limit = getattr(tenant, field)
            if limit is not None:
                setting = f"gateway.tenants.{name}.{field}"
                found.append(Bucket(setting, unit, limit, period_s, now))
    return found
