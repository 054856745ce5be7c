"""KV that NIXL brings from device to device: the way it takes on GPUs, with tensors of this host.

Neither side's blocks are memory that anybody may look into, and agents of this process stand for
NIXL's, which see to it that only registered memory is read.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.kv_transfer.replicas import (
    LAYOUT,
    PROMPT,
    TRANSFER,
    DecodeReplica,
    PrefillReplica,
)
from tests.kv_transfer.transport.nixl.test_nixl import Handle, ObedientAgent, Stretch
from tests.kv_transfer.world import World, connected, serving, unaltered

from baton.core.block_views import DeviceBlocks
from baton.core.errors import TransferAborted, TransferError
from baton.core.ids import TransferId
from baton.core.kv_arena import KvArena
from baton.core.kv_layout import KvLayout
from baton.core.rank_memory import Introduction, OwnRows
from baton.engine.memory.device_rows import DeviceRows
from baton.engine.memory.kv_cache import KvCache
from baton.engine.ranks.sharded_cache import ShardedCache
from baton.kv_transfer import transports
from baton.kv_transfer.receiving.receiver import AbortReason
from baton.kv_transfer.transport.auto.probe import Prober
from baton.kv_transfer.transport.control.client import ControlClient
from baton.kv_transfer.transport.nixl.nixl import NixlTransport
from baton.kv_transfer.transport.nixl.sending import NixlSending, RegisteredMemory
from baton.kv_transfer.transports import TransportKind

WIDE = replace(LAYOUT, head_dim=32)
"""Its units are long enough to be summed up on a device."""


SECOND = TransferId("kv-2")


@dataclass(eq=False)
class Fabric:
    """Joins the agents of this process."""

    agents: dict[str, JoinedAgent] = field(default_factory=dict)
    posted: list[Handle] = field(default_factory=list)
    num_to_spoil: int = 0
    """So many reads bring a wrong byte."""
    is_holding: bool = False
    """Whether reads stay under way until `let_go`."""
    dead: list[JoinedAgent] = field(default_factory=list)
    """Whose memory nobody can read any more."""
    registered: list[RegisteredMemory] = field(default_factory=list)
    """Memory of ranks, which lasts as long as this."""

    def create(self, name: str) -> JoinedAgent:
        agent = self.agents[name] = JoinedAgent(self, name)
        return agent

    def end(self, agent: JoinedAgent) -> None:
        """Its process ends."""
        self.dead.append(agent)
        for handle in self.posted:
            self.fail_of_dead(handle)

    def fail_of_dead(self, handle: Handle) -> None:
        if handle.state == "PROC" and any(agent.keeps(handle) for agent in self.dead):
            handle.state = "ERR"

    def let_go(self) -> None:
        self.is_holding = False
        for handle in self.posted:
            if handle.state == "PROC":
                handle.complete()


@dataclass(eq=False)
class JoinedAgent(ObedientAgent):
    fabric: Fabric = field(default_factory=Fabric)
    name: str = ""

    def __init__(self, fabric: Fabric, name: str) -> None:
        super().__init__()
        self.fabric, self.name = fabric, name

    def get_agent_metadata(self) -> bytes:
        return self.name.encode()

    def prep_xfer_dlist(
        self, agent_name: str, grids: NDArray[np.uint64], mem_type: str
    ) -> list[Stretch]:
        found = super().prep_xfer_dlist(agent_name, grids, mem_type)
        known = self.fabric.agents[agent_name or self.name]
        if not all(known._has(address, size) for address, size, _ in found):
            raise RuntimeError("NIXL_ERR_NOT_FOUND")
        return found

    def keeps(self, handle: Handle) -> bool:
        """Whether all that it reads is memory that was registered here."""
        return all(self._has(address, size) for address, size, _ in handle.remote)

    def _has(self, address: int, size: int) -> bool:
        return any(at <= address <= address + size <= at + length for at, length in self.registered)

    def transfer(self, handle: Handle) -> str:
        self.fabric.posted.append(handle)
        self.fabric.fail_of_dead(handle)
        if handle.state == "PROC" and not self.fabric.is_holding:
            handle.complete()
        if self.fabric.num_to_spoil:
            self.fabric.num_to_spoil -= 1
            address, _, _ = handle.local[-1]
            ctypes.c_ubyte.from_address(address).value ^= 1
        return super().transfer(handle)


def addresses(handles: Sequence[Handle]) -> Iterator[int]:
    """Where their bytes land."""
    return (address for handle in handles for address, _, _ in handle.local)


def on_host(*_: object) -> None:
    raise AssertionError("KV came to this host's memory")


def introduced(fabric: Fabric, arena: KvArena, rows: OwnRows) -> Introduction:
    """As a rank in a process of its own introduces its memory."""
    memory = RegisteredMemory(fabric.create)
    fabric.registered.append(memory)
    return memory.introduce(arena, rows)


def keep_on_device(cache: KvCache, patch: pytest.MonkeyPatch, *, is_looked_at: bool) -> None:
    """As if its tensors were a GPU's; only where `is_looked_at` do bytes of them come here."""

    if isinstance(cache, ShardedCache):
        patch.setattr(cache, "_is_at_once", True)
    patch.setattr(cache, "_memory", [], raising=False)
    if not is_looked_at:
        for name in ("views", "scratch", "write_blocks", "write_part"):
            patch.setattr(cache, name, on_host)


