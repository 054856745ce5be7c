"""KV goes from the memory of P's ranks to that of D's, one stream for each pair of ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.engine.ranks.sharded_caches import in_tensor_ranks
from tests.kv_transfer.replicas import LAYOUT, PROMPT, TRANSFER
from tests.kv_transfer.world import NUM_BLOCKS, World, connected_ranks

from baton.core.block_views import BlockViews
from baton.engine.ranks.sharded_cache import ShardedCache
from baton.kv_transfer.handoff.messages import KvPiece

FOUR_HEADS = replace(LAYOUT, num_kv_heads=4)


async def handed_over(it: World) -> list[tuple[int, int]]:
    """Every byte is right; the heads that each stream was opened for."""
    reservation = await it.grant()
    await it.compute()
    report = await it.fetch(reservation)
    assert report.num_bytes >= NUM_BLOCKS * FOUR_HEADS.block_bytes
    await it.on_d.call(lambda: it.decode.adopt(TRANSFER, PROMPT))
    assert it.decode.holds_kv(TRANSFER)
    wanted = [opened.layout for opened in it.transport.opened]
    return sorted({(heads.first_kv_head, heads.stop_kv_head) for heads in wanted})


@pytest.mark.parametrize("name", ["shm", "tcp", "gloo", "grpc"])
async def test_two_ranks_hand_over_to_two_and_no_lead_puts_heads_together(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected_ranks(name, FOUR_HEADS, (2, 2)) as it:
        reservation = await it.grant()
        await it.compute()
        monkeypatch.setattr(ShardedCache, "view", _nobody)  # heads put together, block by block
        monkeypatch.setattr(ShardedCache, "write_blocks", _nobody)  # or taken apart
        monkeypatch.setattr(ShardedCache, "write_part", _nobody)
        await it.fetch(reservation)
        monkeypatch.undo()

        await it.on_d.call(lambda: it.decode.adopt(TRANSFER, PROMPT))
        assert it.decode.holds_kv(TRANSFER)
        wanted = [opened.layout.first_kv_head for opened in it.transport.opened]
        assert sorted(wanted) == [0, 2]
        await it.on_d.call(lambda: it.decode.finish(TRANSFER))
        await it.assert_nothing_is_left()


def _nobody(*_: object) -> None:
    raise AssertionError("what ranks send and receive is looked at where it lies")


@pytest.mark.parametrize(
    ("num_ranks", "expected"),
    [
        ((4, 2), [(0, 1), (1, 2), (2, 3), (3, 4)]),
        ((2, 4), [(0, 1), (1, 2), (2, 3), (3, 4)]),
        ((1, 2), [(0, 2), (2, 4)]),
        ((2, 1), [(0, 2), (2, 4)]),
    ],
)
async def test_each_pair_of_ranks_has_a_stream_of_its_own(
    num_ranks: tuple[int, int], expected: list[tuple[int, int]]
) -> None:
    async with connected_ranks("memory", FOUR_HEADS, num_ranks) as it:
        assert await handed_over(it) == expected


@pytest.mark.parametrize("name", ["memory", "shm"])
async def test_kv_that_is_regrouped_comes_on_one_stream(name: str) -> None:
    larger = replace(FOUR_HEADS, block_size=8)
    async with connected_ranks(name, FOUR_HEADS, (2, 2), decode_layout=larger) as it:
        assert await handed_over(it) == [(0, 4)]


async def test_a_byte_that_is_wrong_in_one_ranks_stream_is_asked_for_there_alone() -> None:
    def spoil(number: int, piece: KvPiece) -> KvPiece:
        if number != 1:
            return piece
        views = [memoryview(bytearray(view)) for view in piece.views]
        views[0][0] ^= 1
        return replace(piece, views=views)

    async with connected_ranks("grpc", FOUR_HEADS, (2, 2), alter=spoil) as it:
        assert await handed_over(it) == [(0, 2), (2, 4)]
        again = [opened for opened in it.transport.opened if opened.only]
        assert len(again) == 1


def test_a_ranks_heads_are_seen_where_they_lie() -> None:
    cache = in_tensor_ranks(FOUR_HEADS, 2, 3)
    size = FOUR_HEADS.unit_bytes

    views = cache.views((2, 0), range(2))
    later = cache.views((2, 0), range(2))
    assert bytes(views[0]) == bytes(4 * size)
    cache.write(2, 1, memoryview(b"\5" * 4 * size))

    of_rank = later.part(2 * size, 2 * size)  # type: ignore[attr-defined]
    assert isinstance(of_rank, BlockViews)
    assert [bytes(view) for view in of_rank][2] == b"\5" * 2 * size
    assert of_rank[0].readonly
    with pytest.raises(ValueError, match="in pieces"):
        cache.writables((0,), range(1))[0]
