"""Assigns ranks to the processes of a replica by how their GPUs are connected.

    every process    reports its machine and its GPU          chosen by Ray
    one per machine  reads the links of that machine's GPUs, if two ranks are there
    the lead         numbers them: platform/machine/seating.py

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
from baton.platform.machine.link_matrix import NodeLinks, Seat, link_matrix, parse_links, slowness
from baton.platform.machine.node import run_command
from baton.platform.machine.seating import links_by_axis, links_told, place

log = logging.getLogger(__name__)

FAR = "NODE"
SHOWN = 8
"""Digits shown of a long id."""


def own_seat(device: str) -> Seat:
    """The machine and GPU of this process. `device`: `cpu` or `cuda`."""
    node: str = ray.get_runtime_context().get_node_id()
    if device != "cuda":
        return Seat(node)
    import torch

    return Seat(node, str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))


def read_links() -> tuple[str, str]:
    """The input of `parse_links`; empty without a working nvidia-smi."""
    try:
        return run_command("nvidia-smi", "topo", "-m"), run_command("nvidia-smi", "-L")
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("how the GPUs here are joined cannot be read: %s", error)
        return "", ""


async def by_rank(mesh: Mesh, device: str, own: Seat, actors: Sequence[Any]) -> list[Any]:
    """`actors` in the order of the ranks 1.. that they are to be; rank 0 is the caller, at `own`.

    Each has the methods `seat` and `read_links`, which call the functions here. Raises Ray's error
    if one fails.
    """
    seats = [own, *await asyncio.gather(*(actor.seat.remote(device) for actor in actors))]
    matrix = link_matrix(seats, await _links_by_node(seats, actors))
    seating = place(mesh, matrix)
    links = links_by_axis(mesh, matrix, seating)
    level = logging.WARNING if is_far(links) else logging.INFO
    log.log(level, "%s", told(seats, links, seating))
    return [actors[seat - 1] for seat in seating[1:]]


def is_far(links: Mapping[Axis, Sequence[str]]) -> bool:
    """Whether ranks that communicate in every layer do so across host bridges, or over a
    network."""
    return any(slowness(link) >= slowness(FAR) for link in links.get(Axis.TENSOR, ()))


def told(seats: Sequence[Seat], links: Mapping[Axis, Sequence[str]], seating: Sequence[int]) -> str:
    """A line that tells the placement and its reason."""
    moved = "as Ray put them" if list(seating) == sorted(seating) else "by their links"
    places = ", ".join(f"{rank} {_name(seats[seat])}" for rank, seat in enumerate(seating))
    return f"ranks are placed {moved}: {links_told(links)}. Rank {places}"


def _name(seat: Seat) -> str:
    return f"on {seat.node[:SHOWN]}" + (f" GPU-{seat.gpu[:SHOWN]}" if seat.gpu else "")


async def _links_by_node(seats: Sequence[Seat], actors: Sequence[Any]) -> Mapping[str, NodeLinks]:
    """Links of the machines with several of the GPUs."""
    counts = Counter(node for node, gpu in {(seat.node, seat.gpu) for seat in seats} if gpu)
    asked = {seat.node: actor for seat, actor in zip(seats[1:], actors, strict=True)}
    nodes = [node for node in asked if counts[node] > 1]
    texts = await asyncio.gather(*(asked[node].read_links.remote() for node in nodes))
    found: dict[str, NodeLinks] = {}
    for node, (topology, listing) in zip(nodes, texts, strict=True):
        try:
            found[node] = parse_links(topology, listing)
        except TopologyUnreadable as error:
            log.warning("on %s `nvidia-smi topo -m` cannot be read: %s", node, error)
    return found