@asynccontextmanager
async def on_devices(
    patch: pytest.MonkeyPatch,
    fabric: Fabric,
    layout: KvLayout = WIDE,
    decode_layout: KvLayout | None = None,
    *,
    is_looked_at: bool = False,
    num_ranks: tuple[int, int] = (1, 1),
) -> AsyncIterator[World]:
    """`is_looked_at`: whether D may copy bytes of pieces to the host. `num_ranks`: P's and D's."""
    kind = TransportKind(
        lambda parts: NixlTransport(
            ControlClient(parts.channels),
            fabric.create,
            parts.device,
            arena=parts.arena,
            is_on_device=True,
        ),
        lambda parts, arena: NixlSending(arena, fabric.create, is_on_device=True),
        reads_arena=True,
        reads_shares=True,
    )
    patch.setattr(transports, "TRANSPORTS", {"nixl": kind})
    of_p, of_d = num_ranks
    introduce = partial(introduced, fabric)
    prefill = PrefillReplica(layout=layout, num_ranks=of_p, introduce=introduce)
    decode = DecodeReplica(layout=decode_layout or layout, num_ranks=of_d, introduce=introduce)
    async with serving(World("nixl", unaltered, prefill, decode, joins_planes=True)) as it:
        write = it.prefill.cache.write_part
        keep_on_device(it.prefill.cache, patch, is_looked_at=False)
        patch.setattr(it.prefill.cache, "write_part", write)  # P computes
        keep_on_device(it.decode.cache, patch, is_looked_at=is_looked_at)
        if not is_looked_at:
            patch.setattr(DeviceBlocks, "__getitem__", on_host)
        yield it


