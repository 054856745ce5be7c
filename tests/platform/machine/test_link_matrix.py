"""How the processes that will be ranks are joined: read from what nvidia-smi prints."""

from __future__ import annotations

import pytest
from tests.platform.topologies import (
    DGX_1,
    MIG_WITHOUT_NVLINK,
    PAIRED_A100_PCIE,
    TWO_A100_AND_SLICES,
    gpu_id,
    listing,
)

from baton.platform.machine.gpu_topology import TopologyUnreadable
from baton.platform.machine.link_matrix import DeviceLocation, link_matrix, parse_links, slowness


def locations(*gpus: int, node: str = "a") -> list[DeviceLocation]:
    return [DeviceLocation(node, gpu_id(gpu)) for gpu in gpus]


def test_gpus_are_known_by_their_ids_in_whatever_order_ray_gave_them() -> None:
    links = parse_links(PAIRED_A100_PCIE, listing(4))

    assert link_matrix(locations(3, 0, 1), {"a": links}) == [
        ["X", "SYS", "NV12"],
        ["SYS", "X", "SYS"],
        ["NV12", "SYS", "X"],
    ]


def test_machines_are_joined_by_a_network_whatever_their_gpus_are_called() -> None:
    links = parse_links(PAIRED_A100_PCIE, listing(4))
    both = [*locations(0, 2, node="a"), *locations(0, node="b")]

    assert link_matrix(both, {"a": links, "b": links})[0] == ["X", "NV12", "NET"]


def test_slices_are_joined_as_the_gpus_that_they_are_of() -> None:
    links = parse_links(MIG_WITHOUT_NVLINK, TWO_A100_AND_SLICES)
    ids = (
        "feb88891-0321-5fef-9c87-d4af3b54259e",
        "a25704ba-3a06-5299-a795-fd7cf4d13973",
        "932bfb2c-849a-2a22-1e84-9eff6bc02b39",
    )

    assert link_matrix([DeviceLocation("a", gpu) for gpu in ids], {"a": links})[0] == [
        "X",
        "X",
        "SYS",
    ]


def test_processes_on_cpus_share_the_memory_of_their_machine() -> None:
    assert link_matrix([DeviceLocation("a"), DeviceLocation("a"), DeviceLocation("b")], {})[0] == [
        "HOST",
        "HOST",
        "NET",
    ]


def test_what_could_not_be_read_is_unknown_and_no_better_than_the_worst_of_a_machine() -> None:
    matrix = link_matrix(locations(0, 1), {})
    of_others = link_matrix(locations(0, 7), {"a": parse_links(PAIRED_A100_PCIE, listing(4))})

    assert matrix[0][1] == of_others[0][1] == "?"
    assert slowness("?") == slowness("SYS")
    with pytest.raises(TopologyUnreadable):
        parse_links("", listing(2))


def test_more_nvlinks_are_faster_than_fewer_and_one_than_any_path_over_pcie() -> None:
    row = link_matrix(locations(*range(8)), {"a": parse_links(DGX_1, listing(8))})[0]

    assert row == ["X", "NV1", "NV1", "NV2", "NV2", "SYS", "SYS", "SYS"]
    slower = ["X", "NV18", "NV2", "HOST", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS", "NET"]
    assert sorted(slower, key=slowness) == slower
