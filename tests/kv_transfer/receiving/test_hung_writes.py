"""A write of KV that really hangs in the kernel, as it does in a device driver that hangs."""

from __future__ import annotations

import asyncio

import pytest
from tests.kv_transfer.hanging_pages import NoHangingPages, hanging
from tests.kv_transfer.replicas import TRANSFER
from tests.kv_transfer.world import KV_BYTES, NUM_BLOCKS, connected

from baton.core.errors import TransferAborted
from baton.core.ids import TransferId
from baton.kernels.paging import checksum
from baton.kv_transfer.receiving.receiver import AbortReason

OTHER = TransferId("kv-2")
LIMIT_S = 60.0


@pytest.mark.skipif(not checksum.is_compiled(), reason="it would hold the interpreter's lock")
@pytest.mark.parametrize("name", ["shm", "tcp", "grpc"])
async def test_a_write_that_hangs_delays_nobody_and_its_blocks_are_nobodys_until_it_ends(
    name: str,
) -> None:
    async with connected(name) as it, asyncio.timeout(LIMIT_S):
        receiver, arena = it.decode.receiver, it.decode.cache.arena
        reservation = await it.grant()
        await it.compute()
        memory = arena.planes[0].data_ptr(), arena.num_blocks * sum(arena.block_bytes)
        try:
            with hanging(*memory) as has_hung:
                fetching = asyncio.create_task(it.fetch(reservation))
                await has_hung.wait()

                await it.on_d.call(lambda: receiver.abort(TRANSFER, AbortReason.EXPIRED))

                with pytest.raises(TransferAborted, match="its time is up"):
                    await fetching
                for _ in range(2):
                    await it.on_d.call(lambda: receiver.expire(it.decode.clock()))
                    it.decode.clock.advance(0.5)
                report = await it.on_d.call(it.decode.audit)
                assert (report.quarantined, report.violations) == (NUM_BLOCKS, ())
                assert receiver.longest_quarantine_s == 0.5
                await it.on_d.call(it.decode.receiver.end_quarantine)
                assert receiver.num_leased_blocks == NUM_BLOCKS
        except NoHangingPages as error:
            pytest.skip(f"no page can hang here: {error}")
        await it.assert_nothing_is_left()
        assert receiver.counters.num_bytes < KV_BYTES

        again = await it.grant(OTHER)
        await it.compute(transfer_id=OTHER)
        await it.fetch(again)
        await it.on_d.call(lambda: it.decode.adopt(OTHER))
        assert it.decode.holds_kv(OTHER)
        await it.assert_nothing_is_left()
