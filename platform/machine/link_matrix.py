"""Links between the processes that will be ranks, pair by pair.

    X      the same device: two slices of it, or two shares
    NV#    so many NVLinks
    HOST   the memory of one machine: ranks that compute on its CPUs
    PIX PXB PHB NODE SYS      PCIe, with increasing distance: platform/machine/gpu_topology.py
    NET    a network: other machines
    ?      GPUs of one machine of which nothing could be read

GPUs are identified by their UUID, which does not depend on CUDA's or Ray's numbering.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baton.platform.machine.gpu_topology import NVLINK, GpuTopology, parse_topology

SAME, HOST, NETWORK, UNKNOWN = "X", "HOST", "NET", "?"
NVLINK_GBPS = 25.0
"""The rate of one NVLink, one way, in GB/s."""
GBPS = {
    SAME: 1000.0, HOST: 50.0, "PIX": 24.0, "PSB": 24.0, "PXB": 22.0, "PHB": 18.0, "NODE": 14.0,
    "SOC": 10.0, "SYS": 10.0, UNKNOWN: 10.0, NETWORK: 5.0,
}  # fmt: skip
"""Nominal GB/s, only for comparisons."""
GPU_ID = re.compile(r"\(UUID: (?:GPU|MIG)-([0-9a-fA-F-]+)")


@dataclass(frozen=True, slots=True)
class DeviceLocation:
    """The machine and GPU of a process that will be a rank."""

    node: str
    """A unique name of the machine."""
    gpu: str = ""
    """GPU's id, without its prefix in listings; empty: the replica computes on CPUs."""


@dataclass(frozen=True, slots=True)
class NodeLinks:
    """The GPUs of one machine."""

    topology: GpuTopology
    name_by_id: Mapping[str, str]
    """`GPU3` by the id of the GPU or of a slice of it."""


def parse_links(topology: str, listing: str) -> NodeLinks:
    """Parse `nvidia-smi topo -m` and `nvidia-smi -L`. Raises TopologyUnreadable, saying at what."""
    name_by_id: dict[str, str] = {}
    name = ""
    for line in listing.splitlines():
        if line.startswith("GPU "):  # slices follow theirs, indented
            name = f"GPU{line.removeprefix('GPU ').partition(':')[0]}"
        if (found := GPU_ID.search(line)) and name:
            name_by_id[found[1]] = name
    return NodeLinks(parse_topology(topology), name_by_id)


def link_matrix(
    locations: Sequence[DeviceLocation], links_by_node: Mapping[str, NodeLinks]
) -> list[list[str]]:
    """The link of each pair, in the order of `locations`."""
    return [[_link(one, other, links_by_node) for other in locations] for one in locations]


def slowness(link: str) -> float:
    """Seconds a GB, nominally."""
    nvlinks = NVLINK.fullmatch(link)
    return 1 / (NVLINK_GBPS * int(nvlinks[1]) if nvlinks else GBPS[link])


def _link(
    one: DeviceLocation, other: DeviceLocation, links_by_node: Mapping[str, NodeLinks]
) -> str:
    if one.node != other.node:
        return NETWORK
    if not one.gpu or not other.gpu:
        return HOST
    if one.gpu == other.gpu:
        return SAME
    links = links_by_node.get(one.node)
    if links is None:
        return UNKNOWN
    names = [links.name_by_id.get(location.gpu) for location in (one, other)]
    return links.topology.link_by_pair.get((names[0] or "", names[1] or ""), UNKNOWN)
