"""Each check of a machine: what is well, what is tight, what will not work, and what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.platform.nodes import NODE, node, told

from baton.platform.doctor.finding import (
    Finding,
    Status,
    fail,
    is_healthy,
    ok,
    skipped,
    verdict,
    warn,
)
from baton.platform.doctor.node_checks import (
    GIB,
    Demand,
    check_clock,
    check_cores,
    check_disk,
    check_files,
    check_memory,
    check_node,
    check_numa,
    check_rdma,
    check_shm,
)
from baton.platform.machine.memory import MemoryFacts

DEMAND = Demand(
    weight_bytes=10 * GIB,
    least_weight_bytes=10 * GIB,
    cache_bytes=0,
    process_bytes=0,
    num_threads=4,
    num_replicas=2,
    num_ranks=2,
    disk_bytes={},
)


def demand(gib: float) -> Demand:
    return replace(DEMAND, weight_bytes=int(gib * GIB))


def test_a_healthy_machine_has_nothing_to_mend() -> None:
    findings = list(check_node(NODE, DEMAND))

    assert {finding.status for finding in findings} == {Status.OK}
    assert is_healthy(findings)


@pytest.mark.parametrize(
    ("wanted_gib", "status"), [(40, "ok"), (44, "warn"), (48, "warn"), (49, "fail")]
)
def test_memory_is_compared_with_what_is_left(wanted_gib: float, status: str) -> None:
    finding = check_memory(NODE.memory, demand(wanted_gib))

    assert finding.status == status
    assert "48.0 GiB of 64.0 GiB left" in finding.seen


def test_a_containers_limit_counts_more_than_the_machine() -> None:
    memory = MemoryFacts(total=64 * GIB, available=48 * GIB, limit=16 * GIB, used_of_limit=8 * GIB)

    finding = check_memory(memory, demand(10))

    assert told(finding) == (
        "fail",
        "10.0 GiB wanted by 2 replicas, 8.0 GiB of 16.0 GiB left in this control group",
    )
    assert "container's limit" in finding.remedy


def test_where_replicas_run_already_only_an_exhausted_machine_is_a_worry() -> None:
    nearly_full = MemoryFacts(total=64 * GIB, available=2 * GIB)

    assert check_memory(NODE.memory, None).status is Status.OK
    assert check_memory(nearly_full, None).status is Status.WARN


@pytest.mark.parametrize(("free", "status"), [(None, "warn"), (64 << 20, "warn"), (GIB, "ok")])
def test_shared_memory_of_a_plain_container_is_small(free: int | None, status: str) -> None:
    assert check_shm(free).status == status


def test_few_open_files_are_too_few() -> None:
    assert check_files(1024).status is Status.WARN
    assert "ulimit -n" in check_files(1024).remedy
    assert check_files(65536).status is Status.OK


def test_rdma_wants_memory_that_may_be_locked() -> None:
    cards = ("mlx5_0",)

    assert check_rdma(node(rdma_devices=())).status is Status.OK
    assert check_rdma(node(rdma_devices=cards, max_locked=None)).status is Status.OK
    limited = check_rdma(node(rdma_devices=cards, max_locked=8 << 20))
    assert limited.status is Status.WARN
    assert "ulimit -l unlimited" in limited.remedy


def test_more_threads_than_cores_are_warned_about() -> None:
    crowded = check_cores(node(num_cores=2.0), DEMAND)

    assert crowded.status is Status.WARN
    assert "4 threads on 2 cores" in crowded.seen
    assert check_cores(node(num_cores=4.0), DEMAND).status is Status.OK


def test_an_old_processor_is_warned_about_and_an_arm_one_is_not() -> None:
    assert check_cores(node(cpu_flags=("fma",)), None).status is Status.WARN
    arm = node(architecture="aarch64", cpu_flags=("asimd", "bf16"), kernels="armv8.2-a-bf16")
    assert check_cores(arm, None).status is Status.OK
    assert "kernels for armv8.2-a-bf16" in check_cores(arm, None).seen


@pytest.mark.parametrize(
    ("free_gib", "status"), [(-1 / GIB, "fail"), (15, "fail"), (16, "ok"), (200, "ok")]
)
def test_a_tiers_disk_must_have_the_room(free_gib: float, status: str) -> None:
    assert check_disk("/var/kv", 16 * GIB, int(free_gib * GIB)).status == status


def test_a_disk_that_nobody_looked_at_fails_with_its_folder() -> None:
    wanting = replace(DEMAND, disk_bytes={"/var/kv": GIB})

    found = [f for f in check_node(NODE, wanting) if f.name == "disk /var/kv"]

    assert [f.status for f in found] == [Status.FAIL]


@pytest.mark.parametrize(
    ("skew_s", "uncertainty_s", "status"),
    [(0.2, 0.01, "ok"), (-1.5, 0.1, "warn"), (1.5, 0.1, "warn"), (1.5, 0.9, "ok")],
)
def test_a_clock_is_wrong_only_beyond_what_the_measurement_leaves_open(
    skew_s: float, uncertainty_s: float, status: str
) -> None:
    assert check_clock(skew_s, uncertainty_s).status == status


def test_the_verdict_says_the_worst() -> None:
    good, tight, bad = ok("a", ""), warn("b", "", "r"), fail("c", "", "r")

    def said(*findings: Finding) -> str:
        return verdict(findings)

    assert said(good) == "all of 1 checks passed"
    assert said(good, tight) == "it will work, with 1 warning in 2 checks"
    assert said(good, tight, bad) == "it will not work: 1 of 3 checks failed"
    assert said(good, skipped("d", "")) == "all of 1 checks passed (1 skipped)"
    assert is_healthy([good, tight])
    assert not is_healthy([bad])


def test_a_machine_with_several_numa_nodes_is_told_who_computes_on_which() -> None:
    named = [finding.seen for finding in check_node(node(numa_cores=(32, 32)), DEMAND)]

    assert "2 nodes with 32, 32 cores: ranks stay beside their memory (resources.numa)" in named
    assert "with 2 replicas" in check_numa((32, 32), replace(DEMAND, num_ranks=1)).seen
    assert not any(finding.name == "NUMA" for finding in check_node(node(numa_cores=(8,)), None))
