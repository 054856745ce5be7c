"""Checks a machine against its replicas' needs: memory, files, cores, disks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from baton.core.wording import count_of
from baton.platform.doctor.finding import Finding, fail, ok, skipped, warn
from baton.platform.machine.memory import MemoryFacts
from baton.platform.machine.node import NodeFacts

GIB = 1 << 30
MIN_FILES = 4096
MIN_SHM = 1 * GIB
MAX_SKEW_S = 1.0
TIGHT = 0.9
"""Share of the free memory above which a demand is too tight."""
RUNNING_RESERVE = 0.05
"""Share of all memory that should be free while replicas run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The demand of all replicas on one machine."""

    weight_bytes: int
    least_weight_bytes: int
    """Bytes of the weights if all quantised ones stay quantised."""
    cache_bytes: int
    """KV in this machine's memory, on CPUs and in host tiers; it fills with use."""
    process_bytes: int
    """Memory of the processes without weights and KV."""
    num_threads: int
    num_replicas: int
    num_ranks: int
    """Processes that compute."""
    disk_bytes: dict[str, int]
    """Bytes of disk, by folder of a KV tier."""

    @property
    def start_bytes(self) -> int:
        """Bytes needed to start, as estimated."""
        return self.weight_bytes + self.process_bytes

    @property
    def least_bytes(self) -> int:
        """Bytes without which it certainly cannot start."""
        return self.least_weight_bytes + self.process_bytes

    @property
    def memory_bytes(self) -> int:
        """Weights and caches."""
        return self.weight_bytes + self.cache_bytes

    @property
    def full_bytes(self) -> int:
        """Bytes once all caches are full."""
        return self.memory_bytes + self.process_bytes


def check_node(facts: NodeFacts, demand: Demand | None) -> Iterator[Finding]:
    """`demand`: None where replicas already run with their resources."""
    yield check_memory(facts.memory, demand)
    yield check_shm(facts.shm_free)
    yield check_huge_pages(facts.has_huge_pages)
    yield check_files(facts.max_files)
    yield check_rdma(facts)
    yield check_cores(facts, demand)
    if len(facts.numa_cores) > 1:
        yield check_numa(facts.numa_cores, demand)
    if demand is not None:
        yield from (
            check_disk(folder, wanted, facts.disk_free.get(folder, -1))
            for folder, wanted in demand.disk_bytes.items()
        )


def check_memory(memory: MemoryFacts, demand: Demand | None) -> Finding:
    left = left_of(memory)
    if demand is None:
        if memory.left < RUNNING_RESERVE * memory.whole:
            remedy = "lower cache.memory_gib, or give the machine more memory"
            return warn("memory", left, remedy)
        return ok("memory", left)
    wanted = (
        f"{gib(demand.full_bytes)} wanted by {count_of(demand.num_replicas, 'replica')}, {left}"
    )
    remedy = "lower cache.memory_gib or the number of replicas, or raise the container's limit"
    if demand.full_bytes > memory.left:
        return fail("memory", wanted, remedy)
    if demand.full_bytes > TIGHT * memory.left:
        return warn("memory", wanted, remedy)
    return ok("memory", wanted)


def left_of(memory: MemoryFacts) -> str:
    left = f"{gib(memory.left)} of {gib(memory.whole)} left"
    return left if memory.limit is None else f"{left} in this control group"


def check_shm(free: int | None) -> Finding:
    if free is None:
        return warn("/dev/shm", "there is none", "mount a tmpfs: Ray and RDMA libraries use it")
    if free < MIN_SHM:
        remedy = "mount a larger one (docker: --shm-size=8g; Kubernetes: an emptyDir of Memory)"
        return warn("/dev/shm", f"{gib(free)} free", remedy)
    return ok("/dev/shm", f"{gib(free)} free")


def check_huge_pages(can_have: bool | None) -> Finding:
    """Never a reason not to serve."""
    if can_have is None:
        return skipped("huge pages", "the replica's version does not report it")
    if can_have:
        return ok("huge pages", "KV in use comes to lie on pages of 2 MB (cache.huge_pages)")
    return ok("huge pages", "none of shared memory: KV stays on small pages (Linux 6.1 has them)")


def check_files(max_files: int) -> Finding:
    seen = f"{max_files} open files allowed"
    if max_files < MIN_FILES:
        return warn("file limit", seen, f"ulimit -n 65536, or at least {MIN_FILES}")
    return ok("file limit", seen)


def check_rdma(facts: NodeFacts) -> Finding:
    """RDMA needs locked memory; without the right to lock it, RDMA does not start."""
    if not facts.rdma_devices:
        return ok("RDMA", "no devices: KV between machines goes over TCP")
    seen = ", ".join(facts.rdma_devices)
    if facts.max_locked is not None:
        remedy = "ulimit -l unlimited (a container: the capability IPC_LOCK)"
        return warn("RDMA", f"{seen}; {gib(facts.max_locked)} may be locked", remedy)
    return ok("RDMA", f"{seen}; any amount of memory may be locked")


def check_cores(facts: NodeFacts, demand: Demand | None) -> Finding:
    flags = ", ".join(facts.cpu_flags) or "no vector extensions known"
    kernels = f"; kernels for {facts.kernels}" if facts.kernels else ""
    seen = f"{count_of(facts.num_cores, 'core', form='g')} ({facts.architecture}: {flags}{kernels})"
    if facts.architecture == "x86_64" and "avx2" not in facts.cpu_flags:
        return warn("cores", seen, "use a CPU with AVX2, or a GPU: torch is many times slower here")
    if demand is not None and demand.num_threads > facts.num_cores:
        seen = f"{count_of(demand.num_threads, 'thread')} on {seen}"
        remedy = (
            "lower resources.num_threads or the number of replicas: threads wait for each other"
        )
        return warn("cores", seen, remedy)
    return ok("cores", seen)


def check_numa(numa_cores: Sequence[int], demand: Demand | None) -> Finding:
    """How a machine with several NUMA nodes is used. At most a warning."""
    seen = f"{count_of(len(numa_cores), 'node')} with {', '.join(map(str, numa_cores))} cores"
    if demand is not None and demand.num_ranks < len(numa_cores):
        return ok(
            "NUMA",
            f"{seen}: a rank computes on several, each with its part of the weights; with "
            f"{len(numa_cores)} replicas each would have all it reads on its own node",
        )
    return ok("NUMA", f"{seen}: ranks stay beside their memory (resources.numa)")


def check_disk(folder: str, wanted: int, free: int) -> Finding:
    name = f"disk {folder}"
    if free < 0:
        return fail(name, "it can be neither written nor made", "make it, or change tiers.disk")
    seen = f"{gib(wanted)} wanted, {gib(free)} free"
    if wanted > free:
        return fail(name, seen, "lower tiers.disk.gib, or choose a larger disk")
    return ok(name, seen)


def check_clock(skew_s: float, uncertainty_s: float) -> Finding:
    """The clock compared with this machine's. Leases do not depend on it; expiry of keys and
    certificates does."""
    seen = f"{skew_s:+.3f} s from ours, give or take {uncertainty_s:.3f} s"
    if abs(skew_s) - uncertainty_s > MAX_SKEW_S:
        remedy = "let both follow a time server (chrony, ntpd)"
        return warn("clock", seen, remedy)
    return ok("clock", seen)


def unexamined(reason: str) -> Finding:
    return skipped("node", reason, "see /debug/status of the gateway, and the replica's log")


def gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"
