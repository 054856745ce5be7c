"""`baton profile`: loads the model, runs it, reports."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from rich.console import Console

from baton.core.errors import InvalidConfig
from baton.core.wording import count_of
from baton.engine.speculation.draft_tally import DraftCounts
from baton.platform.cli.terminal.output_files import check_writable
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.instruments.chrome_trace import chrome_trace
from baton.platform.instruments.loaded_engine import LoadedEngine, load_measured
from baton.platform.instruments.speculation_bench import DraftUse, draft_use, use_table
from baton.platform.instruments.step_table import step_table
from baton.platform.instruments.step_watch import StepTime, StepWatch, watching

WARM_UP_TOKENS = 4
NUM_KERNELS = 30
"""The most kernels of a GPU in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    trace_file: Path | None = None

    @property
    def request_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


def run(config: DeploymentConfig, folder: Path, job: Job) -> None:
    """Raises CheckpointError or InvalidConfig."""
    if job.trace_file is not None:
        check_writable(job.trace_file, "--trace")
    with Console(stderr=True).status(f"reading {config.model_name}"):
        loaded = load_measured(
            folder,
            config,
            sizes=[job.num_requests * (job.request_tokens + config.decode.cache.block_size)],
            max_running=job.num_requests,
        )
    _check(loaded, job)
    with ExitStack() as stack:
        watch = stack.enter_context(watching(loaded.engine, loaded.loaded.model))
        _run_requests(loaded, watch, job, WARM_UP_TOKENS, "warm up")
        kernels = stack.enter_context(_gpu_profiler()) if loaded.device == "cuda" else None
        speculation = loaded.engine.speculation
        before = None if speculation is None else speculation.counts()
        steps = _run_requests(loaded, watch, job, job.output_tokens, "measured")
    console = Console(highlight=False)
    title = (
        f"{config.model_name}, {loaded.loaded.info.dtype}: "
        f"{count_of(job.num_requests, 'request')} of {count_of(job.prompt_tokens, 'token')}, "
        f"{job.output_tokens} more each"
    )
    console.print(step_table(steps, title))
    if speculation is not None and before is not None:
        console.print(use_table(_use(before, speculation.counts(), steps)))
    if kernels is not None:
        console.print(kernels.key_averages().table("self_device_time_total", NUM_KERNELS))
    if job.trace_file is not None:
        _write_trace(job.trace_file, steps, kernels)
        console.print(f"trace: {job.trace_file}; open it at https://ui.perfetto.dev")


def _check(loaded: LoadedEngine, job: Job) -> None:
    if job.request_tokens > loaded.engine.max_model_len:
        raise InvalidConfig(
            f"--prompt-tokens and --output-tokens add up to {job.request_tokens}, more than the "
            f"{loaded.engine.max_model_len} tokens that the model and its cache allow a request; "
            "lower them"
        )


def _run_requests(
    loaded: LoadedEngine, watch: StepWatch, job: Job, max_tokens: int, name: str
) -> list[StepTime]:
    """Run all requests at once, until the last is done."""
    for index in range(job.num_requests):
        loaded.add(job.prompt_tokens, f"{name} {index}", max_tokens)
    steps = []
    while loaded.engine.has_work:
        steps.append(watch.step())
    return steps


def _use(before: DraftCounts, after: DraftCounts, steps: Sequence[StepTime]) -> DraftUse:
    decoding = [step for step in steps if not step.is_prefill]
    return draft_use(
        before,
        after,
        num_decodes=sum(step.num_requests for step in decoding),
        draft_s=sum(step.draft_s for step in decoding),
        seconds=sum(step.step_s for step in decoding),
    )


def _gpu_profiler() -> Any:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    return torch.profiler.profile(activities=activities)


def _write_trace(file: Path, steps: list[StepTime], kernels: Any) -> None:
    if kernels is not None:
        kernels.export_chrome_trace(str(file))
    else:
        file.write_bytes(msgspec.json.encode(chrome_trace(steps)))
