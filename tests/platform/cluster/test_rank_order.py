"""Who becomes which rank is decided by what the processes say of where they are."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from tests.platform.topologies import PAIRED_A100_PCIE, gpu_id, listing

from baton.engine.mesh.mesh import Mesh
from baton.platform.cluster.ranks.rank_order import by_rank
from baton.platform.machine.link_matrix import DeviceLocation


@dataclass
class Remote:
    """A method of an actor, as Ray has them."""

    answer: Callable[..., object]

    def remote(self, *arguments: object) -> Awaitable[object]:
        async def answered() -> object:
            return self.answer(*arguments)

        return answered()


@dataclass
class Process:
    """One that Ray has started."""

    place: DeviceLocation
    topology: str = ""
    asked: list[str] = field(default_factory=list)

    @property
    def location(self) -> Remote:
        return Remote(lambda device: self.place)

    @property
    def read_links(self) -> Remote:
        def answer() -> tuple[str, str]:
            self.asked.append("links")
            return self.topology, listing(4)

        return Remote(answer)


def on_gpu(gpu: int, topology: str = PAIRED_A100_PCIE, node: str = "a") -> Process:
    return Process(DeviceLocation(node, gpu_id(gpu)), topology)


async def test_the_process_on_the_lead_s_bridge_shares_its_matrices() -> None:
    first, second, third = (on_gpu(gpu) for gpu in (1, 2, 3))
    mesh = Mesh(tensor=2, pipeline=2)

    ranks = await by_rank(mesh, "cuda", DeviceLocation("a", gpu_id(0)), [first, second, third])

    assert ranks[0] is second
    assert ranks[1:] == [first, third]


async def test_one_process_of_a_machine_is_asked_for_its_links() -> None:
    processes = [on_gpu(1), on_gpu(2), on_gpu(0, node="b")]

    await by_rank(Mesh(tensor=2, pipeline=2), "cuda", DeviceLocation("a", gpu_id(0)), processes)

    assert sum(len(process.asked) for process in processes) == 1
    assert processes[2].asked == []


async def test_on_cpus_nobody_is_asked_and_all_stay() -> None:
    processes = [Process(DeviceLocation("a")) for _ in range(3)]

    assert await by_rank(Mesh(tensor=4), "cpu", DeviceLocation("a"), processes) == processes
    assert [process.asked for process in processes] == [[], [], []]


async def test_ranks_of_one_tensor_group_are_on_one_machine() -> None:
    far, near = (
        [Process(DeviceLocation("b")), Process(DeviceLocation("b"))],
        Process(DeviceLocation("a")),
    )
    mesh = Mesh(tensor=2, data=2)

    assert (await by_rank(mesh, "cpu", DeviceLocation("a"), [far[0], near, far[1]]))[0] is near


async def test_where_nothing_can_be_read_all_stay() -> None:
    processes = [on_gpu(gpu, topology="") for gpu in (1, 2, 3)]

    assert (
        await by_rank(Mesh(tensor=4), "cuda", DeviceLocation("a", gpu_id(0)), processes)
        == processes
    )


async def test_where_ranks_are_is_told_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "baton.platform.cluster.ranks.rank_order")
    mesh = Mesh(tensor=2, pipeline=2)

    await by_rank(
        mesh, "cuda", DeviceLocation("node", gpu_id(0)), [on_gpu(1), on_gpu(2), on_gpu(3)]
    )
    processes = [on_gpu(gpu, node="node") for gpu in (1, 2, 3)]
    await by_rank(mesh, "cuda", DeviceLocation("node", gpu_id(0)), processes)

    far, near = caplog.records
    assert far.levelname == "WARNING"
    assert "tensor over NV12 and NET" in far.getMessage()
    assert near.levelname == "INFO"
    assert near.getMessage() == (
        "ranks are placed by their links: tensor over NV12, pipeline over SYS. Rank "
        "0 on node GPU-00000000, 1 on node GPU-00000002, "
        "2 on node GPU-00000001, 3 on node GPU-00000003"
    )
