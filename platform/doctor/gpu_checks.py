"""Checks a machine's GPUs and their links against the configuration. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from baton.platform.doctor.finding import Finding, fail, ok, skipped, warn
from baton.platform.machine.gpu_topology import (
    FAR,
    GpuTopology,
    TopologyUnreadable,
    distance,
    parse_topology,
)
from baton.platform.machine.node import GpuFacts, NodeFacts

MIN_DRIVER_BY_CUDA = {"11": (450, 80), "12": (525, 60), "13": (580, 65)}
"""The oldest Linux driver for a CUDA major version."""


def check_gpus(facts: NodeFacts, device: str) -> Iterator[Finding]:
    """`device` is the deployment's: `auto`, `cpu` or `cuda`."""
    if facts.gpus is None:
        yield _without_gpus(facts, device)
        return
    yield _check_driver(facts.gpus, facts.torch_cuda, device)
    yield from _check_topology(facts.gpus)


def _without_gpus(facts: NodeFacts, device: str) -> Finding:
    if facts.gpu_trouble:
        remedy = "mend the driver, or set device to cpu"
        return (warn if device == "cpu" else fail)("GPUs", facts.gpu_trouble, remedy)
    if device == "cuda":
        return fail("GPUs", "none, or no nvidia-smi", "set device to cpu or auto, or add a GPU")
    return ok("GPUs", "none: models run on the CPU")


def _check_driver(gpus: GpuFacts, cuda: str, device: str) -> Finding:
    seen = f"{_counted(gpus.names)}, driver {gpus.driver}, torch for CUDA {cuda or '-'}"
    if not cuda:
        if device == "cpu":
            return ok("GPUs", f"{seen}; not used")
        remedy = "install a torch that was built for CUDA"
        return (fail if device == "cuda" else warn)("GPUs", seen, remedy)
    wanted = MIN_DRIVER_BY_CUDA.get(cuda.partition(".")[0])
    if wanted is not None and _numbers(gpus.driver)[:2] < wanted:
        remedy = f"install driver {'.'.join(map(str, wanted))} or newer"
        return fail("GPUs", f"{seen}, which it does not run", remedy)
    if any(gpus.is_mig):
        remedy = "KV of MIG slices goes through the host; hand over between whole GPUs"
        return warn("GPUs", f"{seen}; {sum(gpus.is_mig)} in MIG mode", remedy)
    return ok("GPUs", seen)


def _check_topology(gpus: GpuFacts) -> Iterator[Finding]:
    try:
        topology = parse_topology(gpus.topology)
    except TopologyUnreadable as error:
        yield skipped("GPU links", f"`nvidia-smi topo -m` cannot be read: {error}")
        return
    yield _check_links(topology)
    if topology.nics:
        yield _check_nics(topology)


def _check_links(topology: GpuTopology) -> Finding:
    names = [gpu.name for gpu in topology.gpus]
    links = {(one, two): topology.link(one, two) for one, two in combinations(names, 2)}
    if not links:
        return ok("GPU links", "one GPU")
    kinds = ", ".join(sorted(set(links.values()), key=distance))
    far = [f"{one}-{two}" for (one, two), link in links.items() if distance(link) >= FAR]
    if far:
        shown = ", ".join(far[:4]) + (", ..." if len(far) > 4 else "")
        remedy = "let prefill and decode replicas that hand over share a switch, or NVLink"
        return warn("GPU links", f"{kinds}; bytes between {shown} cross host bridges", remedy)
    return ok("GPU links", kinds)


def _check_nics(topology: GpuTopology) -> Finding:
    nearest = {gpu.name: topology.nearest_nic(gpu.name) for gpu in topology.gpus}
    shown = [f"{gpu} {nic[0]} ({nic[1]})" for gpu, nic in nearest.items() if nic is not None]
    far = [gpu for gpu, nic in nearest.items() if nic is not None and distance(nic[1]) >= FAR]
    if far:
        remedy = "place replicas that hand over between machines on GPUs with a card nearby"
        return warn("network cards", f"none is near {', '.join(far)}; {', '.join(shown)}", remedy)
    return ok("network cards", ", ".join(shown))


def _counted(names: tuple[str, ...]) -> str:
    kinds = dict.fromkeys(names)
    return ", ".join(f"{names.count(kind)} x {kind}" for kind in kinds)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
