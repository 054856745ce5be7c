"""`baton bench engine`: loads the model, measures, reports."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from rich.console import Console

from baton.core.wording import count_of
from baton.engine.speculation.speculation import Speculation
from baton.platform.cli.terminal.output_files import check_plots, check_writable
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.instruments.bench_report import as_json, show
from baton.platform.instruments.engine_bench import MAX_STEPS, EngineBench, Measured
from baton.platform.instruments.loaded_engine import LoadedEngine, load_measured
from baton.platform.instruments.product_rates import ceilings_of
from baton.platform.instruments.roofline import draw
from baton.platform.instruments.speculation_bench import (
    REQUEST_TOKENS,
    SpeculationPoint,
    as_tree,
    speculation_point,
    speculation_table,
)
from baton.platform.machine.datasheet import datasheet


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    lengths: Sequence[int]
    batches: Sequence[int]
    contexts: Sequence[int]
    max_seconds: float
    json_file: Path | None = None
    png_file: Path | None = None


def run(config: DeploymentConfig, folder: Path, job: Job) -> None:
    """Raises CheckpointError or InvalidConfig."""
    if job.png_file is not None:
        check_plots("--png")
        check_writable(job.png_file, "--png")
    if job.json_file is not None:
        check_writable(job.json_file, "--json")
    console, progress = Console(highlight=False), Console(stderr=True, highlight=False)
    with progress.status(f"reading {config.model_name}") as status:
        loaded = load_measured(
            folder,
            config,
            sizes=_sizes(job),
            max_running=max(job.batches, default=1),
        )
        status.update("measuring what this machine can do")
        ceilings = ceilings_of(loaded)
        bench = EngineBench(
            measured=loaded,
            ceilings=ceilings,
            ends_at=time.monotonic() + job.max_seconds,
            report=status.update,
        )
        measured = Measured()
        speculation, loaded.engine.speculation = loaded.engine.speculation, None
        if job.lengths:
            bench.prefill(job.lengths, measured)
        if job.batches:
            bench.decode(job.batches, job.contexts, measured)
        points = [] if speculation is None else _speculation(loaded, speculation, job, bench)
    sheet, title = datasheet(loaded.device), _title(config, loaded)
    show(console, measured, ceilings, sheet, title)
    if points:
        method = config.decode.speculation.method
        console.print(speculation_table(points, f"source code, greedy, drafted by {method}"))
    if job.json_file is not None:
        found = as_json(measured, ceilings, sheet, _about(config, loaded))
        found["speculation"] = list(as_tree(points))
        job.json_file.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    if job.png_file is not None:
        draw(measured, ceilings, title, job.png_file)


def _speculation(
    loaded: LoadedEngine, speculation: Speculation, job: Job, bench: EngineBench
) -> list[SpeculationPoint]:
    points = []
    for batch in job.batches:
        if time.monotonic() < bench.ends_at and batch * REQUEST_TOKENS <= loaded.max_tokens:
            bench.report(f"decode of {batch} requests with drafts and without")
            points.append(speculation_point(loaded, speculation, batch))
    return points


def _sizes(job: Job) -> list[int]:
    """The total tokens of all requests, at each point."""
    decoding = [n * (context + 2 * MAX_STEPS) for n in job.batches for context in job.contexts]
    drafting = [n * REQUEST_TOKENS for n in job.batches]
    return [*decoding, *drafting, *(length + 1 for length in job.lengths)]


def _title(config: DeploymentConfig, loaded: LoadedEngine) -> str:
    about = _about(config, loaded)
    return (
        f"{about['name']}: {about['architecture']}, {about['dtype']}{_narrower(config)}, "
        f"{about['weight_bytes'] / 1e9:.2f} GB of weights a pass, KV of {about['kv_dtype']}, "
        f"{loaded.device}, {count_of(torch.get_num_threads(), 'thread')}; "
        f"ready in {loaded.ready_s:.1f} s"
    )


def _narrower(config: DeploymentConfig) -> str:
    return "" if config.quantize == "none" else f" with {config.quantize} weights"


def _about(config: DeploymentConfig, loaded: LoadedEngine) -> dict[str, Any]:
    info = loaded.loaded.info
    return {
        "name": config.model_name,
        "architecture": info.architecture,
        "dtype": info.dtype,
        "quantize": config.quantize,
        "kv_dtype": loaded.engine.pool.layout.dtype,
        "weight_bytes": loaded.shape.weight_bytes,
        "device": loaded.device,
        "ready_s": loaded.ready_s,
    }
