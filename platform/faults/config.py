"""Settings of fault injection."""

from __future__ import annotations

from typing import Annotated

import msgspec

from baton.core.chaos import Chaos, ChaosRule
from baton.core.config_node import ConfigNode


class ChaosConfig(ConfigNode, frozen=True, kw_only=True):
    """Fault injection, for tests. Never enable it in production."""

    enabled: bool = False
    """Inject the faults of `rules`, and allow `baton chaos` to inject others."""
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Seed of the random choices of faults."""
    rules: tuple[ChaosRule, ...] = ()
    """Rules of faults, each with `at` (a point), `fault`, `rate`, `delay_s` and `max_times`."""

    def __post_init__(self) -> None:
        if self.rules and not self.enabled:
            raise ValueError("chaos.rules need chaos.enabled: true, so that nobody forgets them")

    def start(self, name: str) -> Chaos | None:
        """The fault injection of the process called `name`; None if it is off."""
        return Chaos(self.rules, seed=self.seed, name=name) if self.enabled else None
