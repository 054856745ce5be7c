"""Which decode replica's knowledge of a stream is gone on with, and who is waited for."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from baton.core.clock import monotonic
from baton.core.errors import Unavailable
from baton.core.ids import Epoch, RequestId
from baton.core.messages import GenerateRequest, ParkedStream
from baton.core.parking import TakeStream
from baton.gateway.fleet.links.decode_link import DecodeLink
from baton.gateway.fleet.links.links import Links
from baton.proto.channels import Channels
from baton.router.cache.kv_index import KvIndex

WANTED = TakeStream("s", b"owner")


class Scripted:
    """A link to a replica that knows so many tokens of the stream, or answers otherwise."""

    def __init__(self, knows: int | BaseException | None, when: asyncio.Event | None = None):
        self.knows = knows
        self.when = when
        self.has_answered = False

    async def take_stream(self, wanted: TakeStream) -> ParkedStream | None:
        if self.when is not None:
            await self.when.wait()
        self.has_answered = True
        if isinstance(self.knows, BaseException):
            raise self.knows
        if self.knows is None:
            return None
        request = GenerateRequest(
            request_id=RequestId("r"), attempt=1, prompt=(1,), output=tuple(range(self.knows))
        )
        return ParkedStream(request=request)


def links_to(*scripted: Scripted) -> Links:
    links = Links(Epoch("g"), KvIndex(), Channels(), monotonic)
    links.decode = {
        Epoch(str(number)): cast("DecodeLink", link) for number, link in enumerate(scripted)
    }
    return links


async def test_who_has_it_is_gone_on_with_though_another_hangs_and_that_one_is_told_too() -> None:
    may_answer = asyncio.Event()
    hanging = Scripted(None, may_answer)
    links = links_to(Scripted(None), hanging, Scripted(7), Scripted(Unavailable("gone")))

    async with asyncio.timeout(60):
        parked = await links.take_stream(WANTED)

    assert parked is not None and len(parked.request.output) == 7
    assert not hanging.has_answered
    may_answer.set()
    async with asyncio.timeout(60):
        while not hanging.has_answered:  # what runs of it there ends all the same
            await asyncio.sleep(0)


async def test_of_several_that_answer_the_one_that_knows_most_is_gone_on_with() -> None:
    parked = await links_to(Scripted(3), Scripted(9), Scripted(5)).take_stream(WANTED)

    assert parked is not None and len(parked.request.output) == 9


async def test_while_one_cannot_be_asked_nobody_says_that_there_is_no_such_stream() -> None:
    assert await links_to(Scripted(None), Scripted(None)).take_stream(WANTED) is None
    with pytest.raises(Unavailable, match="gone"):
        await links_to(Scripted(None), Scripted(Unavailable("gone"))).take_stream(WANTED)


async def test_who_asks_no_more_asks_nobody() -> None:
    hanging = Scripted(None, asyncio.Event())
    asking = asyncio.create_task(links_to(hanging).take_stream(WANTED))
    await asyncio.sleep(0.01)

    asking.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asking
    assert len(asyncio.all_tasks()) == 1


async def test_one_that_may_be_the_only_one_to_know_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("baton.gateway.fleet.links.links.OTHERS_S", 0.01)
    may_answer = asyncio.Event()
    links = links_to(Scripted(None), Scripted(7, may_answer))
    asking = asyncio.create_task(links.take_stream(WANTED))
    await asyncio.sleep(0.1)
    assert not asking.done()

    may_answer.set()

    parked = await asking
    assert parked is not None and len(parked.request.output) == 7
