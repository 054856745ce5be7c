"""Real senders and receivers, one for each rank, that do not store KV alike."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
from tests.kv_transfer.layouts.test_plan import ranks
from tests.kv_transfer.replicas import LAYOUT as SMALL
from tests.kv_transfer.replicas import PROMPT, TIME_LEFT_S, DecodeReplica, PrefillReplica

from baton.core.errors import LayoutMismatch, StaleEpoch, TransferAborted
from baton.core.ids import TransferId
from baton.core.kv_layout import KvLayout
from baton.core.owner_thread import Inline
from baton.kv_transfer.handoff.messages import KvPiece
from baton.kv_transfer.handoff.reservation import KvSource, Reservation, WantedKv
from baton.kv_transfer.layouts.integrity import unit_checksums
from baton.kv_transfer.receiving.fetch import FetchConfig, Fetcher, TransferReport
from baton.kv_transfer.sending.outbox import Outbox
from baton.kv_transfer.transport.memory import MemoryTransport, Switchboard

LAYOUT = replace(SMALL, num_kv_heads=4, head_dim=2, block_size=2)
QUICK = FetchConfig(reopen_delay_s=0.0)


class Ranks:
    """All ranks of one P, each of which computes its share of every prompt, and those of one D.

    Every rank of D has a transfer of its own with each rank of P that it reads from.
    """

    def __init__(self, senders: Sequence[KvLayout], receivers: Sequence[KvLayout]) -> None:
        self.switchboard = Switchboard()
        self.prefills = [PrefillReplica(layout=layout, num_blocks=256) for layout in senders]
        self.decodes = [DecodeReplica(layout=layout, num_blocks=64) for layout in receivers]
        self.owner = Inline()
        """Of them all."""
        self.outboxes = [
            Outbox(prefill.sender, self.owner, max_piece_bytes=1) for prefill in self.prefills
        ]
        for rank, outbox in enumerate(self.outboxes):
            self.switchboard.plug(f"p{rank}", outbox)
        self.fetchers = [
            Fetcher(
                decode.receiver,
                self.owner,
                MemoryTransport(self.switchboard),
                clock=decode.clock,
                config=QUICK,
            )
            for decode in self.decodes
        ]

    def offer(self, name: str, prompt: tuple[int, ...] = PROMPT) -> None:
        for rank, decode in enumerate(self.decodes):
            for prefill in self.prefills:
                epoch = decode.receiver.epoch
                assert prefill.grant(epoch, TransferId(f"{name}-{rank}"), prompt)

    def compute(self, name: str, num_tokens: int | None = None) -> None:
        for rank in range(len(self.decodes)):
            transfer_id = TransferId(f"{name}-{rank}")
            for prefill in self.prefills:
                prefill.compute(transfer_id, num_tokens)
                if num_tokens is None:
                    prefill.finish(transfer_id)

    def reserve(self, name: str, prompt: tuple[int, ...] = PROMPT, *, rank: int = 0) -> Reservation:
        sources = [
            KvSource(epoch=prefill.sender.epoch, address=f"p{number}", layout=prefill.layout)
            for number, prefill in enumerate(self.prefills)
        ]
        wanted = WantedKv(
            transfer_id=TransferId(f"{name}-{rank}"),
            sources=tuple(sources),
            tokens=prompt,
            salt=b"",
            time_left_s=TIME_LEFT_S,
        )
        reservation = self.decodes[rank].receiver.reserve(wanted, 0.0)
        assert reservation is not None
        return reservation

    async def hand_over(self, name: str, prompt: tuple[int, ...] = PROMPT) -> list[TransferReport]:
        """To all of D's ranks at once. Every byte of every rank is what it must be."""
        numbers = range(len(self.decodes))
        reserved = [self.reserve(name, prompt, rank=rank) for rank in numbers]
        reports = await asyncio.gather(*(self.fetchers[n].fetch(reserved[n]) for n in numbers))
        for rank, decode in enumerate(self.decodes):
            decode.adopt(TransferId(f"{name}-{rank}"), prompt)
            assert decode.holds_kv(TransferId(f"{name}-{rank}"))
        return reports

    async def until_no_leases(self) -> None:
        """Of either side: threads may still read or write."""
        senders = [prefill.sender for prefill in self.prefills]
        receivers = [decode.receiver for decode in self.decodes]
        async with asyncio.timeout(60):
            while any(it.lease_ids for it in senders) or any(it.lease_ids for it in receivers):
                await asyncio.sleep(0.001)

    async def assert_nothing_is_left(self) -> None:
        """But for what was offered to ranks that read it elsewhere."""
        await asyncio.gather(*(fetcher.close() for fetcher in self.fetchers))
        for prefill in self.prefills:
            await self.owner.call(partial(prefill.sender.expire, float("inf")))
        await self.until_no_leases()
        audits = [replica.audit() for replica in self.prefills]
        for report in (*audits, *(replica.audit() for replica in self.decodes)):
            assert report.violations == ()
            assert report.leased == report.quarantined == 0


@pytest.mark.parametrize(
    ("num_p", "num_d", "num_heads"),
    [(4, 2, 4), (2, 4, 4), (1, 8, 4), (8, 1, 4), (8, 8, 2), (4, 2, 1), (2, 8, 1)],
)
async def test_ranks_hand_over_to_however_many_there_are(
    num_p: int, num_d: int, num_heads: int
) -> None:
    layout = replace(LAYOUT, num_kv_heads=num_heads)
    it = Ranks(ranks(layout, num_p), ranks(layout, num_d))
    it.offer("kv")
    it.compute("kv")

    reports = await it.hand_over("kv")

    num_blocks = LAYOUT.num_blocks_for(len(PROMPT))
    expected = [num_blocks * decode.layout.block_bytes for decode in it.decodes]
    assert [report.num_bytes for report in reports] == expected
    await it.assert_nothing_is_left()


