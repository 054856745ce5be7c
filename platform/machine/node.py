"""Facts about one machine, read by `read_node`.

Replicas send them to the doctor as JSON, so that the serving machine is judged.
"""

from __future__ import annotations

import os
import platform
import resource
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from baton.core.control_groups import text_of
from baton.core.cores import usable_cores
from baton.kernels.cpu.build import kinds_of
from baton.kernels.cpu.shared_mapping import can_collapse
from baton.platform.machine.memory import MemoryFacts, read_memory
from baton.platform.machine.numa_nodes import numa_nodes

PACKAGES = (
    "baton-llm", "torch", "ray", "grpcio", "protobuf", "msgspec", "safetensors", "tokenizers",
    "xxhash", "cryptography", "nixl",
)  # fmt: skip
CPU_FLAGS = (
    "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "amx_bf16",
    "asimd", "asimddp", "bf16", "i8mm",
)  # fmt: skip
"""The flags that make a difference to kernels, on either architecture."""
COMMAND_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    names: tuple[str, ...]
    driver: str
    is_mig: tuple[bool, ...] = ()
    """Whether each GPU is cut into MIG slices."""
    topology: str = ""
    """`nvidia-smi topo -m`, as printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    host: str
    architecture: str
    versions: dict[str, str]
    """The versions of Python and of packages; those that are not installed are missing."""
    torch_cuda: str = ""
    """The CUDA version torch was built for; empty: none."""
    num_cores: float
    """The cores that this process may use."""
    numa_cores: tuple[int, ...] = ()
    """Physical cores of each NUMA node among them. Empty: unknown."""
    cpu_flags: tuple[str, ...] = ()
    kernels: str = ""
    """The best kind of CPU that compiled kernels are made for and this one is of; empty: none."""
    memory: MemoryFacts
    shm_free: int | None = None
    """Free bytes in /dev/shm; None if there is none."""
    has_huge_pages: bool | None = None
    """Whether shared memory can be moved onto pages of 2 MB. None: unknown."""
    max_files: int
    """The most files that one process may have open."""
    max_locked: int | None = None
    """Bytes that may be locked into memory, as RDMA wants; None: no limit."""
    rdma_devices: tuple[str, ...] = ()
    gpus: GpuFacts | None = None
    gpu_trouble: str = ""
    """Why an installed driver does not answer."""
    disk_free: dict[str, int] = field(default_factory=dict)
    """The bytes free in the folders asked about; -1: one can be neither used nor made."""

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes) -> NodeFacts:
        """Raises msgspec.DecodeError for an incompatible version."""
        return msgspec.json.decode(data, type=cls)


def read_node(folders: Iterable[str] = (), root: Path = Path("/")) -> NodeFacts:
    """Blocking, up to some seconds where a GPU's driver is slow. `root` holds /proc and /sys."""
    gpus, gpu_trouble = _read_gpus()
    flags = _cpu_flags(root)
    return NodeFacts(
        host=socket.gethostname(),
        architecture=platform.machine(),
        versions=_versions(),
        torch_cuda=_torch_cuda(),
        num_cores=usable_cores(root),
        numa_cores=tuple(len(node.cores) for node in numa_nodes(root)),
        cpu_flags=tuple(flag for flag in CPU_FLAGS if flag in flags),
        kernels=next(iter(kinds_of(platform.machine(), flags)), ""),
        memory=read_memory(root),
        shm_free=_free(root / "dev/shm"),
        has_huge_pages=can_collapse(),
        max_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        max_locked=_unless_infinite(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        rdma_devices=_names(root / "sys/class/infiniband"),
        gpus=gpus,
        gpu_trouble=gpu_trouble,
        disk_free={folder: free_for(Path(folder)) for folder in folders},
    )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _torch_cuda() -> str:
    """torch's CUDA version; torch is not imported for it, since that takes seconds."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return str(torch.version.cuda or "")
    _, _, local = _versions().get("torch", "").partition("+")
    digits = local.removeprefix("cu")
    return f"{digits[:-1]}.{digits[-1]}" if local.startswith("cu") and digits.isdigit() else ""


def _cpu_flags(root: Path) -> set[str]:
    for line in text_of(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


def _read_gpus() -> tuple[GpuFacts | None, str]:
    query = "--query-gpu=name,driver_version,mig.mode.current"
    try:
        listing = run_command("nvidia-smi", query, "--format=csv,noheader")
        topology = run_command("nvidia-smi", "topo", "-m")
    except FileNotFoundError:
        return None, ""
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"nvidia-smi: {error}"
    return parse_gpus(listing, topology)


def parse_gpus(listing: str, topology: str) -> tuple[GpuFacts | None, str]:
    rows = [[cell.strip() for cell in line.split(",")] for line in listing.splitlines() if line]
    if not rows or any(len(row) != 3 for row in rows):
        return None, f"nvidia-smi: {listing.strip()[:200] or 'it lists no GPU'}"
    names, drivers, migs = zip(*rows, strict=True)
    is_mig = tuple(mig == "Enabled" for mig in migs)
    return GpuFacts(names=names, driver=drivers[0], is_mig=is_mig, topology=topology), ""


def run_command(*command: str) -> str:
    """The command's output. Raises OSError or SubprocessError."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True
    )
    return done.stdout


def free_for(folder: Path) -> int:
    """Bytes free where `folder` is, or would be made; -1: it can be neither used nor made."""
    place = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if place is None or not place.is_dir() or not os.access(place, os.W_OK):
        return -1
    free = _free(place)
    return -1 if free is None else free


def _free(folder: Path) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _unless_infinite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def _names(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(path.name for path in folder.iterdir()))
    except OSError:
        return ()
