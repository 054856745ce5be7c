"""Assigns ranks to the processes of a replica by how their GPUs are connected.

    every process    reports its machine and its GPU          chosen by Ray
    one per machine  reads the links of that machine's GPUs, if two ranks are there
    the lead         numbers them: platform/machine/rank_placement.py

If the links cannot be read, ranks keep Ray's order.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from baton.engine.mesh.mesh import Axis, Mesh
from baton.platform.machine.gpu_topology import TopologyUnreadable
from baton.platform.machine.link_matrix import (
    DeviceLocation,
    NodeLinks,
    link_matrix,
    parse_links,
    slowness,
)
from baton.platform.machine.node import run_command
from baton.platform.machine.rank_placement import links_by_axis, links_told, place

log = logging.getLogger(__name__)

FAR = "NODE"
SHOWN = 8
"""Digits shown of a long id."""


def own_location(device: str) -> DeviceLocation:
    """The machine and GPU of this process. `device`: `cpu` or `cuda`."""
    node: str = ray.get_runtime_context().get_node_id()
    if device != "cuda":
        return DeviceLocation(node)
    import torch

    return DeviceLocation(
        node, str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    )


def read_links() -> tuple[str, str]:
    """The input of `parse_links`; empty without a working nvidia-smi."""
    try:
        return run_command("nvidia-smi", "topo", "-m"), run_command("nvidia-smi", "-L")
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("how the GPUs here are joined cannot be read: %s", error)
        return "", ""


async def by_rank(mesh: Mesh, device: str, own: DeviceLocation, actors: Sequence[Any]) -> list[Any]:
    """`actors` in the order of the ranks 1.. that they are to be; rank 0 is the caller, at `own`.

    Each has the methods `location` and `read_links`, which call the functions here. Raises Ray's
    error if one fails.
    """
    locations = [own, *await asyncio.gather(*(actor.location.remote(device) for actor in actors))]
    matrix = link_matrix(locations, await _links_by_node(locations, actors))
    placement = place(mesh, matrix)
    links = links_by_axis(mesh, matrix, placement)
    level = logging.WARNING if is_far(links) else logging.INFO
    log.log(level, "%s", told(locations, links, placement))
    return [actors[process - 1] for process in placement[1:]]


def is_far(links: Mapping[Axis, Sequence[str]]) -> bool:
    """Whether ranks that communicate in every layer do so across host bridges, or over a
    network."""
    return any(slowness(link) >= slowness(FAR) for link in links.get(Axis.TENSOR, ()))


def told(
    locations: Sequence[DeviceLocation],
    links: Mapping[Axis, Sequence[str]],
    placement: Sequence[int],
) -> str:
    """A line with the placement and its reason."""
    moved = "as Ray put them" if list(placement) == sorted(placement) else "by their links"
    places = ", ".join(
        f"{rank} {_name(locations[process])}" for rank, process in enumerate(placement)
    )
    return f"ranks are placed {moved}: {links_told(links)}. Rank {places}"


def _name(location: DeviceLocation) -> str:
    return f"on {location.node[:SHOWN]}" + (f" GPU-{location.gpu[:SHOWN]}" if location.gpu else "")


async def _links_by_node(
    locations: Sequence[DeviceLocation], actors: Sequence[Any]
) -> Mapping[str, NodeLinks]:
    """Links of the machines with several of the GPUs."""
    counts = Counter(
        node for node, gpu in {(location.node, location.gpu) for location in locations} if gpu
    )
    asked = {location.node: actor for location, actor in zip(locations[1:], actors, strict=True)}
    nodes = [node for node in asked if counts[node] > 1]
    texts = await asyncio.gather(*(asked[node].read_links.remote() for node in nodes))
    found: dict[str, NodeLinks] = {}
    for node, (topology, listing) in zip(nodes, texts, strict=True):
        try:
            found[node] = parse_links(topology, listing)
        except TopologyUnreadable as error:
            log.warning("on %s `nvidia-smi topo -m` cannot be read: %s", node, error)
    return found
