"""When a source whose KV comes too slowly is given up, and when it is not."""

from __future__ import annotations

import asyncio

import pytest

from baton.core.errors import Unavailable
from baton.core.ids import Epoch, ReplicaId
from baton.core.replicas import ReplicaAddress
from baton.kv_transfer.receiving import source_patience, source_watch
from baton.kv_transfer.receiving.source_patience import MissingKv, SourcePatience
from baton.kv_transfer.receiving.source_watch import SourceWatch

PEER = ReplicaAddress(replica_id=ReplicaId("decode-1"), epoch=Epoch("d"), address="there:1")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rules in a hundredth of the time."""
    monkeypatch.setattr(source_watch, "LOOK_S", 0.005)
    monkeypatch.setattr(source_patience, "LEAST_S", 0.1)
    monkeypatch.setattr(source_patience, "MOST_S", 0.1)


async def bring(
    watch: SourceWatch,
    piece_bytes: int,
    num_bytes: int,
    *,
    listens: bool,
    transport: str = "",
) -> None:
    """Pieces that come one a turn of the event loop, until there were so many bytes, or looks."""
    watch.granted()
    watch.is_coming()
    num_heard = num_turns = 0
    while num_heard < num_bytes and num_turns < 2000:
        if listens:
            with watch.listening():
                await asyncio.sleep(0.001)
        else:
            await asyncio.sleep(0.001)
        watch.observe(piece_bytes, transport)
        num_heard += piece_bytes
        num_turns += 1


async def test_a_source_that_never_falls_silent_is_given_up_when_all_it_does_is_trickle() -> None:
    patience = SourcePatience()
    patience.came(PEER.epoch, "", 100 << 20, 1.0, 0.0)  # as a rule 100 MiB/s
    watch = SourceWatch(patience, PEER)

    with pytest.raises(Unavailable, match=r"decode-1 sent 0\.\d+ MiB/s .* 1\.56\d are due"):
        async with watch.waits():
            await bring(watch, 10, 1 << 30, listens=True)

    now = asyncio.get_running_loop().time()
    assert "MiB/s" in patience.why_avoided(PEER.epoch, now)
    assert patience.num_coming == 0
    assert patience.least_bytes_per_s(PEER.epoch, "") == (100 << 20) / 2 / source_patience.TOO_SLOW


async def test_what_was_due_while_many_came_is_not_more_once_one_is_left() -> None:
    patience = SourcePatience()
    patience.came(PEER.epoch, "", 100 << 20, 1.0, 0.0)
    patience.num_coming = 999
    watch = SourceWatch(patience, PEER)

    async with watch.waits():
        await bring(watch, 512, 400 * 512, listens=True)
        patience.num_coming = 1
        for _ in range(200):
            with watch.listening():
                await asyncio.sleep(0.001)
            watch.observe(32 << 10)

    assert watch._due_bytes < watch._num_coming_bytes


async def test_what_comes_by_another_transport_is_not_held_to_the_rate_of_the_first() -> None:
    patience = SourcePatience()
    patience.came(PEER.epoch, "tcp", 1 << 40, 1.0, 0.0)
    patience.num_coming = 999
    watch = SourceWatch(patience, PEER)

    async with watch.waits():
        await bring(watch, 1 << 10, 400 << 10, listens=True, transport="grpc")

    assert watch._coming_s >= 0.2
    assert patience.least_bytes_per_s(PEER.epoch, "tcp") == (1 << 40) / 64 / 999


@pytest.mark.parametrize("case", ["quick enough", "not listened to"])
async def test_one_that_is_quick_enough_or_not_listened_to_is_waited_for(case: str) -> None:
    patience = SourcePatience()
    patience.came(PEER.epoch, "", 100 << 20, 1.0, 0.0)
    watch = SourceWatch(patience, PEER)

    async with watch.waits():
        if case == "quick enough":
            await bring(watch, 1 << 20, 400 << 20, listens=True)
        else:
            await bring(watch, 10, 3000, listens=False)

    assert watch._coming_s >= 0.2 or case == "not listened to"
    assert not patience.why_avoided(PEER.epoch, asyncio.get_running_loop().time())
    assert patience.num_coming == 0


@pytest.mark.parametrize("piece_bytes", [0, 10])
async def test_what_is_late_is_waited_for_no_longer_than_it_would_take_to_be_computed(
    monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(source_patience, "MOST_S", 60.0)
    monkeypatch.setattr(source_patience, "LATE_PART", 0.002)
    patience = SourcePatience()

    async def wait(here_s: float) -> None:
        """For a source that is silent, or sends next to nothing."""
        watch = SourceWatch(patience, PEER)
        left = MissingKv(num_bytes=1 << 30, here_s=here_s)
        async with watch.waits():
            watch.granted()
            watch.is_coming(lambda: left)
            for _ in range(300):
                with watch.listening():
                    await asyncio.sleep(0.001)
                if piece_bytes:
                    watch.observe(piece_bytes)

    await wait(1000.0)
    for _ in range(2):
        now = asyncio.get_running_loop().time()
        assert not patience.why_avoided(PEER.epoch, now)  # perhaps that one alone was late
        with pytest.raises(Unavailable, match=r"what is missing is computed in 0\.0 s"):
            await wait(0.01)
    now = asyncio.get_running_loop().time()
    assert "is computed in" in patience.why_avoided(PEER.epoch, now)
