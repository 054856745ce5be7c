"""A chaos scenario: load, faults and duration. A YAML file.

rules           faults injected at every replica and gateway (core/chaos.py)
process_faults  a random replica or a gateway is killed or stopped, at a time or periodically
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from baton.core.chaos import ChaosRule
from baton.core.config_node import ConfigNode, Count, Seconds
from baton.core.errors import InvalidConfig

BUNDLED = Path(__file__).parent / "scenarios"


class Load(ConfigNode, frozen=True, kw_only=True):
    """The requests: each is asked without faults first, and must get the same answer afterwards."""

    concurrency: Count = 8
    num_prompts: Count = 16
    """Different prompts, asked repeatedly in a random order."""
    prompt_words: Count = 120
    shared_words: Annotated[int, msgspec.Meta(ge=0)] = 40
    """Words of the prefix that all prompts share."""
    max_tokens: Count = 48
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 0.7
    salted: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.6
    """Share of the requests with a unique salt, so that their KV is never cached and must
    travel."""
    timeout_s: Seconds = 120.0
    """A request that takes longer counts as hung."""


class ProcessFault(ConfigNode, frozen=True, kw_only=True):
    do: Literal["kill", "stop"]
    """kill -9, or kill -STOP for a while."""
    role: Literal["prefill", "decode", "any", "gateway"] = "any"
    """The process that it affects: a replica of the role, `any` replica, or the gateway given to
    `baton chaos`, which can only be killed."""
    every_s: Seconds | None = None
    at_s: Seconds | None = None
    for_s: Seconds = 3.0
    """Seconds for which the process is stopped."""

    def __post_init__(self) -> None:
        if (self.every_s is None) == (self.at_s is None):
            raise ValueError("a process fault has either every_s or at_s")
        if self.role == "gateway" and self.do != "kill":
            raise ValueError("a gateway can only be killed: it wakes nobody who stops it")

    def times(self, duration_s: float) -> Iterator[float]:
        """Times of the fault, in seconds since the scenario began."""
        if self.at_s is not None:
            yield self.at_s
            return
        assert self.every_s is not None
        at = self.every_s
        while at < duration_s:
            yield at
            at += self.every_s


class Scenario(ConfigNode, frozen=True, kw_only=True):
    what: str
    """What the scenario tests, in one sentence."""
    duration_s: Seconds
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    load: Load = Load()
    rules: tuple[ChaosRule, ...] = ()
    process_faults: tuple[ProcessFault, ...] = ()
    max_failed: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Requests that may end in an error. Wrong answers are never allowed."""
    settle_s: Seconds = 60.0
    """Seconds for replicas to restart and to free their blocks."""


def bundled_scenarios() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in BUNDLED.glob("*.yaml")))


def read_scenario(name: str) -> Scenario:
    """A scenario that comes with Baton, or a file. Raises InvalidConfig."""
    path = BUNDLED / f"{name}.yaml"
    if not path.exists():
        path = Path(name)
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=Scenario)
    except OSError as error:
        known = ", ".join(bundled_scenarios())
        raise InvalidConfig(
            f"no scenario at {name}: {error.strerror}; those that come with Baton are {known}"
        ) from error
    except (ValueError, msgspec.DecodeError) as error:
        raise InvalidConfig(f"{path}: {error}") from error
