"""What refuses, breaks or ends a transfer, over each transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.kv_transfer.replicas import (
    LAYOUT,
    TRANSFER,
    opening,
    settling,
)
from tests.kv_transfer.world import (
    KV_BYTES,
    NUM_BLOCKS,
    QUICK,
    Altering,
    connected,
    each_transport,
)

from baton.core.errors import (
    CorruptPiece,
    LayoutMismatch,
    StaleEpoch,
    TransferAborted,
    TransferCut,
    TransferError,
    UnknownTransfer,
)
from baton.core.ids import new_epoch
from baton.kv_transfer.handoff.messages import (
    BlockRange,
    ChecksumsBehind,
    KvPiece,
    OpenTransfer,
    Outcome,
)


@each_transport
async def test_an_unreachable_sender_fails_the_transfer(name: str) -> None:
    async with connected(name) as it:
        reservation = await it.grant()
        await it.compute()
        await it.stop_serving()

        with pytest.raises(TransferCut):
            await it.fetch(reservation)

        await it.assert_nothing_is_left(is_p_told=False)
        assert len(it.transport.opened) == 1 + QUICK.max_reopened


@each_transport
async def test_the_lease_of_an_earlier_incarnation_is_refused(name: str) -> None:
    async with connected(name) as it:
        receiver = it.decode.receiver.epoch
        assert await it.on_p.call(lambda: it.prefill.grant(receiver))
        await it.compute()
        stale = await it.on_d.call(lambda: it.decode.reserve(new_epoch()))
        assert stale is not None

        with pytest.raises(StaleEpoch, match="incarnation of the sender"):
            await it.fetch(stale)

        await it.assert_nothing_is_left(is_p_told=False)


@each_transport
async def test_only_the_incarnation_it_was_offered_to_may_read_or_settle(name: str) -> None:
    async with connected(name) as it:
        await it.grant()
        await it.compute()
        other = new_epoch()
        opening_ = replace(opening(it.prefill, it.decode), receiver_epoch=other)
        settling_ = replace(settling(it.prefill, it.decode, Outcome.ABORTED), receiver_epoch=other)

        with pytest.raises(StaleEpoch, match="incarnation of the receiver"):
            await anext(it.transport.open(it.address, opening_))
        with pytest.raises(StaleEpoch, match="incarnation of the receiver"):
            await it.transport.settle(it.address, settling_)

        assert await it.ask() is Outcome.OPEN


@each_transport
async def test_another_layout_is_refused_before_any_byte(name: str) -> None:
    layout = replace(LAYOUT, head_dim=2, block_size=6)
    async with connected(name, decode_layout=layout) as it:
        with pytest.raises(LayoutMismatch, match=r"head_dim is 1 .*; block_size is 4 .* 6 at"):
            await it.grant()
        await it.compute()

        with pytest.raises(LayoutMismatch, match=r"head_dim is 1 .*; block_size is 4 .* 6 at"):
            await anext(it.transport.open(it.address, opening(it.prefill, it.decode)))

        assert it.outbox.num_bytes_sent == 0
        await it.ask(Outcome.ABORTED)
        await it.assert_nothing_is_left()


@each_transport
async def test_an_unknown_transfer_is_refused(name: str) -> None:
    async with connected(name) as it:
        reservation = await it.on_d.call(lambda: it.decode.reserve(it.prefill.sender.epoch))
        assert reservation is not None

        with pytest.raises(UnknownTransfer):
            await it.fetch(reservation)

        assert await it.ask() is Outcome.UNKNOWN
        await it.assert_nothing_is_left()


@each_transport
async def test_a_block_beyond_the_prompt_is_refused(name: str) -> None:
    async with connected(name) as it:
        await it.grant()
        request = replace(opening(it.prefill, it.decode), first_block=NUM_BLOCKS)

        with pytest.raises(TransferError, match="block 6 asked for, there are 6"):
            await anext(it.transport.open(it.address, request))


@each_transport
async def test_the_sender_gives_up_while_it_streams(name: str) -> None:
    async with connected(name) as it:
        fetching = asyncio.create_task(it.fetch(await it.grant()))
        await it.compute(8)
        await it.has_arrived(2 * LAYOUT.block_bytes)

        await it.on_p.call(lambda: it.prefill.sender.abort(TRANSFER, "the call was cancelled"))
        await it.on_p.call(it.prefill.finish)

        with pytest.raises(TransferAborted, match="the call was cancelled"):
            await fetching
        await it.assert_nothing_is_left()


@each_transport
async def test_a_prompt_that_is_never_finished_aborts_its_transfer(name: str) -> None:
    async with connected(name) as it:
        fetching = asyncio.create_task(it.fetch(await it.grant()))
        await it.compute(8)
        await it.has_arrived(2 * LAYOUT.block_bytes)

        await it.on_p.call(it.prefill.finish)

        with pytest.raises(TransferAborted, match="not computed to its end"):
            await fetching
        await it.assert_nothing_is_left()


@each_transport
async def test_the_receiver_is_cancelled_while_it_streams(name: str) -> None:
    async with connected(name) as it:
        fetching = asyncio.create_task(it.fetch(await it.grant()))
        await it.compute(8)
        await it.has_arrived(2 * LAYOUT.block_bytes)

        fetching.cancel()
        with suppress(asyncio.CancelledError):
            await fetching

        await it.fetcher.close()
        assert fetching.cancelled()
        assert await it.ask() is Outcome.ABORTED
        await it.on_p.call(it.prefill.finish)
        await it.assert_nothing_is_left()


@each_transport
async def test_the_receivers_lease_expires_while_the_sender_is_silent(name: str) -> None:
    async with connected(name) as it:
        fetching = asyncio.create_task(it.fetch(await it.grant()))
        await it.compute(8)
        await it.has_arrived(2 * LAYOUT.block_bytes)

        await it.on_d.call(lambda: it.decode.receiver.expire(it.decode.clock() + 61))

        with pytest.raises(TransferAborted, match="its time is up"):
            await fetching
        await it.on_p.call(it.prefill.finish)
        await it.assert_nothing_is_left()


@each_transport
async def test_memory_pressure_ends_a_transfer_that_has_not_begun(name: str) -> None:
    async with connected(name) as it:
        fetching = asyncio.create_task(it.fetch(await it.grant()))
        while not it.transport.opened:
            await asyncio.sleep(0)

        assert await it.on_d.call(it.decode.receiver.abort_youngest_reserved)

        with pytest.raises(TransferAborted, match="needed by running requests"):
            await fetching
        await it.on_p.call(it.prefill.finish)
        await it.assert_nothing_is_left()


def flipped(piece: KvPiece) -> KvPiece:
    """The piece with one bit of its first block turned."""
    data = bytearray(piece.views[0])
    data[LAYOUT.unit_bytes] ^= 0x40
    piece.release()
    others = (memoryview(bytes(view)) for view in piece.views[1:])
    return replace(piece, views=(memoryview(data), *others), release=lambda: None)


@each_transport
async def test_a_corrupt_piece_alone_is_sent_again_and_counts_against_its_source(name: str) -> None:
    def flip_two(number: int, piece: KvPiece) -> KvPiece:
        return flipped(piece) if number in (3, 7) else piece

    async with connected(name, alter=flip_two) as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        # A piece is two blocks of a layer, a reading four: the third piece is the first of layer 1.
        # It comes seventh, behind all others, and eighth.
        again = (BlockRange(1, 0, 2),)
        assert [request.only for request in it.transport.opened] == [(), again, again]
        assert (report.num_asked_again, report.num_reopened, report.num_duplicates) == (2, 0, 0)
        assert report.num_bytes == KV_BYTES + 2 * 2 * LAYOUT.layer_block_bytes
        assert it.decode.receiver.counters.num_corrupt == {it.prefill.sender.epoch: 2}
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("is_cut", "asked"),
    [(False, [(), (BlockRange(1, 0, 2),), ()]), (True, [(), ()])],
    ids=["a piece is lost", "the stream is cut"],
)
async def test_where_more_is_missing_than_corrupt_pieces_everything_missing_is_asked_for(
    is_cut: bool, asked: list[tuple[BlockRange, ...]]
) -> None:
    kept: list[KvPiece] = []

    def disturb(number: int, piece: KvPiece) -> KvPiece:
        if number == 3:
            return flipped(piece)
        if number == 4:
            views = tuple(memoryview(bytes(view)) for view in piece.views)
            kept.append(replace(piece, views=views, release=lambda: None))
        if number != 5:
            return piece
        if is_cut:
            raise TransferCut("it broke")
        piece.release()
        return kept[0]  # for the second time, instead of another

    async with connected("memory", alter=disturb) as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        assert [request.only for request in it.transport.opened] == asked
        assert (report.num_asked_again, report.num_reopened) == (1, 1)
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


@pytest.mark.parametrize("name", ["shm", "tcp", "grpc"])
async def test_of_joined_planes_that_came_wrong_just_these_are_sent_again(name: str) -> None:
    came: list[tuple[range, int]] = []
    has_begun = asyncio.Event()

    def flip_last_byte(number: int, piece: KvPiece) -> KvPiece:
        came.append((piece.planes, piece.num_blocks))
        has_begun.set()
        if number != 1:
            return piece
        *others, last = (bytearray(view) for view in piece.views)
        last[-1] ^= 1
        piece.release()
        return replace(piece, views=tuple(map(memoryview, (*others, last))), release=lambda: None)

    async with connected(name, alter=flip_last_byte, joins_planes=True) as it:
        reservation, planes = await it.grant(), range(LAYOUT.num_planes)
        await it.compute(2 * LAYOUT.block_size)
        fetching = asyncio.create_task(it.fetch(reservation))
        await has_begun.wait()
        await it.compute()

        report = await fetching

        assert came[0] == came[-1] == (planes, 2)
        assert sum(len(of) * num for of, num in came[:-1]) == len(planes) * NUM_BLOCKS
        again = tuple(BlockRange(plane, 0, 2) for plane in planes)
        assert [request.only for request in it.transport.opened] == [(), again]
        assert (report.num_asked_again, report.num_duplicates) == (1, 0)
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


def with_damaged_checksums(piece: KvPiece) -> KvPiece:
    """As one whose checksums come behind its bytes, and were damaged on the way."""
    return replace(piece, checksums=b"", checksums_behind=ChecksumsBehind(piece.num_checksum_bytes))


@pytest.mark.parametrize(
    ("block_size", "damaged"),
    [(LAYOUT.block_size, 2), (2 * LAYOUT.block_size, 1)],
    ids=["of one plane all is there", "blocks are regrouped"],
)
async def test_a_piece_whose_checksums_are_damaged_is_asked_for_once_also_where_it_is_split(
    block_size: int, damaged: int
) -> None:
    ours = replace(LAYOUT, num_layers=8)
    theirs = replace(ours, block_size=block_size)

    def of_one_plane_then_damaged(number: int, piece: KvPiece) -> KvPiece:
        if number < damaged:
            return replace(next(piece.by_plane()), release=piece.release)
        return with_damaged_checksums(piece) if number == damaged else piece

    async with connected(
        "shm",
        alter=of_one_plane_then_damaged,
        layout=ours,
        decode_layout=theirs,
        joins_planes=True,
    ) as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        assert (report.num_asked_again, report.num_reopened) == (1, damaged - 1)
        assert "damaged on the way: asked for again" in report.notes[0]
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


class Older(Altering):
    """To a P that knows of no `only`, and sends everything from the first block on."""

    def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        return super().open(address, replace(request, only=()))


async def test_a_sender_too_old_to_send_a_piece_again_fails_the_transfer_at_its_first_bad_one() -> (
    None
):
    def flip_one(number: int, piece: KvPiece) -> KvPiece:
        return flipped(piece) if number == 3 else piece

    async with connected("grpc", alter=flip_one) as it:
        it.transport = Older(it.inner, flip_one)
        it.fetcher._transport = it.transport
        reservation = await it.grant()
        await it.compute()

        with pytest.raises(CorruptPiece, match="sends no piece a second time"):
            await it.fetch(reservation)

        await it.assert_nothing_is_left()
        assert [request.first_block for request in it.transport.opened] == [0, 0]


@each_transport
async def test_a_source_of_ever_corrupt_pieces_fails_the_transfer(name: str) -> None:
    async with connected(name, alter=lambda number, piece: flipped(piece)) as it:
        reservation = await it.grant()
        await it.compute()

        with pytest.raises(CorruptPiece, match="do not match their checksums"):
            await it.fetch(reservation)

        await it.assert_nothing_is_left()
        num_corrupt = it.decode.receiver.counters.num_corrupt[it.prefill.sender.epoch]
        assert num_corrupt == QUICK.max_asked_again + 1
        assert await it.ask() is Outcome.ABORTED


@each_transport
async def test_a_block_that_no_plane_has_cannot_be_asked_for_again(name: str) -> None:
    async with connected(name) as it:
        await it.grant()
        for span in (BlockRange(2, 0, 1), BlockRange(0, 3, 3), BlockRange(1, 5, NUM_BLOCKS + 1)):
            request = replace(opening(it.prefill, it.decode), only=(span,))

            with pytest.raises(TransferError, match=r"of plane \d asked for, there are 6 of 2"):
                await anext(it.transport.open(it.address, request))


@each_transport
async def test_settling_may_be_repeated_and_the_first_outcome_stays(name: str) -> None:
    async with connected(name) as it:
        await it.grant()
        await it.compute()
        assert await it.ask() is Outcome.OPEN

        answers = [
            await it.ask(Outcome.SEALED),
            await it.ask(Outcome.SEALED),
            await it.ask(Outcome.ABORTED),
            await it.ask(),
        ]

        assert answers == [Outcome.SEALED] * 4
        with pytest.raises(UnknownTransfer):
            await anext(it.transport.open(it.address, opening(it.prefill, it.decode)))
