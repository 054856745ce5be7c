"""Places the ranks of a layout on the GPUs of a machine whose links are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baton.engine.mesh.mesh import Axis
from baton.platform.layout_plan.layout import LayoutPlan
from baton.platform.machine.gpu_topology import GpuTopology
from baton.platform.machine.rank_placement import links_by_axis, place


@dataclass(frozen=True, slots=True)
class DevicePlacement:
    gpus: Sequence[str]
    """GPU of each rank."""
    links: Mapping[Axis, Sequence[str]]


def device_placement(layout: LayoutPlan, topology: GpuTopology | None) -> DevicePlacement | None:
    """The placement on the first GPUs, which Ray gives on an idle machine. None if there are too
    few, or nothing to place."""
    size = layout.mesh.size
    if topology is None or not 1 < size <= len(topology.gpus):
        return None
    names = [gpu.name for gpu in topology.gpus[:size]]
    links = [[topology.link(one, other) for other in names] for one in names]
    placement = place(layout.mesh, links)
    return DevicePlacement(
        [names[device] for device in placement], links_by_axis(layout.mesh, links, placement)
    )
