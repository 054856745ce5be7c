"""Tenants of a simulated fleet: their shares of requests, weights and limits.

    conversation --drawn--> tenant --> its weight in line, its buckets: `gateway/access/`

Conversations without a tenant have a weight of 1 and no limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.core.errors import InvalidConfig
from baton.gateway.access.config import TenantConfig
from baton.router.prompt import drawn, mixed

NUMBERS = {
    "weight": float,
    "requests_per_second": int,
    "requests_per_minute": int,
    "tokens_per_second": int,
    "tokens_per_minute": int,
}
"""The settings of a tenant, as in `gateway.tenants`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTenant:
    name: str
    share: float
    """The fraction of conversations, or of requests that belong to none, that are its own."""
    weight: float = 1.0
    requests_per_second: int | None = None
    requests_per_minute: int | None = None
    tokens_per_second: int | None = None
    tokens_per_minute: int | None = None

    @property
    def config(self) -> TenantConfig:
        """The configuration of a live one."""
        return TenantConfig(
            api_keys=frozenset({self.name}),
            weight=self.weight,
            requests_per_second=self.requests_per_second,
            requests_per_minute=self.requests_per_minute,
            tokens_per_second=self.tokens_per_second,
            tokens_per_minute=self.tokens_per_minute,
        )

    @classmethod
    def read(cls, text: str) -> SimulatedTenant:
        """NAME=SHARE[,SETTING=NUMBER...]. Raises InvalidConfig."""
        (name, _, share), *settings = (one.partition("=") for one in text.split(","))
        try:
            said = {setting: NUMBERS[setting](number) for setting, _, number in settings}
            found = cls(name=name, share=float(share), **said)
        except (ValueError, KeyError):
            found = None
        if found is None or not name or not 0 < found.share <= 1 or _is_negative(found):
            raise InvalidConfig(
                f"--tenant {text}: give NAME=SHARE and, if you like, {', '.join(NUMBERS)}, such as "
                "reports=0.5,weight=2,tokens_per_minute=60000"
            )
        return found


def _is_negative(tenant: SimulatedTenant) -> bool:
    said = (getattr(tenant, name) for name in NUMBERS)
    return any(number is not None and number <= 0 for number in said)


def tenant_of(tenants: Sequence[SimulatedTenant], seed: int, conversation: str) -> str:
    """The tenant of a conversation, drawn by its name; its class is drawn separately."""
    at = mixed(seed, drawn(f"tenant of {conversation}")) / 2.0**64 if tenants else 1.0
    for one in tenants:
        if at < one.share:
            return one.name
        at -= one.share
    return ""
