"""The simulator against a deployment of the demo model on this machine, at 85 % of its capacity.

    capacity    answers a second with many concurrent requests           --> rate
    first load  live and simulated, median TTFT                          --> front_s
    second      live; the step times that replicas report                --> device
                simulated on that device                                 --> the table

    python -m bench.planning.simulator_fidelity [--prefill N] [--decode N] [--policy NAME ...]
                                                [--seconds S] [--paced]

Each policy has a deployment of its own. Live, all processes and the load generator share the
machine's cores; simulated, each has its own. --paced replicas compute nothing: their passes sleep
for a given time, so that cores matter less, and everything else is live.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from urllib.request import urlopen

import msgspec

from baton.core.step_times import StepTimes
from baton.platform.simulator.fleet.devices import Devices, devices_of
from baton.platform.simulator.fleet.experiment import FleetCase, play_fleet
from baton.platform.simulator.fleet.setup import FleetSetup, Links
from baton.platform.traces.reader import read_trace
from bench.harness.command_line import benchmark_parser
from bench.harness.echo_deployment import Layout, running
from bench.harness.live_deployment import LiveDeployment
from bench.harness.load_generator import BLOCK_SIZE, measure, percentile

SHARE = 0.85
MANY = 16
"""Concurrent requests a decode replica, to measure the capacity."""
SATURATED_S = 12.0
SEEDS = 3
NUM_FAMILIES = 8
FAMILY_BLOCKS = 8
"""Blocks of a prefix that prompts of a family share; half of the prompts have one."""
KV_BYTES_PER_S = 1e9
STATUS_LIMIT_S = 30.0
PACE = StepTimes(constant_s=0.03, token_s=4e-4, pair_s=2e-7, context_s=2e-6, request_s=5e-4)
"""Step times of paced replicas."""
FIGURES = (
    ("TTFT median", "ttft", 50, "p50_s"),
    ("TTFT p90", "ttft", 90, "p90_s"),
    ("ITL median", "itl", 50, "itl_p50_s"),
    ("ITL p90", "itl", 90, "itl_p90_s"),
    ("time a token, median", "tpot", 50, "tpot_p50_s"),
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


def most_per_s(url: str, folder: Path, num_at_once: int) -> float:
    """The capacity in answers a second, with the trace's sizes."""
    file = folder / "most.jsonl"
    write_trace(file, 200.0, SATURATED_S, seed=7)
    at_once = ("--concurrency", num_at_once, "--duration", SATURATED_S)
    found = measure(url, folder, "--trace", file, *at_once, "--seed", 7)
    return float(found["requests_s"])


def told_devices(admin_url: str, front_s: float) -> Devices:
    """The devices that replicas report from their last steps."""
    with urlopen(f"{admin_url}/debug/status", timeout=STATUS_LIMIT_S) as page:
        told = devices_of(json.load(page), admin_url)
    links = Links(bytes_per_s=KV_BYTES_PER_S, front_s=front_s)
    return msgspec.structs.replace(told, links=links)


def simulate(file: Path, devices: Devices, fleet: Fleet) -> dict[str, float]:
    """The means over some seeds."""
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


@contextmanager
def deployed(fleet: Fleet, *, is_paced: bool) -> Iterator[tuple[str, str]]:
    """The URLs of the gateway, for clients and for operators."""
    if is_paced:
        layout = Layout(
            num_prefill=fleet.num_prefill,
            num_decode=fleet.num_decode,
            policy=fleet.policy,
            step_times=PACE,
        )
        with running(layout) as echo:
            yield _url(echo.http_port), _url(echo.admin_port)
        return
    config = {
        "model": "demo",
        "prefill": {"replicas": fleet.num_prefill},
        "decode": {"replicas": fleet.num_decode},
        "gateway": {"policy": fleet.policy},
    }
    with LiveDeployment(config) as deployment:
        yield _url(deployment.wait()), _url(deployment.admin_port)


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def compare(fleet: Fleet, *, is_paced: bool) -> list[str]:
    """Lines of a table."""
    with tempfile.TemporaryDirectory() as name, deployed(fleet, is_paced=is_paced) as urls:
        folder, (url, admin_url) = Path(name), urls
        rate = SHARE * most_per_s(url, folder, MANY * fleet.num_decode)
        first, second = folder / "first.jsonl", folder / "second.jsonl"
        for seed, file in enumerate((first, second)):
            write_trace(file, rate, fleet.seconds, seed)
        live = measure(url, folder, "--trace", first, "--seed", 1)
        told = simulate(first, told_devices(admin_url, front_s=0.0), fleet)
        front_s = max(percentile(live, "ttft", 50) - told["p50_s"], 0.0)
        live = measure(url, folder, "--trace", second, "--seed", 2)
        devices = told_devices(admin_url, front_s)
        simulated = simulate(second, devices, fleet)
    makes = f"{fleet.num_prefill}P+{fleet.num_decode}D `{fleet.policy}`"
    print(f"{makes}: {rate:.1f} requests/s, front {front_s * 1e3:.1f} ms, {devices}", flush=True)
    pairs = [
        (title, percentile(live, one, percent), simulated[figure])
        for title, one, percent, figure in FIGURES
    ]
    return [
        f"| {makes} | {title} | {was * 1e3:.1f} | {would_be * 1e3:.1f} "
        f"| {would_be / max(was, 1e-9) - 1:+.0%} |"
        for title, was, would_be in pairs
    ] + [f"| {makes} | hit | {live['hit_ratio'] or 0:.3f} | {simulated['hit']:.3f} | |"]


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--prefill", type=int, default=1)
    parser.add_argument("--decode", type=int, default=1)
    parser.add_argument("--policy", nargs="+", default=["cost"])
    parser.add_argument("--paced", action="store_true")
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
            ),
            is_paced=asked.paced,
        )
    print("| ms | | live | simulated | off |", "|---|---|--:|--:|--:|", *lines, sep="\n")


if __name__ == "__main__":
    main()
