"""What adapters (LoRA) cost: steps of one model with and without them, in one process and in turns.

    none          the model is loaded without adapters
    unused        it has them, and no request asks for one
    one           all requests ask for the same
    each          requests ask for all of them in turns

Adapters are random, and change all linear layers of attention and feed-forward. `python -m
bench.peers` leaves a folder with the shape of Qwen3-0.6B behind.

    python -m bench.engine.adapters FOLDER [--adapters 4] [--rank 16] [--requests 1 16] [--turns 12]
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path

from baton.core.sampling import SamplingParams
from baton.engine.assemble import engine_around
from baton.engine.checkpoint.load import load_model
from baton.engine.config import CacheConfig, EngineConfig
from baton.engine.engine import Engine
from baton.engine.request.request import Request
from bench.harness.command_line import benchmark_parser
from bench.harness.random_adapters import random_adapter
from bench.harness.report import surroundings, table

WAYS = ("none", "unused", "one", "each")
PROMPT_LEN, LONG_PROMPT_LEN, STEPS_A_TURN, WARM_UP_STEPS = 128, 512, 6, 4
DECODING = SamplingParams(temperature=0, max_tokens=4096, ignore_eos=True)
PREFILLING = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)


def engines(folder: Path, adapters: dict[str, Path], num_tokens: int) -> dict[str, Engine]:
    """One engine a way; those with adapters share a model."""
    config = EngineConfig(cache=CacheConfig(num_blocks=num_tokens // 16 + 256))
    bare = load_model(folder, dtype="bfloat16")
    adapted = load_model(folder, dtype="bfloat16", adapters=adapters)
    return {way: engine_around(bare if way == "none" else adapted, config, "cpu") for way in WAYS}


def adapter_of(way: str, number: int, names: list[str]) -> str:
    return {"one": names[0], "each": names[number % len(names)]}.get(way, "")


def decode_ms(
    by_way: dict[str, Engine], names: list[str], num_requests: int, turns: int
) -> dict[str, float]:
    """The median of a step of `num_requests` that decode."""
    for way, engine in by_way.items():
        for number in range(num_requests):
            adapter = adapter_of(way, number, names)
            request_id, prompt = f"{way} {number}", _prompt(number, PROMPT_LEN)
            engine.add(
                Request(
                    request_id, prompt, sampling=DECODING, salt=adapter.encode(), adapter=adapter
                )
            )
        while engine.num_waiting or engine.num_queued_tokens > num_requests:
            engine.step()
        for _ in range(WARM_UP_STEPS):
            engine.step()
    took: dict[str, list[float]] = {way: [] for way in by_way}
    for _ in range(turns):
        for way, engine in by_way.items():
            for _ in range(STEPS_A_TURN):
                began = time.perf_counter()
                engine.step()
                took[way].append((time.perf_counter() - began) * 1e3)
    for way, engine in by_way.items():
        for number in range(num_requests):
            engine.abort(f"{way} {number}")
    return {way: statistics.median(steps) for way, steps in took.items()}


def prefill_ms(by_way: dict[str, Engine], names: list[str], turns: int) -> dict[str, float]:
    """The median of a prompt of `LONG_PROMPT_LEN` tokens."""
    took: dict[str, list[float]] = {way: [] for way in by_way}
    for turn in range(turns):
        for way, engine in by_way.items():
            prompt, adapter = _prompt(1000 + turn, LONG_PROMPT_LEN), adapter_of(way, turn, names)
            engine.add(Request("long", prompt, sampling=PREFILLING, adapter=adapter))
            began = time.perf_counter()
            while engine.has_work:
                engine.step()
            took[way].append((time.perf_counter() - began) * 1e3)
    return {way: statistics.median(steps) for way, steps in took.items()}


def _prompt(number: int, length: int) -> list[int]:
    chosen = random.Random(number)
    return [chosen.randrange(5, 4000) for _ in range(length)]


def _report(title: str, ms: dict[str, float]) -> str:
    rows = [(way, each, ms["none"] / each) for way, each in ms.items()]
    return f"\n### {title}\n\n" + table(("adapters", "ms", "speed, none is 1"), rows)


if __name__ == "__main__":
    parser = benchmark_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--adapters", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--requests", type=int, nargs="+", default=(1, 16))
    parser.add_argument("--turns", type=int, default=12)
    given = parser.parse_args()
    print(surroundings())
    with tempfile.TemporaryDirectory() as kept:
        folders = {
            f"adapter-{number}": random_adapter(
                given.folder, Path(kept) / str(number), rank=given.rank, seed=number
            )
            for number in range(given.adapters)
        }
        each_len = PROMPT_LEN + STEPS_A_TURN * given.turns + WARM_UP_STEPS
        num_tokens = max(given.requests) * each_len + LONG_PROMPT_LEN
        every = engines(given.folder, folders, num_tokens)
        for count in given.requests:
            found = decode_ms(every, list(folders), count, given.turns)
            print(_report(f"decoding, {count} requests", found))
        print(
            _report(f"a prompt of {LONG_PROMPT_LEN}", prefill_ms(every, list(folders), given.turns))
        )
