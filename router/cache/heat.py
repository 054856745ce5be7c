"""How many conversations begin with the same prefix: prefixes worth having on every replica.

    u(d)   conversations that began with the same first d blocks lately, at d = 1, 2, 4, 8, ...
    w(d)   1 / (1 + u(d) / replicas)          what computing such a block once more is charged

If each replica will soon be asked for a prefix u / N times, the prefix is computed there once and
is cached afterwards: the cost of computing it is shared by all of these requests. A conversation's
own blocks (u = 1) are charged in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp2
from typing import NamedTuple

import numpy as np

from baton.core.block_hash import DIGEST_BYTES, BlockNames
from baton.router.prompt import Prompt
from baton.router.recent import Recent
from baton.router.table.columns import Numbers

HALF_LIFE_S = 600.0
MAX_PREFIXES = 100_000


@dataclass(slots=True)
class _Uses:
    count: float
    at_s: float

    def by(self, now: float) -> float:
        return self.count * exp2((self.at_s - now) / HALF_LIFE_S)


class Charge(NamedTuple):
    """Tokens of one prompt, each weighed by how much of its computing is charged to the prompt."""

    ends: Sequence[int]
    """Ends of ranges of equal weight, in tokens: the first is 0, the last the prompt's length."""
    sums: Sequence[float]
    """Weighed tokens before each end."""

    @property
    def is_whole(self) -> bool:
        """Whether all of them are charged in full."""
        return len(self.ends) == 2

    @property
    def total(self) -> float:
        """Weighed tokens of the whole prompt."""
        return self.sums[-1]

    def before(self, num_tokens: Numbers) -> Numbers:
        """Weighed tokens among so many first ones, each."""
        return np.interp(num_tokens, self.ends, self.sums)


class Heat:
    def __init__(self, max_prefixes: int = MAX_PREFIXES) -> None:
        self._uses_by_name: Recent[bytes, _Uses] = Recent(max_prefixes)

    def observe(self, prompt: Prompt, now: float) -> None:
        """A conversation begins with `prompt`."""
        packed = BlockNames.of(prompt.names).packed
        for depth in _depths(len(packed) // DIGEST_BYTES):
            end = depth * DIGEST_BYTES
            name = packed[end - DIGEST_BYTES : end]
            uses = self._uses_by_name.get(name)
            if uses is None:
                self._uses_by_name.put(name, _Uses(1.0, now))
            else:
                uses.count, uses.at_s = uses.by(now) + 1.0, now

    def charge(self, prompt: Prompt, num_replicas: int, now: float) -> Charge:
        """Weigh the tokens of `prompt`: those after its last whole block are its own.

        With `num_replicas` 0 all are charged in full.
        """
        ends, sums = [0], [0.0]
        end, sum_, depth = 0, 0.0, 1
        find, block_size = self._uses_by_name.get, prompt.block_size
        packed = BlockNames.of(prompt.names).packed if num_replicas else b""
        num_names = len(packed) // DIGEST_BYTES
        while depth <= num_names:
            behind = depth * DIGEST_BYTES
            uses = find(packed[behind - DIGEST_BYTES : behind])
            if uses is None:
                break
            others = uses.count * exp2((uses.at_s - now) / HALF_LIFE_S) - 1.0
            if others < 0.01:
                break
            weight = 1.0 / (1.0 + others / num_replicas)
            before, end = end, depth * block_size
            sum_ += (end - before) * weight
            ends.append(end)
            sums.append(sum_)
            depth *= 2
        ends.append(prompt.num_tokens)
        sums.append(sum_ + (prompt.num_tokens - end))
        return Charge(ends, sums)


def _depths(num_blocks: int) -> list[int]:
    """1, 2, 4, ... up to `num_blocks`: chained names make a deeper one stand for all before it."""
    return [1 << power for power in range(num_blocks.bit_length())]
