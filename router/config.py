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
    """Prefixes that one replica has cached and another needs."""

    enabled: bool = DEFAULTS.is_enabled
    """Fetch them where that is clearly cheaper than computing them again."""
    min_tokens: Count = DEFAULTS.min_tokens
    """Shorter stretches are computed."""
    bytes_per_s: Rate = DEFAULTS.bytes_per_s
    """How fast KV travels between replicas, until it has been measured."""
    tokens_per_s: Rate = DEFAULTS.tokens_per_s
    """How fast a replica computes a prompt, until it has been measured."""

    @property
    def rates(self) -> PullRates:
        return PullRates(
            is_enabled=self.enabled,
            min_tokens=self.min_tokens,
            bytes_per_s=self.bytes_per_s,
            tokens_per_s=self.tokens_per_s,
        )
