"""A replica of which a write of KV hangs is replaced; its blocks are nobody else's before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.in_process_fleet import running_fleet
from tests.kv_transfer.hanging_pages import NoHangingPages, hanging

from baton.core.errors import EngineFailed
from baton.core.ids import ReplicaId, TransferId, new_epoch
from baton.kernels.paging import checksum
from baton.kv_transfer.handoff.messages import KvPiece
from baton.kv_transfer.handoff.reservation import KvSource, WantedKv
from baton.kv_transfer.receiving.filling import Filling
from baton.kv_transfer.receiving.placing import place
from baton.kv_transfer.receiving.receiver import AbortReason

TRANSFER = TransferId("kv-1")


@asynccontextmanager
async def hung_fill(core: Any, filling: Filling, piece: KvPiece) -> AsyncIterator[None]:
    """A fill that is begun, and ended behind the context."""
    fill = filling.begin(0, piece, core.engine.clock())
    yield
    filling.end(fill, is_written=False)


@asynccontextmanager
async def hung_thread(core: Any, filling: Filling, piece: KvPiece) -> AsyncIterator[None]:
    """A thread that hangs in the kernel as it writes, until the context is left."""

    def write() -> None:
        fill = filling.begin(0, piece, core.engine.clock())
        bad = place(fill)
        filling.end(fill, is_written=not bad)

    if not checksum.is_compiled():
        pytest.skip("it would hold the interpreter's lock")
    arena = core.engine.runner.cache.arena
    try:
        num_bytes = arena.num_blocks * sum(arena.block_bytes)
        with hanging(arena.planes[0].data_ptr(), num_bytes) as has_hung:
            writing = asyncio.create_task(asyncio.to_thread(write))
            await has_hung.wait()
            yield
    except NoHangingPages as error:
        pytest.skip(f"no page can hang here: {error}")
    await writing


@pytest.mark.parametrize("hung", [hung_fill, hung_thread])
async def test_a_write_that_hangs_keeps_its_blocks_and_fails_the_health_check(hung: Any) -> None:
    async with running_fleet(prefill=0, decode=1) as fleet, asyncio.timeout(60):
        core: Any = fleet.replicas[ReplicaId("decode-1")].worker.core
        receiver, layout = core.kv.receiver, core.engine.pool.layout
        source = KvSource(epoch=new_epoch(), address="p", layout=layout)
        wanted = WantedKv(
            transfer_id=TRANSFER,
            sources=(source,),
            tokens=tuple(range(2 * layout.block_size)),
            salt=b"",
            time_left_s=60.0,
        )
        piece = KvPiece(
            transfer_id=TRANSFER,
            sender_epoch=source.epoch,
            receiver_epoch=receiver.epoch,
            plane=0,
            first_block=0,
            views=[memoryview(bytes(layout.layer_block_bytes))],
            checksums=bytes(8 * layout.num_kv_heads),
        )
        assert await core.thread.call(lambda: receiver.reserve(wanted, core.engine.clock()))
        filling = receiver.filling(TRANSFER)
        async with hung(core, filling, piece):
            core.check_health(limit_s=0.3)

            await core.thread.call(lambda: receiver.abort(TRANSFER, AbortReason.EXPIRED))

            with pytest.raises(EngineFailed, match="to blocks that were given up"):
                while True:
                    core.check_health(limit_s=0.3)
                    await asyncio.sleep(0.01)
            assert receiver.num_leased_blocks == 2
        while receiver.num_leased_blocks:
            await asyncio.sleep(0.01)
        core.check_health(limit_s=0.3)
        await fleet.assert_nothing_is_held()
