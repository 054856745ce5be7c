"""Who gives way to the gateway shares all cores; who does not leaves one."""

from __future__ import annotations

import pytest
import torch

from baton.kernels.cpu import operators
from baton.kernels.cpu.library import find_compiler
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.config.pools import ResourcesConfig
from baton.platform.machine import core_share, rank_cores
from baton.platform.machine.core_share import (
    limit_threads,
    num_left_to_gateway,
    share_of_cores,
)
from baton.platform.machine.numa_binding import NumaBinding
from baton.platform.machine.numa_nodes import NumaNode
from baton.platform.machine.rank_cores import RankCores

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no compiler here")


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_share, "usable_cores", lambda: 8.0)


def replicas(prefill: int, decode: int) -> DeploymentConfig:
    changes = {"prefill.replicas": prefill, "decode.replicas": decode}
    return override(DeploymentConfig(), changes)


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("num_replicas", "num_left", "share"),
    [((0, 1), 0, 8), ((0, 1), 1, 7), ((1, 1), 0, 4), ((1, 1), 1, 3), ((4, 8), 1, 1)],
)
def test_replicas_share_the_cores_that_are_not_left(
    num_replicas: tuple[int, int], num_left: int, share: int
) -> None:
    assert share_of_cores(replicas(*num_replicas), num_left=num_left) == share


@pytest.mark.parametrize(("quota", "share"), [(2.5, 2), (0.5, 1)])
def test_a_replica_in_a_container_has_the_threads_of_its_quota_not_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, quota: float, share: int
) -> None:
    monkeypatch.setattr(core_share, "usable_cores", lambda: quota)

    assert share_of_cores(replicas(0, 1)) == share


def test_a_command_without_replicas_keeps_torch_to_the_quota(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        monkeypatch.setattr(core_share, "usable_cores", lambda: 2.0)
        limit_threads()
        assert torch.get_num_threads() == 2

        monkeypatch.setattr(core_share, "usable_cores", lambda: 8.0)
        limit_threads()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@needs_compiler
@pytest.mark.parametrize(("dtype", "num_left"), [("float32", 0), ("bfloat16", 0), ("float16", 1)])
def test_a_replica_leaves_a_core_where_nothing_is_compiled_for_its_dtype(
    dtype: str, num_left: int
) -> None:
    assert num_left_to_gateway("cpu", dtype) == num_left


def test_a_replica_leaves_a_core_where_there_are_no_operators_and_none_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operators, "library", lambda: None)

    assert num_left_to_gateway("cpu", "float32") == 1
    assert num_left_to_gateway("cuda", "float16") == 0


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("resources", "is_on_cpu", "threads", "with_one_left"),
    [
        (ResourcesConfig(), True, 3, 2),  # of its binding
        (ResourcesConfig(num_threads=5), True, 5, 5),
        (ResourcesConfig(numa="off"), True, 8, 7),  # of the machine
        (ResourcesConfig(), False, 8, 7),
    ],
)
def test_a_rank_with_a_seat_has_the_cores_of_its_numa_node(
    monkeypatch: pytest.MonkeyPatch,
    resources: ResourcesConfig,
    is_on_cpu: bool,
    threads: int,
    with_one_left: int,
) -> None:
    binding = NumaBinding((NumaNode(1, ((1,), (3,), (5,))),), cores=3, ranks=1)
    monkeypatch.setattr(rank_cores, "bind_to_numa_nodes", lambda num_ranks, num_threads: binding)
    before = torch.get_num_threads()
    try:
        cores = RankCores(replicas(0, 1), resources, is_on_cpu=is_on_cpu)
        cores.use()
        assert torch.get_num_threads() == threads
        cores.use(num_left=1)
        assert torch.get_num_threads() == with_one_left
    finally:
        torch.set_num_threads(before)
