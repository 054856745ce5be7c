"""How time and memory grow with context, batch and prompt length, beside what theory predicts.

    decode step    over the context    reads the weights and the KV of b requests once: linear
                   over the batch      likewise
    prefill        over the length     matrix products are linear, attention is quadratic
    memory         over cached tokens  KV bytes a token: linear

A line is fitted by least squares; its slope stands beside the one computed from bytes and the
bandwidth that was measured at the same time. Weights are random, with the shape of Qwen3-0.6B in
bfloat16.

    python -m bench.engine.growth [--quick]
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import torch

from baton.engine.memory.kv_cache import KvCache
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.instruments.engine_bench import EngineBench, Measured, Point
from baton.platform.instruments.loaded_engine import LoadedEngine, load_measured
from baton.platform.instruments.pass_cost import floor_s
from baton.platform.instruments.product_rates import ceilings_of
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table
from bench.peers.models import SHAPES

CONTEXTS = (256, 1024, 2048, 4096, 8000)
BATCHES = (1, 2, 4, 8, 16, 32)
BATCH_CONTEXT = 1024
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8000)
QUICK = {"contexts": (128, 512), "batches": (1, 2), "lengths": (128, 256)}
MAX_S = 120.0
MIB = 1 << 20


def load(max_tokens: int, shape: str = "0.6b") -> LoadedEngine:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(SHAPES[shape].config()))
        config = override(DeploymentConfig(), {"load_format": "dummy", "dtype": "bfloat16"})
        return load_measured(Path(folder), config, sizes=[max_tokens], max_running=32)


def fit(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float, float]:
    """Intercept and slope of the least-squares line, and its R²."""
    line = statistics.linear_regression(xs, ys)
    return line.intercept, line.slope, statistics.correlation(xs, ys) ** 2


def report(*, is_quick: bool = False) -> str:
    contexts = QUICK["contexts"] if is_quick else CONTEXTS
    batches = QUICK["batches"] if is_quick else BATCHES
    lengths = QUICK["lengths"] if is_quick else LENGTHS
    loaded = load(max(8 * (max(contexts) + 96), max(batches) * (BATCH_CONTEXT + 96)))
    bench = EngineBench(
        measured=loaded,
        ceilings=ceilings_of(loaded),
        ends_at=time.monotonic() + MAX_S,
        report=lambda what: None,
    )
    by_context, by_batch, by_length = Measured(), Measured(), Measured()
    for batch in (1, 8):
        bench.decode([batch], contexts, by_context)
    bench.decode(batches, [BATCH_CONTEXT], by_batch)
    bench.prefill(lengths, by_length)
    return "\n\n".join(
        (
            "### A decode step over the context",
            *(_over_context(by_context, batch) for batch in (1, 8)),
            f"### A decode step over the batch, context {BATCH_CONTEXT}",
            _line("requests", [point.batch for point in by_batch.decode], by_batch.decode),
            "### Prefill over the length of one prompt",
            _line("tokens", [point.context for point in by_length.prefill], by_length.prefill),
            "### Memory over the tokens held",
            _memory(loaded, is_quick=is_quick),
        )
    )


def _over_context(measured: Measured, batch: int) -> str:
    points = [point for point in measured.decode if point.batch == batch]
    name = f"context, {batch} request{'s' * (batch > 1)}"
    return _line(name, [point.context for point in points], points)


def _line(name: str, xs: Sequence[int], points: Sequence[Point]) -> str:
    """A row a point, then the line through them, and the line through their lower bounds, which
    follow from the median bandwidth."""
    if len(points) < 2:
        return "Not measured: see what was skipped with `baton bench engine`."
    read_bytes_s = statistics.median(point.ceilings.read_bytes_s for point in points)
    floors = [
        floor_s(point.work, replace(point.ceilings, read_bytes_s=read_bytes_s)) for point in points
    ]
    times = [point.seconds for point in points]
    rows = [
        (f"{x}", point.seconds * 1e3, floor * 1e3, f"{floor / point.seconds:.0%}",
         point.ceilings.read_bytes_s / 1e9)
        for x, point, floor in zip(xs, points, floors, strict=True)
    ]  # fmt: skip
    start, slope, straightness = fit(xs, times)
    _, theory, _ = fit(xs, floors)
    return (
        table((name, "ms", "lower bound, ms", "bound / time", "read, GB/s"), rows)
        + f"\n\nLine: {start * 1e3:.2f} ms + {slope * 1e6:.2f} µs each (R² {straightness:.3f}); "
        f"the lower bound grows by {theory * 1e6:.2f} µs."
    )


def _memory(loaded: LoadedEngine, *, is_quick: bool) -> str:
    """Memory of the process while the blocks of a new cache are written one after the other."""
    layout = loaded.engine.pool.layout
    num_blocks = 64 if is_quick else 512
    cache, process = KvCache(layout, num_blocks), psutil.Process(os.getpid())
    xs, ys = [], []
    for stop in range(0, num_blocks + 1, num_blocks // 4):
        for layer in cache.planes:
            layer[:stop].view(torch.uint8).fill_(1)
        xs.append(stop * layout.block_size)
        ys.append(process.memory_info().rss / MIB)
    _, slope, straightness = fit(xs, ys)
    rows = [(f"{x}", y - ys[0]) for x, y in zip(xs, ys, strict=True)]
    token_kib = layout.block_bytes / layout.block_size / 1024
    return (
        table(("cached tokens", "additional MiB"), rows)
        + f"\n\nLine: {slope * 1024:.1f} KiB a token (R² {straightness:.4f}); "
        f"the layout says {token_kib:.1f} KiB."
    )


if __name__ == "__main__":
    parser = benchmark_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="few points")
    print(f"{surroundings()}\n\n{report(is_quick=parser.parse_args().quick)}")
