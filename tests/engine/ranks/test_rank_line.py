"""What a lead asks its ranks beside the passes."""

from __future__ import annotations

import asyncio
import pickle
import socket
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
from tests.warm_processes import warm_processes

from baton.core.errors import TransferCut, TransportFailed
from baton.engine.ranks.assemble import line_to
from baton.engine.ranks.rank_line import RankLine, RankPlace, RankPort

LIMIT_S = 60.0
"""Only keeps a failing test from hanging."""


class NotToBeUnpacked(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


async def echoed(data: bytes) -> bytes:
    return data


async def failing(is_known: bool) -> None:
    raise TransferCut("of its own") if is_known else NotToBeUnpacked(1, 2)


async def hanging() -> None:
    await asyncio.Event().wait()


def test_a_slow_answer_holds_up_no_other_and_what_is_raised_there_is_raised_here() -> None:
    may_end = threading.Event()

    async def waiting() -> str:
        await asyncio.to_thread(may_end.wait, LIMIT_S)
        return "at last"

    port = RankPort({"echo": echoed, "fail": failing, "wait": waiting})
    line = RankLine(port.place, 1)

    slow = line.ask("wait")
    assert line.ask("echo", bytes(3 << 20)).result(LIMIT_S) == bytes(3 << 20)
    with pytest.raises(TransferCut, match="of its own"):
        line.ask("fail", True).result(LIMIT_S)
    with pytest.raises(RuntimeError, match="NotToBeUnpacked: 1 and 2"):
        line.ask("fail", False).result(LIMIT_S)
    with pytest.raises(KeyError):
        line.ask("something else").result(LIMIT_S)
    assert not slow.done()
    may_end.set()
    assert slow.result(LIMIT_S) == "at last"

    line.close()
    line.close()


def test_who_does_not_know_the_key_is_turned_away() -> None:
    port = RankPort({"echo": echoed})
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.settimeout(LIMIT_S)
        stranger.connect(f"\0{port.place.name}")
        stranger.sendall(bytes(len(port.place.key)))
        assert stranger.recv(1) == b""

    line = RankLine(port.place, 1)

    assert line.ask("echo", b"here").result(LIMIT_S) == b"here"
    line.close()


def test_the_lead_does_without_a_rank_that_no_socket_leads_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Ranks:
        def word_of(self, name: str, rank: int) -> bytes:
            return pickle.dumps(RankPlace("baton-rank-of-nobody", b""))

    ranks: Any = Ranks()

    assert line_to(ranks, 1) is None
    assert "rank 1 cannot be asked" in caplog.text


def serve(pipe: Connection) -> None:
    pipe.send(RankPort({"hang": hanging, "echo": echoed}).place)
    pipe.recv()


@pytest.fixture
def pipe_and_kill() -> Iterator[tuple[Connection, object]]:
    warm = warm_processes()
    ours, theirs = warm.Pipe()
    process = warm.Process(target=serve, args=(theirs,), daemon=True)
    process.start()

    def kill() -> None:
        process.kill()
        process.join()

    yield ours, kill
    kill()


def test_a_rank_that_is_killed_fails_what_was_asked_and_what_is_asked_later(
    pipe_and_kill: tuple[Connection, object],
) -> None:
    pipe, kill = pipe_and_kill
    line = RankLine(pipe.recv(), 3)
    asked = line.ask("hang")
    assert line.ask("echo", b"it has begun").result(LIMIT_S)

    assert callable(kill)
    kill()

    for answer in (asked, line.ask("echo", b"")):
        with pytest.raises(TransportFailed, match="rank 3 of this replica is gone"):
            answer.result(LIMIT_S)
