"""Ways that `auto` is held to: peers that none of them leads to are refused."""

from __future__ import annotations

import asyncio

import pytest
from tests.kv_transfer.transport.auto.neighbours import ADDRESS, RECEIVER, SENDER, Neighbours

from baton.core.errors import (
    InvalidConfig,
    NoTransport,
    StaleEpoch,
    TransferCut,
    TransportFailed,
)
from baton.kv_transfer.transport.auto.known_peers import Facts
from baton.kv_transfer.transports import TransportParts, create_transport


async def test_with_require_not_even_the_first_transfer_goes_another_way() -> None:
    it = Neighbours({"shm": 9.0, "grpc": 1.0}, require=("shm",))

    assert [await it.fetch() for _ in range(3)] == ["shm"] * 3
    assert it.by_name["grpc"].num_opened == 0


async def test_a_peer_that_nothing_required_leads_to_is_refused_loudly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = Neighbours({"gloo": 1.0, "grpc": 1.0}, require=("gloo",))
    it.control.facts = Facts(("shm", "grpc"), "host", "cpu")

    with pytest.raises(NoTransport, match=r"required \(gloo\) leads to .* sends by shm, grpc"):
        await it.auto.check(ADDRESS, SENDER, RECEIVER)
    with pytest.raises(NoTransport):
        await it.fetch()

    assert it.auto.metrics()["transport_refused_total"] == 2
    assert "nothing that is required" in caplog.text
    assert it.by_name["grpc"].num_opened == 0


async def test_a_peer_that_is_away_is_no_reason_to_refuse_it_for_ever() -> None:
    it = Neighbours({"shm": 1.0}, require=("shm",))
    facts, it.control.facts = it.control.facts, TransferCut("not there yet")
    with pytest.raises(TransferCut, match="not there yet"):
        await it.auto.check(ADDRESS, SENDER, RECEIVER)
    with pytest.raises(TransferCut):
        await it.fetch()
    it.control.facts = facts

    await it.auto.check(ADDRESS, SENDER, RECEIVER)
    assert await it.fetch() == "shm"


async def test_without_require_every_peer_may_be_asked() -> None:
    it = Neighbours({"shm": 1.0, "grpc": 1.0})
    it.control.facts = StaleEpoch("somebody else")

    await it.auto.check(ADDRESS, SENDER, RECEIVER)

    assert it.control.num_met == 0


async def test_many_first_transfers_meet_the_peer_once() -> None:
    it = Neighbours({"shm": 1.0}, require=("shm",))

    assert await asyncio.gather(*(it.fetch() for _ in range(5))) == ["shm"] * 5

    assert it.control.num_met == 1


async def test_a_cancelled_first_transfer_does_not_keep_others_from_meeting() -> None:
    it = Neighbours({"shm": 1.0}, require=("shm",))
    first = asyncio.create_task(it.fetch())
    second = asyncio.create_task(it.fetch())
    await asyncio.sleep(0)

    first.cancel()

    assert await second == "shm"
    assert it.control.num_met == 1


async def test_when_every_way_has_failed_the_one_that_rested_longest_is_tried() -> None:
    it = Neighbours({"shm": 1.0, "gloo": 2.0, "grpc": 3.0}, require=("shm", "gloo"))
    for name in ("shm", "gloo"):
        it.by_name[name].error = TransportFailed("out of order")
        with pytest.raises(TransportFailed):
            await it.fetch()
        it.by_name[name].error = None
        it.clock.now += 1

    assert await it.fetch() == "shm"


def test_requiring_what_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(InvalidConfig, match="'pigeon'; there are memory, shm"):
        create_transport("auto", TransportParts(require=("shm", "pigeon")))
