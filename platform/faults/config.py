"""Whether, and which, faults are made on purpose."""

from __future__ import annotations

from typing import Annotated

import msgspec

from baton.core.chaos import Chaos, ChaosRule
from baton.core.config_node import ConfigNode


class ChaosConfig(ConfigNode, frozen=True, kw_only=True):
    """Faults on purpose. Never where somebody depends on the answers."""

    enabled: bool = False
    """Make the faults below, and let `baton chaos` make others."""
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Equal seeds make equal faults."""
    rules: tuple[ChaosRule, ...] = ()
    """Each with `at`, a point, `fault`, `rate`, `delay_s` and `max_times`."""

    def __post_init__(self) -> None:
        if self.rules and not self.enabled:
            raise ValueError("chaos.rules need chaos.enabled: true, so that nobody forgets them")

    def start(self, name: str) -> Chaos | None:
        """The chaos of the process called `name`, or None where there is to be none."""
        return Chaos(self.rules, seed=self.seed, name=name) if self.enabled else None
