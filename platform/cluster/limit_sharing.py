"""Keeps a gateway's share of the tenants' limits up to date, through the registry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from baton.core.ids import Epoch
from baton.gateway.access.rate_limits import RateLimits
from baton.platform.registry.limit_shares import REPORTS_S

log = logging.getLogger(__name__)


class SharesRegistry(Protocol):
    async def share_limits(self, gateway: Epoch, demand: Mapping[str, float]) -> dict[str, float]:
        """Raises whatever Ray raises while it is away."""


async def share_limits(
    limits: RateLimits, registry: SharesRegistry, gateway: Epoch, each_s: float = REPORTS_S
) -> None:
    """For ever. While the registry is away the share stays what it was."""
    is_away = False
    while True:
        try:
            limits.be_share(await registry.share_limits(gateway, limits.demand))
            is_away = False
        except Exception as error:
            if not is_away:
                log.warning("the registry is away (%r); limits are shared as they were", error)
            is_away = True
        await asyncio.sleep(each_s)