async def test_no_byte_of_kv_comes_to_this_host_and_a_wrong_one_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = Fabric(num_to_spoil=1)
    async with on_devices(monkeypatch, fabric) as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        kv_bytes = WIDE.num_blocks_for(len(PROMPT)) * WIDE.block_bytes
        assert (report.num_bytes, report.num_asked_again) == (2 * kv_bytes, 1)
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["nixl", "grpc"])
async def test_on_a_gpu_kv_comes_by_the_library_and_by_the_host(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "nixl":
        pytest.importorskip("nixl")
        monkeypatch.setattr(DeviceBlocks, "__getitem__", on_host)
    async with connected(name, layout=WIDE, joins_planes=True, device="cuda") as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        kv_bytes = WIDE.num_blocks_for(len(PROMPT)) * WIDE.block_bytes
        assert (report.num_bytes, report.num_asked_again) == (kv_bytes, 0)
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


async def test_a_probe_measures_the_way_that_kv_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_devices(monkeypatch, Fabric()) as it:
        sender, receiver = it.prefill.sender.epoch, it.decode.receiver.epoch

        prober = Prober(ControlClient(it.parts.channels))
        found = await prober.measure(it.transport, it.address, sender, receiver, WIDE.block_bytes)

        assert found.num_bytes == WIDE.block_bytes
        await it.assert_nothing_is_left()


async def test_of_planes_of_more_heads_just_those_are_summed_up_and_read_that_d_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    second = replace(WIDE, first_kv_head=1, num_kv_heads=1)
    async with on_devices(monkeypatch, Fabric(), decode_layout=second) as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        kv_bytes = WIDE.num_blocks_for(len(PROMPT)) * WIDE.block_bytes
        assert (report.num_bytes, report.num_asked_again) == (kv_bytes // 2, 0)
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


async def test_heads_of_several_ranks_go_from_their_devices_to_one_and_pass_no_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = Fabric()
    async with on_devices(monkeypatch, fabric, num_ranks=(2, 1)) as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        kv_bytes = WIDE.num_blocks_for(len(PROMPT)) * WIDE.block_bytes
        assert (report.num_bytes, report.num_asked_again) == (kv_bytes, 0)
        owners = [
            [name for name, agent in fabric.agents.items() if agent.keeps(handle)]
            for handle in fabric.posted
        ]
        assert all(len(names) == 1 for names in owners)
        assert len({name for (name,) in owners}) == 2
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


async def test_what_must_be_regrouped_is_looked_at_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = replace(WIDE, block_size=8)
    async with on_devices(monkeypatch, Fabric(), decode_layout=other, is_looked_at=True) as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        assert report.num_asked_again == 0
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


async def test_a_read_that_was_given_up_writes_to_nobodys_blocks_and_keeps_its_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = Fabric(is_holding=True)
    async with on_devices(monkeypatch, fabric) as it:
        reservation = await it.grant()
        await it.compute()
        fetching = asyncio.create_task(it.fetch(reservation))
        async with asyncio.timeout(60):
            while not fabric.posted:
                await asyncio.sleep(0.001)

        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        await it.assert_nothing_is_left()

        assert isinstance(it.inner, NixlTransport) and it.inner._reads is not None
        assert it.inner._reads.num_in_flight == len(fabric.posted)
        num_given_up, fabric.is_holding = len(fabric.posted), False
        again = await it.grant(SECOND)
        await it.compute(transfer_id=SECOND)
        await it.fetch(again)
        given_up, later = fabric.posted[:num_given_up], fabric.posted[num_given_up:]
        assert not {*addresses(given_up)} & {*addresses(later)}

        fabric.let_go()

        async with asyncio.timeout(60):
            while it.inner._reads.num_in_flight:
                await asyncio.sleep(0.001)
        await it.on_d.call(lambda: it.decode.adopt(SECOND))
        assert it.decode.holds_kv(SECOND)


async def test_blocks_that_a_device_still_writes_stay_in_quarantine_when_their_lease_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with on_devices(monkeypatch, Fabric()) as it:
        is_writing, may_end = threading.Event(), threading.Event()
        write_rows = DeviceRows.write_rows

        def slowly(rows: DeviceRows, *arguments: Any) -> None:
            write_rows(rows, *arguments)
            is_writing.set()
            may_end.wait(60)

        monkeypatch.setattr(DeviceRows, "write_rows", slowly)
        reservation = await it.grant()
        await it.compute()
        fetching = asyncio.create_task(it.fetch(reservation))
        assert await asyncio.to_thread(is_writing.wait, 60)

        await it.on_d.call(lambda: it.decode.receiver.abort(TRANSFER, AbortReason.PRESSURE))

        num_blocks = WIDE.num_blocks_for(len(PROMPT))
        assert (await it.on_d.call(it.decode.audit)).quarantined == num_blocks
        may_end.set()
        with pytest.raises(TransferAborted):
            await fetching
        await it.assert_nothing_is_left()


async def test_memory_that_nixl_cannot_register_ends_the_transfer_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class WithoutDevices(JoinedAgent):
        def register_memory(self, stretches: object, mem_type: str) -> list[tuple[int, int]]:
            raise RuntimeError("NIXL_ERR_NOT_SUPPORTED")

    fabric = Fabric()
    monkeypatch.setattr(fabric, "create", lambda name: WithoutDevices(fabric, name))
    async with on_devices(monkeypatch, fabric) as it:
        reservation = await it.grant()
        await it.compute()

        with pytest.raises(TransferError, match="NIXL_ERR_NOT_SUPPORTED"):
            await it.fetch(reservation)

        await it.assert_nothing_is_left()
