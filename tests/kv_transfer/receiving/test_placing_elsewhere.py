"""Pieces for blocks that do not lie in memory that anybody may look into, as those of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.kv_transfer.replicas import LAYOUT
from tests.kv_transfer.world import KV_BYTES, NUM_BLOCKS, connected

from baton.engine.memory.kv_cache import KvCache
from baton.kv_transfer.handoff.messages import KvPiece


class Elsewhere:
    """A cache whose tensors are all there is of its blocks."""

    def __init__(self, cache: KvCache, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: list[tuple[range, int]] = []
        """The planes, and the number of blocks, of each write."""
        write_blocks = cache.write_blocks

        def noted(blocks: Sequence[int], planes: range, data: memoryview) -> None:
            self.written.append((planes, len(blocks)))
            write_blocks(blocks, planes, data)

        def one_by_one(*_: object) -> None:
            raise AssertionError("a block at a time")

        monkeypatch.setattr(cache, "_memory", [])
        monkeypatch.setattr(cache, "write_blocks", noted)
        monkeypatch.setattr(cache, "write_part", one_by_one)


@pytest.mark.parametrize("name", ["shm", "tcp", "grpc"])
async def test_a_whole_piece_is_one_write_and_a_bad_one_is_sent_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flip_a_byte_of_the_first(number: int, piece: KvPiece) -> KvPiece:
        if number != 1:
            return piece
        first, *others = (bytearray(view) for view in piece.views)
        first[0] ^= 1
        piece.release()
        return replace(piece, views=tuple(map(memoryview, (first, *others))), release=lambda: None)

    async with connected(name, alter=flip_a_byte_of_the_first, joins_planes=True) as it:
        elsewhere = Elsewhere(it.decode.cache, monkeypatch)
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        planes = range(LAYOUT.num_planes)
        assert elsewhere.written == [(planes, NUM_BLOCKS)] * 2
        assert (report.num_bytes, report.num_asked_again) == (2 * KV_BYTES, 1)
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


def test_blocks_of_other_lengths_are_refused() -> None:
    cache = KvCache(LAYOUT, 4)
    size = LAYOUT.layer_block_bytes

    with pytest.raises(ValueError, match="planes, blocks and bytes"):
        cache.write_blocks([1, 2], range(2), cache.scratch(3 * size))

    data = cache.scratch(4 * size)
    data[:] = bytes(range(256)) * (4 * size // 256) + bytes(4 * size % 256)
    cache.write_blocks([3, 1], range(2), data)
    written = [bytes(cache.view(block, plane)) for plane in range(2) for block in (3, 1)]
    assert b"".join(written) == bytes(data)
    assert not any(cache.view(2, 0)) and not any(cache.view(0, 1))
