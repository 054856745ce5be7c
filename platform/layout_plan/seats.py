"""Where the ranks of a layout would sit on a machine whose links are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baton.engine.mesh.mesh import Axis
from baton.platform.layout_plan.layout import LayoutPlan
from baton.platform.machine.gpu_topology import GpuTopology
from baton.platform.machine.seating import links_by_axis, place


@dataclass(frozen=True, slots=True)
class Seats:
    gpus: Sequence[str]
    """GPU of each rank."""
    links: Mapping[Axis, Sequence[str]]


def seats_of(layout: LayoutPlan, topology: GpuTopology | None) -> Seats | None:
    """Seats on the first GPUs, as Ray gives them on an idle machine. None where there are too few,
    or nothing to place."""
    size = layout.mesh.size
    if topology is None or not 1 < size <= len(topology.gpus):
        return None
    names = [gpu.name for gpu in topology.gpus[:size]]
    links = [[topology.link(one, other) for other in names] for one in names]
    seating = place(layout.mesh, links)
    return Seats([names[seat] for seat in seating], links_by_axis(layout.mesh, links, seating))
