"""Decode steps of one model in several ways, in one process and in turns: what weights of fewer
bits, tokens found without all logits, and a grammar are worth.

    greedy, sampled     tokens found without all logits, where the head allows it
    ..., all logits     the same requests, with all logits computed
    grammar             greedy, by the regular expression `[a-z ,.]*`
    int8, int4          greedy, with weights of fewer bits

Sampled requests have temperature 0.6, top-k 20 and top-p 0.95. `python -m bench.peers` leaves a
folder with the shape of Qwen3-0.6B behind.

    python -m bench.engine.side_by_side FOLDER [--requests 1 16] [--turns 12]
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from baton.core.sampling import Grammar, GrammarKind, SamplingParams
from baton.engine.assemble import engine_around
from baton.engine.checkpoint.load import load_model
from baton.engine.config import CacheConfig, EngineConfig
from baton.engine.engine import Engine
from baton.engine.grammar.structured_output import LlGuidanceCompiler
from baton.engine.passes.runner import ModelRunner
from baton.engine.request.request import Request
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table

PROMPT_LEN, STEPS_A_TURN, WARM_UP_STEPS = 128, 6, 4
GRAMMAR = Grammar(GrammarKind.REGEX, "[a-z ,.]*")
GREEDY = SamplingParams(temperature=0, max_tokens=4096, ignore_eos=True)
SAMPLED = SamplingParams(
    temperature=0.6, top_k=20, top_p=0.95, max_tokens=4096, ignore_eos=True, seed=1
)
FOLLOWING = SamplingParams(temperature=0, min_tokens=4096, max_tokens=4096, grammar=GRAMMAR)


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    sampling: SamplingParams = GREEDY
    quantize: str = "none"
    computes_all_logits: bool = False


WAYS = (
    Way("greedy"),
    Way("greedy, all logits", computes_all_logits=True),
    Way("sampled", SAMPLED),
    Way("sampled, all logits", SAMPLED, computes_all_logits=True),
    Way("grammar", FOLLOWING),
    Way("int8", quantize="int8"),
    Way("int4", quantize="int4"),
)


def measure(folder: Path, num_requests: int, turns: int) -> dict[str, list[float]]:
    """Milliseconds of each step, by way."""
    engines: dict[tuple[SamplingParams, str], Engine] = {}
    for quantize in ("none", "int8", "int4"):
        loaded = load_model(folder, dtype="bfloat16", quantize=quantize)
        grammars = LlGuidanceCompiler.from_folder(folder, loaded.info)
        for sampling in {way.sampling for way in WAYS if way.quantize == quantize}:
            num_blocks = num_requests * -(-(PROMPT_LEN + 4 * STEPS_A_TURN * turns) // 16) + 64
            config = EngineConfig(cache=CacheConfig(num_blocks=num_blocks))
            engine = engine_around(loaded, config, "cpu", grammars)
            _begin(engine, sampling, num_requests)
            engines[sampling, quantize] = engine
    took: dict[str, list[float]] = {way.name: [] for way in WAYS}
    for _ in range(turns):
        for way in WAYS:
            engine = engines[way.sampling, way.quantize]
            with _screening(engine, is_off=way.computes_all_logits):
                for _ in range(STEPS_A_TURN):
                    began = time.perf_counter()
                    report = engine.step()
                    took[way.name].append((time.perf_counter() - began) * 1e3)
                    if report.num_running != num_requests:
                        raise RuntimeError(f"{way.name}: a request has ended")
    return took


def _begin(engine: Engine, sampling: SamplingParams, num_requests: int) -> None:
    """Add requests and compute their prompts."""
    for number in range(num_requests):
        chosen = random.Random(number)
        prompt = [chosen.randrange(5, 4000) for _ in range(PROMPT_LEN)]
        matcher = None
        if sampling.grammar is not None and engine.grammars is not None:
            matcher = engine.grammars.compile(sampling.grammar)
        engine.add(Request(f"r{number}", prompt, sampling=sampling, matcher=matcher))
    while engine.num_waiting or engine.num_queued_tokens > num_requests:
        engine.step()
    for _ in range(WARM_UP_STEPS):
        engine.step()


@contextmanager
def _screening(engine: Engine, *, is_off: bool) -> Iterator[None]:
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    screen = runner.screen
    if is_off:
        runner.screen = None
    try:
        yield
    finally:
        runner.screen = screen


def report(folder: Path, num_requests: int, turns: int) -> str:
    medians = {
        name: statistics.median(steps)
        for name, steps in measure(folder, num_requests, turns).items()
    }
    rows = [(name, ms, medians["greedy"] / ms) for name, ms in medians.items()]
    title = f"### {num_requests} requests, medians of {STEPS_A_TURN * turns} steps"
    return f"{title}\n\n" + table(("way", "ms", "speed, greedy is 1"), rows)


if __name__ == "__main__":
    parser = benchmark_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--requests", type=int, nargs="+", default=(1, 16))
    parser.add_argument("--turns", type=int, default=12)
    given = parser.parse_args()
    print(surroundings())
    for count in given.requests:
        print(f"\n{report(given.folder, count, given.turns)}")