@pytest.mark.parametrize(("num_p", "num_d"), [(1, 1), (4, 2), (2, 4)])
@pytest.mark.parametrize("block_size", [2, 4])
async def test_every_rank_gets_all_latents_from_one_other(
    num_p: int, num_d: int, block_size: int
) -> None:
    layout = replace(LAYOUT, num_kv_heads=1, num_vectors=1, head_dim=6)
    kept = replace(layout, block_size=block_size)
    it = Ranks(ranks(layout, num_p), ranks(kept, num_d))
    it.offer("kv")
    it.compute("kv")

    await it.hand_over("kv")

    await it.assert_nothing_is_left()


@pytest.mark.parametrize(("num_p", "num_d"), [(4, 2), (2, 4)])
async def test_heads_and_blocks_may_differ_at_once(num_p: int, num_d: int) -> None:
    it = Ranks(ranks(LAYOUT, num_p), ranks(replace(LAYOUT, block_size=8), num_d))
    it.offer("kv")
    it.compute("kv")

    await it.hand_over("kv")

    await it.assert_nothing_is_left()


@pytest.mark.parametrize(("sent", "kept"), list(product((1, 2, 4, 8), (1, 2, 4, 8))))
@pytest.mark.parametrize("num_tokens", [1, 8, 21, 22])
async def test_blocks_of_another_size_are_regrouped(sent: int, kept: int, num_tokens: int) -> None:
    it = Ranks([replace(LAYOUT, block_size=sent)], [replace(LAYOUT, block_size=kept)])
    prompt = PROMPT[:num_tokens]
    it.offer("kv", prompt)
    it.compute("kv")

    [report] = await it.hand_over("kv", prompt)

    assert report.num_bytes == -(-num_tokens // sent) * it.prefills[0].layout.block_bytes
    await it.assert_nothing_is_left()


@pytest.mark.parametrize(("sent", "kept", "num_cached"), [(2, 8, 8), (8, 2, 12), (4, 4, 12)])
async def test_only_what_is_missing_travels_whoever_cuts_blocks_where(
    sent: int, kept: int, num_cached: int
) -> None:
    """What D has cached may end within one of P's blocks."""
    it = Ranks([replace(LAYOUT, block_size=sent)], [replace(LAYOUT, block_size=kept)])
    it.offer("first", PROMPT[:13])
    it.compute("first")
    await it.hand_over("first", PROMPT[:13])
    it.decodes[0].finish(TransferId("first-0"))
    it.offer("kv")
    it.compute("kv")

    [report] = await it.hand_over("kv")

    assert it.prefills[0].num_cached[TransferId("kv-0")] == 13 // sent * sent
    num_sent = -(-len(PROMPT) // sent) - num_cached // sent
    assert report.num_bytes == num_sent * it.prefills[0].layout.block_bytes
    await it.assert_nothing_is_left()


def test_a_source_sends_its_own_heads_and_no_others() -> None:
    all_ranks = Ranks(ranks(LAYOUT, 2), ranks(LAYOUT, 1))
    reservation = all_ranks.reserve("kv")
    [decode], streams = all_ranks.decodes, reservation.streams
    layout = streams[0].wanted.planes[0]
    views = (memoryview(bytes(layout.layer_block_bytes)),)
    piece = KvPiece(
        transfer_id=reservation.transfer_id,
        sender_epoch=streams[1].source.epoch,
        receiver_epoch=reservation.receiver_epoch,
        plane=0,
        first_block=0,
        views=views,
        checksums=unit_checksums(views[0], layout.unit_bytes),
    )

    with pytest.raises(StaleEpoch):
        decode.receiver.filling(reservation.transfer_id).begin(0, piece, 0.0)
    fill = decode.receiver.filling(reservation.transfer_id).begin(1, piece, 0.0)
    assert list(fill.blocks) == [0]


async def test_a_source_that_gives_up_ends_the_transfer_at_all_others() -> None:
    it = Ranks(ranks(LAYOUT, 2), [LAYOUT])
    it.offer("kv")
    it.compute("kv", 10)
    fetching = asyncio.create_task(it.fetchers[0].fetch(it.reserve("kv")))
    arriving = it.decodes[0].receiver.filling(TransferId("kv-0"))
    while arriving.num_missing > 2 * 2 * 6:  # six blocks of two layers of two senders
        await asyncio.sleep(0)

    await it.owner.call(lambda: it.prefills[1].sender.abort(TransferId("kv-0"), "out of breath"))

    with pytest.raises(TransferAborted, match="out of breath"):
        await fetching
    await it.fetchers[0].close()
    await it.until_no_leases()  # none expires: all were told
    for prefill in it.prefills:
        prefill.finish(TransferId("kv-0"))
    await it.assert_nothing_is_left()


def test_blocks_that_do_not_fit_into_each_other_are_refused_before_any_are_taken() -> None:
    it = Ranks([replace(LAYOUT, block_size=3)], [LAYOUT])

    with pytest.raises(LayoutMismatch, match="neither divides the other"):
        it.reserve("kv")

    assert it.decodes[0].audit().free == it.decodes[0].pool.num_blocks
