"""Whether GPUs can be used as configured, and how near they are to each other and to cards."""

from __future__ import annotations

import pytest
from tests.platform.nodes import gpus, node
from tests.platform.topologies import (
    EIGHT_H100_WITH_CARDS,
    FOUR_A100_PASTED,
    MIG_WITHOUT_NVLINK,
    ONE_GPU,
    PCIE_ONLY,
)

from baton.platform.doctor.finding import Finding, Status
from baton.platform.doctor.gpu_checks import check_gpus
from baton.platform.machine.node import NodeFacts


def by_name(facts: NodeFacts, device: str = "auto") -> dict[str, Finding]:
    return {finding.name: finding for finding in check_gpus(facts, device)}


def test_eight_gpus_with_nvlink_and_cards_are_well() -> None:
    found = by_name(node(gpus=gpus(EIGHT_H100_WITH_CARDS)))

    assert {finding.status for finding in found.values()} == {Status.OK}
    assert found["GPU links"].seen == "NV18"
    assert "8 x H100, driver 550.54.15, torch for CUDA 12.6" in found["GPUs"].seen
    assert "GPU3 mlx5_3 (PIX)" in found["network cards"].seen


def test_gpus_across_sockets_are_named() -> None:
    found = by_name(node(gpus=gpus(PCIE_ONLY)))["GPU links"]

    assert found.status is Status.WARN
    assert "GPU0-GPU2" in found.seen
    assert "GPU0-GPU1" not in found.seen
    assert "network cards" not in by_name(node(gpus=gpus(PCIE_ONLY)))


def test_gpus_far_from_the_only_card_are_named() -> None:
    found = by_name(node(gpus=gpus(FOUR_A100_PASTED)))["network cards"]

    assert found.status is Status.WARN
    assert "none is near GPU0, GPU1, GPU3;" in found.seen


def test_one_gpu_has_no_links() -> None:
    assert by_name(node(gpus=gpus(ONE_GPU)))["GPU links"].seen == "one GPU"


def test_mig_slices_are_warned_about() -> None:
    found = by_name(node(gpus=gpus(MIG_WITHOUT_NVLINK, is_mig=(True, False))))["GPUs"]

    assert found.status is Status.WARN
    assert "1 in MIG mode" in found.seen


@pytest.mark.parametrize(("device", "status"), [("cuda", "fail"), ("auto", "ok"), ("cpu", "ok")])
def test_no_gpu_matters_only_where_one_is_asked_for(device: str, status: str) -> None:
    assert by_name(node(gpus=None), device)["GPUs"].status == status


@pytest.mark.parametrize(
    ("device", "status"), [("cuda", "fail"), ("auto", "fail"), ("cpu", "warn")]
)
def test_a_driver_that_does_not_answer(device: str, status: str) -> None:
    broken = node(gpu_trouble="nvidia-smi: driver/library version mismatch")

    assert by_name(broken, device)["GPUs"].status == status


@pytest.mark.parametrize(("device", "status"), [("cuda", "fail"), ("auto", "warn"), ("cpu", "ok")])
def test_a_torch_without_cuda_leaves_the_gpus_idle(device: str, status: str) -> None:
    assert by_name(node(gpus=gpus(ONE_GPU), torch_cuda=""), device)["GPUs"].status == status


def test_a_driver_older_than_the_cuda_version_does_not_run_it() -> None:
    found = by_name(node(gpus=gpus(ONE_GPU, driver="550.54.15"), torch_cuda="13.0"))["GPUs"]

    assert found.status is Status.FAIL
    assert "580.65" in found.remedy


def test_an_unreadable_matrix_is_skipped_not_guessed() -> None:
    found = by_name(node(gpus=gpus("gibberish")))

    assert found["GPU links"].status is Status.SKIPPED
    assert "network cards" not in found
