"""Times an engine step without the model, and the demo model.

    schedule -> forward: inputs | the runner | commit of computed tokens -> sample

The runner is timed separately; the rest of `forward` is bookkeeping. Times are medians over windows
of 16 steps, one block of tokens, so that each includes the hashing of full blocks.

    python -m bench.engine.step_overhead
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.core.clock import Clock
from baton.core.sampling import SamplingParams
from baton.engine.batch.batch import Chunk, OnLayer, ignore_layer
from baton.engine.checkpoint.load import LoadedModel, load_model
from baton.engine.config import CacheConfig, EngineConfig
from baton.engine.engine import Engine
from baton.engine.layers.linear import Linear
from baton.engine.memory.kv_cache import KvCache
from baton.engine.passes.echo import EchoRunner, echo_info
from baton.engine.passes.runner import ModelRunner, Runner
from baton.engine.request.request import Request
from baton.kernels.products.vocabulary_screen import ScreenedTokens
from baton.kernels.sampling.draw_token import Draws
from baton.platform.config.deployment import DEMO_MODEL
from baton.platform.models.model_folder import find_model
from bench.engine import scheduling
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table

VOCAB_SIZE = 4096
"""The size of the demo model's vocabulary."""
PROMPT_LEN = 128
BLOCK_SIZE = 16
NUM_BLOCKS = 4096
NUM_WINDOWS = 20
WARM_UP_STEPS = 32

