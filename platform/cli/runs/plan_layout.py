"""`baton plan layout`: plans each layout and shows them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import typer
from rich.console import Console

from baton.core.errors import InvalidConfig
from baton.engine.assemble import find_device
from baton.engine.checkpoint.load import read_config
from baton.engine.checkpoint.quantized.methods import parse_layout
from baton.engine.models.config.description import read_json
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.doctor.demand import draft_memory, served_dtype
from baton.platform.layout_plan.layout import LayoutPlan, Refused, Traffic, meshes, plan
from baton.platform.layout_plan.report import Plan, show, tree
from baton.platform.machine.gpu_topology import (
    GpuTopology,
    TopologyUnreadable,
    parse_topology,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    is_given: bool
    """Plan only the configuration's layout; else all."""
    num_ranks: int
    traffic: Traffic
    device_gib: float | None = None
    link_gbps: float | None = None
    topology: str | None = None
    is_json: bool = False


def run(config: DeploymentConfig, folder: Path, job: Job) -> None:
    """Raises CheckpointError, or InvalidConfig, also if the configured layout is not possible."""
    topology, method = _topology(job.topology), config.decode.speculation.method
    model, device = read_config(folder), find_device(config.device)
    wanted = [config.prefill.parallel.mesh]
    if not job.is_given:
        has_experts = any(layer.moe is not None for layer in model.layers)
        wanted = [mesh for mesh in meshes(job.num_ranks) if has_experts or mesh.expert == 1]
    found = [plan(config, model, mesh, job.traffic, job.device_gib) for mesh in wanted]
    if job.is_given and isinstance(found[0], Refused):
        raise InvalidConfig(f"{found[0].name}: {found[0].reason}")
    result = Plan(
        model=config.model_name,
        dtype=served_dtype(config.dtype, model, device),
        traffic=job.traffic,
        link_gbps=job.link_gbps,
        is_quantised=parse_layout(read_json(folder / "config.json")) is not None,
        topology=topology,
        draft=draft_memory(config, model, device),
        drafter="the draft model" if method == "draft" else f"the heads of {method}",
        layouts=[each for each in found if isinstance(each, LayoutPlan)],
        refused=[each for each in found if isinstance(each, Refused)],
    )
    if job.is_json:
        typer.echo(msgspec.json.encode(tree(result)).decode())
        return
    show(Console(highlight=False, markup=False), result)


def _topology(text: str | None) -> GpuTopology | None:
    if text is None:
        return None
    try:
        return parse_topology(text)
    except TopologyUnreadable as error:
        raise InvalidConfig(
            f"--topology is not what `nvidia-smi topo -m` prints: {error}"
        ) from None
