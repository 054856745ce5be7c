"""Links between the GPUs and network cards of a machine, parsed from `nvidia-smi topo -m`.

            GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
    GPU0     X      NV18    PIX     0-23,96-119     0               N/A
    GPU1    NV18     X      SYS     24-47           1               N/A
    NIC0    PIX     SYS      X

    NIC Legend:
      NIC0: mlx5_0

Older drivers name cards directly (mlx5_0) and know fewer of the last columns; a terminal gets the
header underlined; containers may leave affinities empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

GPU = re.compile(r"GPU\d+")
NVLINK = re.compile(r"NV(\d+)")
NIC_NAME = re.compile(r"\s*(NIC\d+):\s*(\S+)\s*$")
ANSI = re.compile(r"\x1b\[[0-9;]*m")
CPUS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")

DISTANCE = {"X": 0, "PIX": 2, "PSB": 2, "PXB": 3, "PHB": 4, "NODE": 5, "SOC": 6, "SYS": 6}
"""Smaller is nearer; NVLink, which is no path over PCIe, is 1."""
FAR = 5
"""Least slowness at which bytes cross more than one host bridge."""


class TopologyUnreadable(ValueError):
    """The text is no topology matrix."""


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    """GPU0, or a card as the system calls it."""
    cpus: str = ""
    """The CPUs near it, as `0-23,96-119`; empty if not said."""


@dataclass(frozen=True, slots=True)
class GpuTopology:
    gpus: tuple[Device, ...]
    nics: tuple[Device, ...]
    link_by_pair: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """`NV18`, `PIX`, `SYS`, ... by the names of two devices, in both orders."""

    def link(self, one: str, other: str) -> str:
        return self.link_by_pair[one, other]

    def nearest_nic(self, gpu: str) -> tuple[str, str] | None:
        """A card with the shortest path to `gpu`, and that path; None without cards."""
        links = [(self.link(gpu, nic.name), nic.name) for nic in self.nics]
        if not links:
            return None
        link, name = min(links, key=lambda pair: distance(pair[0]))
        return name, link


def distance(link: str) -> int:
    return 1 if NVLINK.fullmatch(link) else DISTANCE[link]


def parse_topology(text: str) -> GpuTopology:
    """Raises TopologyUnreadable, saying at what."""
    lines = [ANSI.sub("", line) for line in text.splitlines()]
    matches = [match for line in lines if (match := NIC_NAME.match(line))]
    nic_names = {match[1]: match[2] for match in matches}
    start, labels = _header(lines)
    rows = _rows(lines[start + 1 :], labels)
    missing = [label for label in labels if label not in rows]
    if missing:
        raise TopologyUnreadable(f"no row for {', '.join(missing)}")
    names = {label: nic_names.get(label, label) for label in labels}
    devices = {label: _device(names[label], rows[label][len(labels) :]) for label in labels}
    return GpuTopology(
        gpus=tuple(devices[label] for label in labels if GPU.fullmatch(label)),
        nics=tuple(devices[label] for label in labels if not GPU.fullmatch(label)),
        link_by_pair={
            (names[row], names[column]): rows[row][index]
            for row in labels
            for index, column in enumerate(labels)
        },
    )


def _header(lines: Sequence[str]) -> tuple[int, list[str]]:
    """The header line's index, and its devices: the columns before those about CPUs."""
    for number, line in enumerate(lines):
        words = line.split()
        if words and GPU.fullmatch(words[0]) and (len(words) == 1 or words[1] != "X"):
            ends = [words.index(word) for word in ("CPU", "NUMA", "GPU") if word in words]
            return number, words[: min(ends, default=len(words))]
    raise TopologyUnreadable("no header with GPU0 in it; is there a GPU?")


def _rows(lines: Sequence[str], labels: Sequence[str]) -> dict[str, list[str]]:
    """Table rows by device: its links in the order of `labels`, then its CPU affinity."""
    rows: dict[str, list[str]] = {}
    for line in lines:
        words = line.split()
        if not words or words[0] not in labels:
            continue
        links = words[1 : len(labels) + 1]
        unknown = [link for link in links if link not in DISTANCE and not NVLINK.fullmatch(link)]
        if unknown or len(links) < len(labels):
            what = f"{unknown[0]!r} is no link" if unknown else "it is too short"
            raise TopologyUnreadable(f"row {words[0]}: {what}")
        rows[words[0]] = words[1:]
    return rows


def _device(name: str, affinity: Sequence[str]) -> Device:
    """`affinity` is CPUs, NUMA node and the GPU's own node, of which any may be missing."""
    return Device(name, affinity[0] if affinity and CPUS.fullmatch(affinity[0]) else "")
