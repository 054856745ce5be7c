"""`baton plan size`: finds the model's shape and the accelerator, computes and shows the size."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Console

from baton.core.errors import CheckpointError, InvalidConfig
from baton.engine.checkpoint.load import read_config
from baton.engine.models.config.description import architecture_of, read_json
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.models.registry import family_of
from baton.platform.cli.runs.simulate import FILE_WIDTH, read
from baton.platform.cli.terminal.output_files import check_writable
from baton.platform.config.deployment import DeploymentConfig, configure
from baton.platform.doctor.demand import served_dtype
from baton.platform.machine.accelerators import Accelerator, accelerator
from baton.platform.models.model_folder import find_model
from baton.platform.planner.capacity import Load, Promise
from baton.platform.size_plan.chart_values import chart_values_of
from baton.platform.size_plan.check import simulated
from baton.platform.size_plan.deployment import devices_of
from baton.platform.size_plan.named_shapes import NAMED_SHAPES
from baton.platform.size_plan.question import Question, load_of
from baton.platform.size_plan.report import show, show_simulated, tree, yaml_of
from baton.platform.size_plan.served_bits import stored_bits, why_not_served
from baton.platform.size_plan.size import Answer, size
from baton.platform.size_plan.this_cpu import PRECISIONS, this_core

SEED = 0
CHART_HEAD = (
    b"# Of `baton plan size`. What it cannot know is yours: image, model.claim, nodeSelector and"
    b" tolerations\n# of these devices, tls, keys.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    model: str
    changes: Mapping[str, Any]
    accelerator: str
    precision: str
    max_ranks: int
    price: float | None
    rate: float | None
    load: Load
    trace: Path | None
    promise: Promise
    is_apart: bool | None
    is_explained: bool
    num_simulated: int | None
    yaml_file: Path | None
    chart_file: Path | None
    device_file: Path | None
    is_json: bool


def run(job: Job) -> None:
    """Raises CheckpointError, or InvalidConfig that names the option."""
    configurations = {"--yaml": job.yaml_file, "--chart": job.chart_file}
    files = {**configurations, "--device-file": job.device_file}
    for option, file in _given(files).items():
        check_writable(file, option)
    _check_cached(job)
    question = _question(job)
    for option in _given(configurations):
        if why := why_not_served(question):
            raise InvalidConfig(f"{option}: {why}")
    answer = size(question)
    figures = None
    if job.num_simulated is not None:
        figures = simulated(answer.question, answer.chosen, job.num_simulated, SEED)
    _write_files(job, answer)
    if job.is_json:
        found = tree(answer) | {"simulated": figures}
        typer.echo(msgspec.json.encode(found).decode())
        return
    width = None if sys.stdout.isatty() else FILE_WIDTH
    console = Console(highlight=False, markup=False, width=width)
    show(console, answer, is_explained=job.is_explained)
    if figures is not None:
        show_simulated(console, answer, figures)


def _given(files: Mapping[str, Path | None]) -> dict[str, Path]:
    return {option: file for option, file in files.items() if file is not None}


def _write_files(job: Job, answer: Answer) -> None:
    if job.yaml_file is not None:
        job.yaml_file.write_text(yaml_of(answer) + "\n")
    if job.chart_file is not None:
        values = chart_values_of(answer.question, answer.chosen)
        job.chart_file.write_bytes(CHART_HEAD + msgspec.yaml.encode(values))
    if job.device_file is not None:
        devices = msgspec.json.encode(devices_of(answer.question, answer.chosen))
        job.device_file.write_bytes(msgspec.json.format(devices) + b"\n")


def _check_cached(job: Job) -> None:
    if not job.load.cached_tokens:
        return
    for value, option in ((job.trace, "--trace"), (job.num_simulated, "--simulate")):
        if value is not None:
            raise InvalidConfig(
                f"--cached: prompts of {option} have no shared prefix; give --input and --output, "
                "or play a trace with shared prefixes in `baton simulate`"
            )


def _question(job: Job) -> Question:
    config, model, bits = _model(job)
    device = "cpu" if job.accelerator == "cpu" else "cuda"
    dtype = served_dtype(config.dtype, model, device)
    chip = this_core(dtype) if job.accelerator == "cpu" else accelerator(job.accelerator)
    return Question(
        config=config,
        model=model,
        accelerator=chip,
        precision=_precision(job, chip, dtype),
        stored_bits=bits,
        load=job.load if job.trace is None else load_of(read(job.trace), job.rate),
        promise=job.promise,
        max_ranks=job.max_ranks,
        price=job.price,
        is_disaggregated=job.is_apart,
    )


def _model(job: Job) -> tuple[DeploymentConfig, ModelConfig, int | None]:
    """The model's configuration, known by name or read from its files, with the bits of its
    weights."""
    shape = NAMED_SHAPES.get(job.model)
    if shape is not None:
        config = configure(None, {**job.changes, "model": shape.model})
        model = family_of(architecture_of(shape.config)).parse_config(dict(shape.config))
        return config, model, stored_bits(shape.config)
    config = configure(None, {**job.changes, "model": job.model})
    try:
        folder = find_model(job.model, wants_weights=False)
    except CheckpointError as error:
        known = ", ".join(NAMED_SHAPES)
        raise CheckpointError(f"{error}; or one of the shapes known here: {known}") from None
    return config, read_config(folder), stored_bits(read_json(folder / "config.json"))


def _precision(job: Job, chip: Accelerator, dtype: str) -> str:
    precision = job.precision or PRECISIONS[dtype]
    if precision in chip.tflop_s:
        return precision
    known = ", ".join(chip.tflop_s)
    if job.precision:
        raise InvalidConfig(f"--precision {precision}: {chip.name} multiplies {known} alone")
    raise InvalidConfig(
        f"the weights are {dtype}, and {chip.name} multiplies {known} alone: give --dtype "
        "bfloat16, or another --accelerator, such as cpu"
    )
