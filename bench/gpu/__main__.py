"""Checks and times every GPU kernel, and times whole passes, beside the limits of the device.

    python -m bench.gpu [--out FOLDER]       one call of under eight minutes; FOLDER/gpu.json
    python -m bench.gpu --check-only         no timing
    python -m bench.gpu --check-only --interpret     in Triton's interpreter, without a GPU

Needs only the kernels and the engine: no cluster, no server.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness.command_line import benchmark_parser

if TYPE_CHECKING:
    from bench.gpu.report import Report

BUDGET_S = 460.0
"""Parts that would begin later than this are skipped, and reported as such."""
ROOM_FOR_70B_AND_KV = 100 << 30
"""Device memory needed. Weights in e4m3 are 67 GiB, the KV of 2,304 tokens 0.7 GiB."""


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 if all checks passed."""
    options = _options(arguments)
    if options.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined
    from bench.gpu.report import Report

    device = "cpu" if options.interpret else "cuda"
    started = time.monotonic()
    report = Report(_surroundings(device))
    _check(report, device)
    _keep(report, options.out)
    if not options.check_only:
        for part in _timings(report, device):
            if time.monotonic() - started > BUDGET_S:
                report.leave_out(part.__name__)
                continue
            report.guard(part)
            _keep(report, options.out)
    _keep(report, options.out)
    print(report.markdown())
    return 0 if report.is_right else 1


def _keep(report: Report, folder: Path | None) -> None:
    """Write the results so far, since a device fault or a time limit may end the process."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gpu.json").write_text(json.dumps(report.as_json(), indent=1))


def _check(report: Report, device: str) -> None:
    import torch

    from bench.gpu.attention_cases import attention_cases
    from bench.gpu.cases import SMALL, cases
    from bench.gpu.expert_cases import expert_cases
    from bench.gpu.low_rank_cases import low_rank_cases

    dtype = torch.bfloat16
    for make in (cases, expert_cases, low_rank_cases):
        for case in make(SMALL, device, dtype):
            report.check(case)
    for case in attention_cases(device, is_small=True, dtype=dtype):
        report.check(case)


def _timings(report: Report, device: str) -> list[Callable[[], None]]:
    """The timings, the most important first, since time may run out."""
    import torch

    from bench.gpu.attention_cases import attention_cases
    from bench.gpu.cases import REAL, cases
    from bench.gpu.clock import Clock
    from bench.gpu.engine import LLAMA_8B, LLAMA_70B, EngineBench, dummy_model, fp8_model
    from bench.gpu.expert_cases import expert_cases
    from bench.gpu.low_rank_cases import low_rank_cases
    from bench.gpu.transformers import transformers_rows

    clock = Clock(torch.device(device))
    ceilings = report.ceilings = clock.ceilings()

    def kernels() -> None:
        for make in (cases, expert_cases, low_rank_cases):
            for case in make(REAL, device):
                report.time(case, clock)

    def attention() -> None:
        for case in attention_cases(device, is_small=False, dtype=torch.bfloat16):
            report.time(case, clock)

    def llama_8b() -> None:
        bench = EngineBench(
            "Llama-3-8B bf16", dummy_model(LLAMA_8B, device, "bfloat16"), device, max_requests=64
        )
        report.rows.append(bench.decode(1, 2048, ceilings))
        report.rows.append(bench.decode(64, 2048, ceilings))
        report.rows += bench.mixed(32, 2048, 96, ceilings)
        report.rows.append(bench.prefill(8192, ceilings))
        report.notes.append(f"graphs: {bench.runner.graphs and bench.runner.graphs.sizes}")
        report.notes.append(f"of prompts: {bench.runner.mixed and bench.runner.mixed.sizes}")
        report.weight_bytes = bench.weight_bytes

    def llama_70b() -> None:
        is_wide = torch.cuda.get_device_properties(device).total_memory > ROOM_FOR_70B_AND_KV
        most = 16 if is_wide else 4
        bench = EngineBench(
            "Llama-3-70B fp8", fp8_model(LLAMA_70B, device), device, max_requests=most
        )
        report.rows.append(bench.decode(1, 2048, ceilings))
        report.rows.append(bench.decode(most, 2048, ceilings))

    def transformers() -> None:
        report.rows += transformers_rows(LLAMA_8B, device, report.weight_bytes, ceilings)

    return [attention, llama_8b, kernels, llama_70b, transformers]


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--check-only", action="store_true", help="time nothing")
    parser.add_argument("--interpret", action="store_true", help="without a GPU; implies no timing")
    default = os.environ.get("OUT")
    parser.add_argument("--out", type=Path, default=Path(default) if default else None)
    options = parser.parse_args(arguments)
    options.check_only |= options.interpret
    return options


def _surroundings(device: str) -> str:
    import torch
    import triton

    name = torch.cuda.get_device_name() if device == "cuda" else "Triton's interpreter"
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return f"{date}, {name}, torch {torch.__version__}, triton {triton.__version__}"


if __name__ == "__main__":
    sys.exit(main())
