"""How many conversations begin alike: prefixes worth having on every replica.

    u(d)   conversations that began with the same first d blocks lately, at d = 1, 2, 4, 8, ...
    w(d)   1 / (1 + u(d) / replicas)          what computing such a block once more is charged

A prefix that each replica will be asked for u / N times soon is computed there once and had after
that: its first computing is shared by all of them. A conversation's own blocks (u = 1) are charged
in full.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from baton.router.prompt import Prompt
from baton.router.recent import Recent

HALF_LIFE_S = 600.0
MAX_PREFIXES = 100_000


@dataclass(slots=True)
class _Uses:
    count: float
    at_s: float

    def by(self, now: float) -> float:
        return self.count * math.exp2((self.at_s - now) / HALF_LIFE_S)


@dataclass(frozen=True, slots=True)
class Charge:
    """Tokens of one prompt, each weighed by how much of its computing is charged to the prompt."""

    ends: tuple[int, ...]
    """Where a stretch of equal weight ends, in tokens."""
    weights: tuple[float, ...]
    sums: tuple[float, ...]
    """Weighed tokens before each stretch."""

    def before(self, num_tokens: int) -> float:
        """Weighed tokens among the first `num_tokens`."""
        stretch = min(bisect_right(self.ends, num_tokens), len(self.ends) - 1)
        start = self.ends[stretch - 1] if stretch else 0
        return self.sums[stretch] + (num_tokens - start) * self.weights[stretch]


class Heat:
    def __init__(self, max_prefixes: int = MAX_PREFIXES) -> None:
        self._uses_by_name: Recent[bytes, _Uses] = Recent(max_prefixes)

    def hear(self, prompt: Prompt, now: float) -> None:
        """A conversation begins with `prompt`."""
        for depth in _depths(len(prompt.names)):
            name = prompt.names[depth - 1]
            uses = self._uses_by_name.get(name)
            count = 1.0 if uses is None else uses.by(now) + 1.0
            self._uses_by_name.put(name, _Uses(count, now))

    def charge(self, prompt: Prompt, num_replicas: int, now: float) -> Charge:
        """Weigh the tokens of `prompt`: those after its last whole block are its own.

        With `num_replicas` 0 all are charged in full.
        """
        ends, weights, sums, total, start = [], [], [], 0.0, 0
        for depth in _depths(len(prompt.names)) if num_replicas else ():
            uses = self._uses_by_name.get(prompt.names[depth - 1])
            others = max(uses.by(now) - 1.0, 0.0) if uses is not None else 0.0
            if others < 0.01:
                break
            sums.append(total)
            weights.append(1.0 / (1.0 + others / num_replicas))
            ends.append(depth * prompt.block_size)
            total += (ends[-1] - start) * weights[-1]
            start = ends[-1]
        return Charge((*ends, prompt.num_tokens), (*weights, 1.0), (*sums, total))


def _depths(num_blocks: int) -> list[int]:
    """1, 2, 4, ... up to `num_blocks`: chained names make a deeper one stand for all before it."""
    return [1 << power for power in range(num_blocks.bit_length())]
