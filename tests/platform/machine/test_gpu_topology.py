"""`nvidia-smi topo -m` is read whatever machine, driver or terminal printed it."""

from __future__ import annotations

import pytest
from tests.platform.topologies import (
    CONTAINER_WITHOUT_AFFINITY,
    EIGHT_H100_WITH_CARDS,
    FOUR_A100_PASTED,
    MIG_WITHOUT_NVLINK,
    OLD_DRIVER,
    ONE_GPU,
    PCIE_ONLY,
)

from baton.platform.machine.gpu_topology import (
    Device,
    TopologyUnreadable,
    distance,
    parse_topology,
)


def test_eight_gpus_with_nvlink_and_a_card_each() -> None:
    found = parse_topology(EIGHT_H100_WITH_CARDS)

    assert [gpu.name for gpu in found.gpus] == [f"GPU{i}" for i in range(8)]
    assert found.gpus[5] == Device("GPU5", "56-111,168-223")
    assert [nic.name for nic in found.nics] == [f"mlx5_{i}" for i in range(8)]
    assert found.link("GPU0", "GPU7") == "NV18"
    assert found.nearest_nic("GPU6") == ("mlx5_6", "PIX")


def test_a_matrix_pasted_with_spaces_and_cards_by_name() -> None:
    found = parse_topology(FOUR_A100_PASTED)

    assert found.gpus[0] == Device("GPU0", "24-31,88-95")
    assert found.nics == (Device("mlx5_0"),)
    assert found.nearest_nic("GPU2") == ("mlx5_0", "PHB")
    assert found.link("mlx5_0", "GPU3") == "SYS"


def test_gpus_joined_by_pcie_alone() -> None:
    found = parse_topology(PCIE_ONLY)

    assert found.link("GPU0", "GPU1") == "PIX"
    assert found.link("GPU1", "GPU2") == "SYS"
    assert found.nearest_nic("GPU0") is None


def test_a_single_gpu() -> None:
    found = parse_topology(ONE_GPU)

    assert found.gpus == (Device("GPU0", "0-15"),)
    assert found.nics == ()


def test_a_container_that_hides_the_affinities() -> None:
    found = parse_topology(CONTAINER_WITHOUT_AFFINITY)

    assert found.gpus == (Device("GPU0"), Device("GPU1"))
    assert found.link("GPU0", "GPU1") == "NV12"
    assert found.nearest_nic("GPU1") == ("NIC0", "NODE")


def test_gpus_in_mig_mode_have_no_nvlink() -> None:
    assert parse_topology(MIG_WITHOUT_NVLINK).link("GPU0", "GPU1") == "SYS"


def test_the_words_of_an_old_driver() -> None:
    found = parse_topology(OLD_DRIVER)

    assert found.link("GPU0", "GPU1") == "PSB"
    assert distance(found.link("GPU0", "GPU2")) == distance("SYS")
    assert found.gpus[2] == Device("GPU2", "10-19,30-39")


def test_nvlink_is_nearer_than_any_pcie_path() -> None:
    links = ["SYS", "NODE", "PHB", "PXB", "PIX", "NV4"]

    assert sorted(links, key=distance) == links[::-1]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no header"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the driver", "no header"),
        (PCIE_ONLY.replace("PHB", "WARP"), "'WARP' is no link"),
        ("GPU0 GPU1\nGPU0 X PIX\n", "no row for GPU1"),
        ("GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX\n", "row GPU1: it is too short"),
    ],
)
def test_what_is_no_matrix_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(TopologyUnreadable, match=complaint):
        parse_topology(text)
