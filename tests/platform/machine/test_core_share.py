"""Who gives way to the gateway shares all cores; who does not leaves one."""

from __future__ import annotations

import pytest
import torch

from baton.kernels.cpu import operators
from baton.kernels.cpu.library import find_compiler
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.machine import core_share
from baton.platform.machine.core_share import fair_share, limit_threads, share_of_cores

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
@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(("dtype", "share"), [("float32", 8), ("bfloat16", 8), ("float16", 7)])
def test_a_replica_leaves_a_core_where_nothing_is_compiled_for_its_dtype(
    dtype: str, share: int
) -> None:
    assert fair_share(replicas(0, 1), "cpu", dtype) == share


@pytest.mark.usefixtures("eight_cores")
def test_a_replica_leaves_a_core_where_there_are_no_operators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operators, "library", lambda: None)

    assert fair_share(replicas(0, 1), "cpu", "float32") == 7


@pytest.mark.usefixtures("eight_cores")
def test_a_replica_on_a_gpu_leaves_no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "library", lambda: None)

    assert fair_share(replicas(0, 1), "cuda", "float16") == 8