GREEDY = SamplingParams(temperature=0.0, max_tokens=10_000, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=10_000, ignore_eos=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Microseconds of one step in which every request gets one token."""

    num_running: int
    schedule: float
    runner: float
    bookkeeping: float
    sample: float
    whole: float
    """The whole step, by the clock of the caller of `Engine.step`."""

    @property
    def overhead(self) -> float:
        """Microseconds outside the runner."""
        return self.whole - self.runner


class TimedRunner:
    """Forwards all calls, and adds up the times of passes."""

    def __init__(self, runner: Runner, clock: Clock = time.perf_counter) -> None:
        self._runner = runner
        self._clock = clock
        self.info = runner.info
        self.cache = runner.cache
        self.pass_s = self.head_s = 0.0

    @property
    def seconds(self) -> float:
        return self.pass_s + self.head_s

    def forward(self, chunks: Sequence[Chunk], on_layer: OnLayer = ignore_layer) -> Tensor:
        started = self._clock()
        hidden = self._runner.forward(chunks, on_layer)
        self.pass_s += self._clock() - started
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        started = self._clock()
        logits = self._runner.logits(hidden)
        self.head_s += self._clock() - started
        return logits

    def screened_tokens(self, hidden: Tensor, draws: Draws | None = None) -> ScreenedTokens | None:
        started = self._clock()
        found = self._runner.screened_tokens(hidden, draws)
        self.head_s += self._clock() - started
        return found


def decode_cost(
    runner: Runner, num_running: int, sampling: SamplingParams, num_windows: int
) -> StepCost:
    """Medians over windows in which `num_running` requests decode together."""
    timed = TimedRunner(runner)
    engine = Engine(timed, EngineConfig(cache=CacheConfig(num_blocks=NUM_BLOCKS)))
    for index in range(num_running):
        tokens = random.Random(index).choices(range(3, VOCAB_SIZE), k=PROMPT_LEN + index % 16)
        engine.add(Request(f"request {index}", tokens, sampling=sampling))
    while engine.num_waiting or engine.num_queued_tokens > num_running:
        engine.step()
    for _ in range(WARM_UP_STEPS):
        engine.step()
    windows = [_window(engine, timed) for _ in range(num_windows)]
    schedule, forward, sample, inner, whole = map(statistics.median, zip(*windows, strict=True))
    return StepCost(
        num_running=num_running,
        schedule=schedule,
        runner=inner,
        bookkeeping=forward - inner,
        sample=sample,
        whole=whole,
    )


def _window(engine: Engine, runner: TimedRunner) -> tuple[float, float, float, float, float]:
    """Microseconds a step over one block of tokens: schedule, forward, sample, runner, whole."""
    runner.pass_s = runner.head_s = 0.0
    started = time.perf_counter()
    reports = [engine.step() for _ in range(BLOCK_SIZE)]
    whole = time.perf_counter() - started
    return (
        sum(report.schedule_ms for report in reports) * 1e3 / BLOCK_SIZE,
        sum(report.forward_ms for report in reports) * 1e3 / BLOCK_SIZE,
        sum(report.sample_ms for report in reports) * 1e3 / BLOCK_SIZE,
        runner.seconds * 1e6 / BLOCK_SIZE,
        whole * 1e6 / BLOCK_SIZE,
    )


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Runs another process, which keeps a core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def echo_runner() -> Runner:
    info = echo_info(vocab_size=VOCAB_SIZE)
    return EchoRunner(info, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, is_verifying=False)


def matmul_us(
    loaded: LoadedModel, num_rows: int, clock: Clock = time.perf_counter, repeats: int = 100
) -> float:
    """Microseconds of the model's matrix products alone: a lower bound of a pass."""
    layers = [layer for layer in loaded.model.modules() if isinstance(layer, Linear)]
    widths = {layer.weight.shape[1] for layer in layers}
    inputs = {width: torch.randn(num_rows, width) for width in widths}
    hidden = torch.randn(num_rows, loaded.model.embed.weight.shape[1])

    def products() -> None:
        for layer in layers:
            if layer is not loaded.model.head:
                layer(inputs[layer.weight.shape[1]])
        loaded.model.logits(hidden)

    with torch.inference_mode():
        return _median_us(products, clock, repeats)


def _median_us(work: Callable[[], None], clock: Clock, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = clock()
        work()
        times.append(clock() - started)
    return statistics.median(times[repeats // 5 :]) * 1e6


def report(*, is_quick: bool = False) -> str:
    num_windows = 2 if is_quick else NUM_WINDOWS
    loaded = load_model(find_model(DEMO_MODEL), dtype="float32", device="cpu")
    return "\n\n".join(
        (
            "### Without a model (echo runner, greedy), µs a step",
            _echo_table(num_windows),
            "### Scheduling, µs a step, by the requests that run and that wait",
            scheduling.report(is_quick=is_quick),
            "### The demo model (float32), ms a step",
            _model_table(loaded, num_windows),
            "### The same, 16 running, greedy, beside a process that keeps a core busy",
            _neighbour_table(loaded, num_windows),
        )
    )


def _echo_table(num_windows: int) -> str:
    torch.set_num_threads(1)
    costs = [decode_cost(echo_runner(), count, GREEDY, num_windows) for count in (1, 16, 32, 64)]
    header = (
        "running", "schedule", "bookkeeping", "sample", "all but the runner", "a token",
        "echo runner",
    )  # fmt: skip
    rows = [
        (
            str(cost.num_running),
            cost.schedule,
            cost.bookkeeping,
            cost.sample,
            cost.overhead,
            cost.overhead / cost.num_running,
            cost.runner,
        )
        for cost in costs
    ]
    return table(header, rows)


def _model_table(loaded: LoadedModel, num_windows: int) -> str:
    header = (
        "threads, running, sampling", "schedule", "forward", "sample", "step", "tokens/s",
        "matrix products alone",
    )  # fmt: skip
    rows = []
    for threads in (1, 2):
        for num_running in (1, 16):
            torch.set_num_threads(threads)
            floor = matmul_us(loaded, num_running) / 1e3
            for name, sampling in (("greedy", GREEDY), ("T 0.7, top-p 0.9", DRAWN)):
                cost = _model_cost(loaded, threads, num_running, sampling, num_windows)
                rows.append(
                    (
                        f"{threads}, {num_running}, {name}",
                        cost.schedule / 1e3,
                        (cost.runner + cost.bookkeeping) / 1e3,
                        cost.sample / 1e3,
                        cost.whole / 1e3,
                        num_running / cost.whole * 1e6,
                        floor,
                    )
                )
    return table(header, rows)


def _neighbour_table(loaded: LoadedModel, num_windows: int) -> str:
    rows = []
    for threads in (1, 2):
        alone = _model_cost(loaded, threads, 16, GREEDY, num_windows).whole / 1e3
        with busy_neighbour():
            beside = _model_cost(loaded, threads, 16, GREEDY, num_windows).whole / 1e3
        rows.append((str(threads), alone, beside, beside / alone))
    return table(("threads", "alone, ms a step", "beside it", "ratio"), rows)


def _model_cost(
    loaded: LoadedModel,
    threads: int,
    num_running: int,
    sampling: SamplingParams,
    num_windows: int,
) -> StepCost:
    torch.set_num_threads(threads)
    cache = KvCache(loaded.info.layout(BLOCK_SIZE), NUM_BLOCKS)
    return decode_cost(ModelRunner(loaded, cache), num_running, sampling, num_windows)


if __name__ == "__main__":
    benchmark_parser(__doc__).parse_args()
    print(f"{surroundings()}\n\n{report()}")
