"""The simulator against a deployment of the demo model on this machine, at 85 % of what it can do.

    most        answers a second with many requests at once              --> rate
    first load  live; what replicas say of their steps, the median TTFT  --> device, front_s
    second      live, and simulated on that device                       --> the table

    python -m bench.fidelity [--prefill N] [--decode N] [--policy NAME ...] [--seconds S]

Each policy has a deployment of its own. Live, all processes and the load generator share the
machine's cores; simulated, nobody takes anything from anybody.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.request import urlopen

import msgspec

from baton.platform.simulator.fleet.devices import Devices, devices_of
from baton.platform.simulator.fleet.experiment import FleetCase, play_fleet
from baton.platform.simulator.fleet.setup import FleetSetup, Links
from baton.platform.traces.reader import read_trace
from bench.live_deployment import LiveDeployment, user_environment

SHARE = 0.85
MANY = 16
"""At once, to see what the deployment can do."""
SATURATED_S = 12.0
SEEDS = 3
BLOCK_SIZE = 16
NUM_FAMILIES = 8
FAMILY_BLOCKS = 8
"""Half of the prompts begin with those of a family."""
KV_BYTES_PER_S = 1e9
FIGURES = (
    ("TTFT median", "ttft", "p50", "p50_s"),
    ("TTFT p90", "ttft", "p90", "p90_s"),
    ("ITL median", "itl", "p50", "itl_p50_s"),
    ("ITL p90", "itl", "p90", "itl_p90_s"),
    ("time a token, median", "tpot", "p50", "tpot_p50_s"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    num_prefill: int
    num_decode: int
    policy: str
    seconds: float


def write_trace(file: Path, rate: float, seconds: float, seed: int) -> None:
    """Poisson arrivals, prompts of 64 to 448 tokens, answers of 16 to 48."""
    random_, at_s = random.Random(seed), 0.0
    own = iter(range(10_000, 1 << 30))
    lines = []
    while (at_s := at_s + random_.expovariate(rate)) < seconds:
        length = random_.randrange(64, 320)
        ids: list[int] = []
        if random_.random() < 0.5:
            family = random_.randrange(NUM_FAMILIES)
            ids = [family * FAMILY_BLOCKS + depth for depth in range(FAMILY_BLOCKS)]
            length += FAMILY_BLOCKS * BLOCK_SIZE
        ids += [next(own) for _ in range(-(-length // BLOCK_SIZE) - len(ids))]
        line = {
            "timestamp": at_s * 1e3,
            "input_length": length,
            "output_length": random_.randrange(16, 48),
            "hash_ids": ids,
        }
        lines.append(json.dumps(line))
    file.write_text("\n".join(lines) + "\n")


def measure(url: str, folder: Path, *arguments: object) -> dict[str, Any]:
    """What `baton bench serve` says of a load."""
    out = folder / "live.json"
    words = [url, *arguments, "--json", out]
    subprocess.run(
        [sys.executable, "-m", "baton.platform.cli.main", "bench", "serve", *map(str, words)],
        check=True,
        stdout=subprocess.DEVNULL,
        env=user_environment(),
    )
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def most_per_s(url: str, folder: Path) -> float:
    """Answers a second, of the trace's sizes."""
    file = folder / "most.jsonl"
    write_trace(file, 200.0, SATURATED_S, seed=7)
    found = measure(
        url, folder, "--trace", file, "--concurrency", MANY, "--duration", SATURATED_S, "--seed", 7
    )
    return float(found["requests_s"])


def simulate(file: Path, devices: Devices, fleet: Fleet) -> dict[str, float]:
    """The mean of some seeds."""
    setup = FleetSetup(
        num_prefill=fleet.num_prefill,
        num_decode=fleet.num_decode,
        prefill=devices.prefill,
        decode=devices.decode,
        links=devices.links,
    )
    trace = read_trace(file)
    rows = [
        play_fleet(FleetCase(trace=trace, load=None, policy=fleet.policy, seed=seed, setup=setup))
        for seed in range(SEEDS)
    ]
    return {
        name: fmean(getattr(row.figures, name) for row in rows)
        for name in (*(figure for *_, figure in FIGURES), "hit", "num_local")
    }


def compare(fleet: Fleet) -> list[str]:
    """Lines of a table."""
    config = {
        "model": "demo",
        "prefill": {"replicas": fleet.num_prefill},
        "decode": {"replicas": fleet.num_decode},
        "gateway": {"policy": fleet.policy},
    }
    with tempfile.TemporaryDirectory() as name, LiveDeployment(config) as deployment:
        folder, url = Path(name), f"http://127.0.0.1:{deployment.wait()}"
        rate = SHARE * most_per_s(url, folder)
        first, second = folder / "first.jsonl", folder / "second.jsonl"
        for seed, file in enumerate((first, second)):
            write_trace(file, rate, fleet.seconds, seed)
        live = measure(url, folder, "--trace", first, "--seed", 1)
        with urlopen(f"{url}/debug/status") as page:
            told = devices_of(json.load(page), url)
        devices = msgspec.structs.replace(told, links=Links(bytes_per_s=KV_BYTES_PER_S))
        front_s = live["ttft"]["p50"] - simulate(first, devices, fleet)["p50_s"]
        links = Links(bytes_per_s=KV_BYTES_PER_S, front_s=max(front_s, 0.0))
        devices = msgspec.structs.replace(devices, links=links)
        live = measure(url, folder, "--trace", second, "--seed", 2)
        simulated = simulate(second, devices, fleet)
    makes = f"{fleet.num_prefill}P+{fleet.num_decode}D `{fleet.policy}`"
    print(f"{makes}: {rate:.1f} requests/s, front {front_s * 1e3:.1f} ms, {devices}", flush=True)
    return [
        f"| {makes} | {title} | {live[one][percentile] * 1e3:.1f} | {simulated[figure] * 1e3:.1f} "
        f"| {simulated[figure] / live[one][percentile] - 1:+.0%} |"
        for title, one, percentile, figure in FIGURES
    ] + [
        f"| {makes} | hit | {live['hit_ratio'] or 0:.3f} | {simulated['hit']:.3f} "
        f"| computed by decode: {simulated['num_local']:.0f} |"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--prefill", type=int, default=1)
    parser.add_argument("--decode", type=int, default=1)
    parser.add_argument("--policy", nargs="+", default=["cost"])
    parser.add_argument("--seconds", type=float, default=30.0)
    asked = parser.parse_args()
    lines = []
    for policy in asked.policy:
        lines += compare(
            Fleet(
                num_prefill=asked.prefill,
                num_decode=asked.decode,
                policy=policy,
                seconds=asked.seconds,
            )
        )
    print("| ms | | live | simulated | off |", "|---|---|--:|--:|--:|", *lines, sep="\n")


if __name__ == "__main__":
    main()
