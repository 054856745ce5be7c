"""What is read off a machine, from files as a kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.platform.nodes import NODE, gpus, node
from tests.platform.topologies import EIGHT_H100_WITH_CARDS

from baton.platform.machine.node import NodeFacts, parse_gpus, read_node

MEMINFO = "MemTotal:       65536000 kB\nMemFree: 1 kB\nMemAvailable:   32768000 kB\n"
CPUINFO = "processor : 0\nflags\t\t: fpu sse2 avx2 fma f16c avx512f\n"


def machine(root: Path, **files: str) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, "proc/cpuinfo": CPUINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_quota_counts_as_cores_and_flags_are_those_that_matter(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/cpu.max": "50000 100000\n"}

    facts = read_node(root=machine(tmp_path, **files))

    assert facts.num_cores == 0.5
    assert facts.cpu_flags == ("avx2", "fma", "f16c", "avx512f")


def test_the_kernels_that_an_arm_machine_gets_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    features = "Features\t: fp asimd crc32 atomics asimdrdm asimddp sve\n"

    facts = read_node(root=machine(tmp_path, **{"proc/cpuinfo": features}))

    assert facts.kernels == "armv8.2-a"
    assert facts.cpu_flags == ("asimd", "asimddp")


def test_rdma_devices_are_named(tmp_path: Path) -> None:
    files = {"sys/class/infiniband/mlx5_1/node_type": "", "sys/class/infiniband/mlx5_0/x": ""}

    assert read_node(root=machine(tmp_path, **files)).rdma_devices == ("mlx5_0", "mlx5_1")


def test_the_room_of_a_folder_that_is_not_there_yet_is_its_parents(tmp_path: Path) -> None:
    there, not_yet = str(tmp_path), str(tmp_path / "kv" / "cache")

    (tmp_path / "file").touch()
    never = str(tmp_path / "file" / "kv")

    facts = read_node((there, not_yet, never))

    assert facts.disk_free[not_yet] == pytest.approx(facts.disk_free[there], rel=0.01)
    assert facts.disk_free[never] == -1


def test_this_very_machine_can_be_read() -> None:
    facts = read_node()

    assert facts.memory.left > 0
    assert facts.num_cores > 0
    assert facts.versions["torch"]


def test_facts_survive_the_way_to_the_doctor() -> None:
    facts = node(gpus=gpus(EIGHT_H100_WITH_CARDS))

    assert NodeFacts.from_json(facts.to_json()) == facts
    assert NodeFacts.from_json(NODE.to_json()) == NODE


def test_gpus_are_listed_with_driver_and_mig_mode() -> None:
    listing = (
        "NVIDIA A100-SXM4-40GB, 550.54.15, Enabled\nNVIDIA A100-SXM4-40GB, 550.54.15, Disabled\n"
    )

    facts, trouble = parse_gpus(listing, "")

    assert facts is not None
    assert not trouble
    assert facts.driver == "550.54.15"
    assert facts.is_mig == (True, False)


def test_gpus_without_mig_at_all() -> None:
    facts, _ = parse_gpus("NVIDIA GeForce RTX 3090, 535.104.05, [N/A]\n", "")

    assert facts is not None
    assert facts.is_mig == (False,)


def test_a_driver_that_fails_is_no_gpu_but_a_trouble() -> None:
    facts, trouble = parse_gpus("No devices were found\n", "")

    assert facts is None
    assert "No devices were found" in trouble
