"""When the router has a cached prefix fetched from another replica: a branch of the configuration.

Rates are measured from the first request on; what is set here holds until then.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from baton.core.config_node import ConfigNode, Count
from baton.router.cache.pulling import PullRates

DEFAULTS = PullRates()
Rate = Annotated[float, msgspec.Meta(gt=0)]


class PullConfig(ConfigNode, frozen=True, kw_only=True):
    """Pulls: fetching a prefix cached on one replica to another."""

    enabled: bool = DEFAULTS.is_enabled
    """Fetch a prefix where that is clearly cheaper than computing it."""
    min_tokens: Count = DEFAULTS.min_tokens
    """The fewest tokens that are fetched; fewer are computed."""
    bytes_per_s: Rate = DEFAULTS.bytes_per_s
    """Assumed bytes a second of KV between replicas, until measured."""
    tokens_per_s: Rate = DEFAULTS.tokens_per_s
    """Assumed prompt tokens a second of a replica, until measured."""

    @property
    def rates(self) -> PullRates:
        return PullRates(
            is_enabled=self.enabled,
            min_tokens=self.min_tokens,
            bytes_per_s=self.bytes_per_s,
            tokens_per_s=self.tokens_per_s,
        )
