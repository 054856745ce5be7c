"""How well the balancer evens out skewed loads of experts over the ranks.

    python -m bench.ranks.expert_balance

Loads follow Zipf's law: the i-th busiest expert gets 1 / i of the load of the busiest. Replicas of
an expert are taken to share its load evenly, as they do for many tokens. Printed for each number of
experts and ranks: the load of the busiest rank over the mean, before and after; the experts moved;
and the time it takes to plan.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from baton.engine.mesh.expert_map import ExpertMap, spread
from baton.engine.sharding.expert_balance import Machines, balanced
from bench.harness.command_line import benchmark_parser

NUM_PAIRS = 1_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    num_experts: int
    num_ranks: int
    num_redundant: int
    """Redundant experts on each rank."""

    def start(self) -> ExpertMap:
        return spread(self.num_experts, self.num_ranks, self.num_redundant)

    def __str__(self) -> str:
        return f"{self.num_experts} experts, {self.num_ranks} ranks + {self.num_redundant}"


SHAPES = (
    Shape(256, 8, 4),
    Shape(256, 16, 2),
    Shape(256, 32, 1),
    Shape(256, 64, 1),
    Shape(128, 8, 2),
    Shape(64, 4, 1),
)


def loads_of(shape: Shape, *, seed: int = 0) -> list[int]:
    parts = [1 / place for place in range(1, shape.num_experts + 1)]
    random.Random(seed).shuffle(parts)
    return [int(NUM_PAIRS * part / sum(parts)) for part in parts]


def measure(shape: Shape, loads: Sequence[int], machines: Machines) -> str:
    now = shape.start()
    began = time.perf_counter()
    found = balanced(loads, now, machines)
    plan_ms = (time.perf_counter() - began) * 1e3
    moves = sum(old != new for old, new in zip(now.experts, found.experts, strict=True))
    return (
        f"{shape!s:32} {machines.num_machines:8} {now.imbalance(loads):7.3f} "
        f"{found.imbalance(loads):7.3f} {moves:6} {plan_ms:7.1f} ms"
    )


def main() -> None:
    benchmark_parser(__doc__).parse_args()
    print(f"{'':32} {'machines':>8} {'before':>7} {'after':>7} {'moves':>6}")
    for shape in SHAPES:
        print(measure(shape, loads_of(shape), Machines()))
        if shape.num_ranks > 8:
            machines = Machines(num_machines=shape.num_ranks // 8, num_groups=8)
            print(measure(shape, loads_of(shape), machines))


if __name__ == "__main__":
    main()
