"""Latency under load with prefill and decode on two separate replicas, and with both on each.

    1P+1D           prefill never delays decoding requests
    0P+2D           each does both: a pass with a prompt delays the requests that decode in it
    0P+2D chunked   the usual remedy: prefill in chunks of CHUNK tokens

    python -m bench.serving.split_under_load [--paced] [--rounds N] [--seconds S] [--shares F ...]

In each round all get the same requests, one deployment after another, at a share of the capacity of
0P+2D; each round has new ones. Arrivals are Poisson, and no prefix is cached. Live, replicas of one
thread, the gateway and the load generator share the machine's cores. --paced replicas compute
nothing: their passes sleep for a given time, as if each had a device of its own, and all else is
live.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from baton.core.step_times import StepTimes
from bench.harness.command_line import benchmark_parser
from bench.harness.echo_deployment import Layout, running
from bench.harness.live_deployment import LiveDeployment
from bench.harness.load_generator import BLOCK_SIZE, measure, percentile
from bench.harness.report import surroundings, table

CHUNK = 256
SHARES = (0.5, 0.8)
PROMPT_LENS = (256, 1280)
OUTPUT_LENS = (48, 96)
AT_ONCE = 32
"""Concurrent requests, to measure the capacity of two replicas."""
PACE = StepTimes(constant_s=0.015, token_s=2e-4, pair_s=4e-8, context_s=1e-6, request_s=3e-4)
"""Step times of paced replicas: a prompt of 768 tokens takes 180 ms, a decode step of eight
requests 25 ms."""
COLUMNS = (
    ("TTFT p50", "ttft", 50),
    ("p99", "ttft", 99),
    ("ITL p50", "itl", 50),
    ("p90", "itl", 90),
    ("p99", "itl", 99),
    ("a request, p50", "e2e", 50),
    ("p99", "e2e", 99),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    name: str
    num_prefill: int
    prefill_chunk: int | None = None

    @property
    def num_decode(self) -> int:
        return 2 - self.num_prefill


TOGETHER = Shape(name="0P+2D", num_prefill=0)
SHAPES = (
    Shape(name="1P+1D", num_prefill=1),
    TOGETHER,
    Shape(name="0P+2D chunked", num_prefill=0, prefill_chunk=CHUNK),
)


def write_load(file: Path, rate: float, seconds: float, seed: int) -> None:
    """Write a load of Poisson arrivals without common prefixes."""
    random_, at_s = random.Random(seed), 0.0
    name = seed << 32
    lines = []
    while (at_s := at_s + random_.expovariate(rate)) < seconds:
        length = random_.randrange(*PROMPT_LENS)
        num_blocks = -(-length // BLOCK_SIZE)
        line = {
            "timestamp": at_s * 1e3,
            "input_length": length,
            "output_length": random_.randrange(*OUTPUT_LENS),
            "hash_ids": [*range(name, name + num_blocks)],
        }
        name += num_blocks
        lines.append(json.dumps(line))
    file.write_text("\n".join(lines) + "\n")


@contextmanager
def deployed(shape: Shape, *, is_paced: bool) -> Iterator[str]:
    """Run a deployment; yields the URL for clients."""
    if is_paced:
        layout = Layout(
            num_prefill=shape.num_prefill,
            num_decode=shape.num_decode,
            step_times=PACE,
            prefill_chunk=shape.prefill_chunk,
        )
        with running(layout) as echo:
            yield _url(echo.http_port)
        return
    own = {"resources": {"num_threads": 1}, "scheduler": {"prefill_chunk": shape.prefill_chunk}}
    config = {
        "model": "demo",
        "prefill": {"replicas": shape.num_prefill, **own},
        "decode": {"replicas": shape.num_decode, **own},
    }
    with LiveDeployment(config) as deployment:
        yield _url(deployment.wait())


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def most_per_s(folder: Path, seconds: float, *, is_paced: bool) -> float:
    """The capacity of 0P+2D in answers a second."""
    file = folder / "most.jsonl"
    write_load(file, 100.0, seconds, seed=1_000)
    with deployed(TOGETHER, is_paced=is_paced) as url:
        at_once = ("--concurrency", AT_ONCE, "--duration", seconds)
        return float(measure(url, folder, "--trace", file, *at_once, "--seed", 7)["requests_s"])


def compare(asked: argparse.Namespace) -> tuple[float, dict[tuple[float, str], list[Any]]]:
    """The capacity, and the results by share of it and by deployment."""
    found: dict[tuple[float, str], list[Any]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        most = most_per_s(folder, asked.seconds / 2, is_paced=asked.paced)
        for number in range(asked.rounds):
            order = SHAPES[number % len(SHAPES) :] + SHAPES[: number % len(SHAPES)]
            for shape in order:
                with deployed(shape, is_paced=asked.paced) as url:
                    for share in asked.shares:
                        seed = 100 * number + int(10 * share) + 1
                        file = folder / "load.jsonl"
                        write_load(file, share * most, asked.seconds, seed)
                        live = measure(url, folder, "--trace", file, "--seed", seed)
                        found[share, shape.name].append(live)
    return most, found


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--paced", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    asked = parser.parse_args()
    most, found = compare(asked)
    rows: list[tuple[str | float, ...]] = []
    for share in asked.shares:
        for shape in SHAPES:
            loads = found[share, shape.name]
            times = [median(percentile(one, of, p) for one in loads) for _, of, p in COLUMNS]
            failed = sum(
                sum(one["endings"].values()) - one["endings"]["completed"] for one in loads
            )
            rows.append((f"{share:.0%}", shape.name, *(s * 1e3 for s in times), str(failed)))
    print(surroundings())
    print(f"\n0P+2D answers {most:.1f} requests/s; ms, medians of {asked.rounds} rounds\n")
    print(table(("load", "", *(title for title, *_ in COLUMNS), "not answered"), rows))


if __name__ == "__main__":
    main()
