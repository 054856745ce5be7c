"""Writes traces with changing rates, for measuring the planner.

    steps       LOW, HIGH, LOW, each a third of the time
    sinusoid    LOW to HIGH and back, once

Arrivals are a Poisson process whose rate changes with time: LOW and HIGH times `--rate`.

    python -m bench.planning.traces FOLDER [--rate 1] [--seconds 1200]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from math import cos, pi
from pathlib import Path
from random import Random

from bench.harness.command_line import benchmark_parser

LASTS_S = 1200.0
LOW, HIGH = 1.0, 4.0
"""Factors of `--rate`."""


def steps(share: float) -> float:
    return HIGH if 1 / 3 <= share < 2 / 3 else LOW


def sinusoid(share: float) -> float:
    return LOW + (HIGH - LOW) * (1 - cos(2 * pi * share)) / 2


SHAPES: dict[str, Callable[[float], float]] = {"steps": steps, "sinusoid": sinusoid}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second at the lowest")
    parser.add_argument("--input", type=int, default=1000, help="tokens of a prompt, on average")
    parser.add_argument("--output", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=LASTS_S)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, shape in SHAPES.items():
        lines = list(_lines(shape, options))
        (options.folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        print(f"{name}: {len(lines)} requests in {options.seconds:g} s")


def _lines(shape: Callable[[float], float], options: argparse.Namespace) -> list[str]:
    """Arrivals by thinning: of a Poisson process at the highest rate, each arrival is kept with the
    probability of its time's rate over the highest."""
    found: list[str] = []
    random, at_s = Random(options.seed), 0.0
    while True:
        at_s += random.expovariate(HIGH * options.rate)
        if at_s >= options.seconds:
            return found
        if random.random() < shape(at_s / options.seconds) / HIGH:
            sizes = (
                max(round(mean * random.uniform(0.5, 1.5)), 1)
                for mean in (options.input, options.output)
            )
            request = dict(
                zip(
                    ("timestamp", "input_length", "output_length"),
                    (at_s * 1e3, *sizes),
                    strict=True,
                )
            )
            found.append(json.dumps(request))


if __name__ == "__main__":
    main()
