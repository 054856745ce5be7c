"""A gateway that has a thousand replicas to connect to connects to some at a time."""

from __future__ import annotations

import asyncio

import pytest
from tests.gateway.fleet.known_replicas import make_replica
from tests.gateway.fleet.scripted_replica import snapshot

from baton.core.ids import new_epoch
from baton.core.replicas import Role
from baton.gateway.fleet import fleet as fleet_module
from baton.gateway.fleet.fleet import Fleet
from baton.gateway.fleet.links import opening_slots as opening_module
from baton.gateway.fleet.links.kept_stream import jittered
from baton.gateway.fleet.links.opening_slots import OpeningSlots
from baton.proto.channel_options import CHANNEL_OPTIONS
from baton.proto.channels import Channels
from baton.router.cache.prompt_names import PromptNames

FLEET = [make_replica(f"d{number}") for number in range(4)]
FLEET += [make_replica(f"p{number}", role=Role.PREFILL) for number in range(4)]


class CountingChannels(Channels):
    num_new = 0

    def new(self, address: str, options=CHANNEL_OPTIONS):  # type: ignore[no-untyped-def]
        self.num_new += 1
        return super().new(address, options)


async def test_who_comes_when_all_have_a_turn_waits_until_one_of_them_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening_module, "MAX_OPENING", 2)
    opening = OpeningSlots(turn_s=600.0)
    first, _ = await opening.turn(), await opening.turn()
    third, fourth = asyncio.create_task(opening.turn()), asyncio.create_task(opening.turn())
    await asyncio.sleep(0)

    first.end()
    first.end()  # which makes room for no second one
    turn = await third
    await asyncio.sleep(0)

    assert not fourth.done()
    turn.end()
    await fourth


async def test_while_nothing_is_placed_no_more_connect_than_can_be_asked_for_their_caches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening_module, "MAX_OPENING", 1)
    is_starting = True
    asking = OpeningSlots(turn_s=600.0)
    opening = OpeningSlots(600.0, behind=asking, is_held_back=lambda: is_starting)
    asked = await asking.turn()
    (await opening.turn()).end()  # nobody waits to be asked
    next_asked = asyncio.create_task(asking.turn())
    await asyncio.sleep(0)

    held = asyncio.create_task(opening.turn())
    for _ in range(9):
        await asyncio.sleep(0)
    assert not held.done() and opening.num_waiting == 1
    asked.end()
    await next_asked
    (await held).end()

    waiting = asyncio.create_task(asking.turn())
    await asyncio.sleep(0)
    is_starting = False
    await opening.turn()
    waiting.cancel()


async def test_nobody_has_a_turn_for_longer_than_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening_module, "MAX_OPENING", 1)
    opening = OpeningSlots(turn_s=0.01)
    async with asyncio.timeout(120):
        for _ in range(3):
            await opening.turn()


async def test_a_replica_is_met_over_one_connection_and_others_go_on_between_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet_module, "MET_AT_ONCE", 1)
    channels, num_known = CountingChannels(), list[int]()
    fleet = Fleet(new_epoch(), lambda: None, channels)
    role_by_epoch = {info.epoch: info.role for info in FLEET}

    async def look() -> None:
        while len(fleet.replicas) < len(FLEET):
            num_known.append(len(fleet.replicas))
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    try:
        await fleet.apply(snapshot(*FLEET))
        await looking
        met = [role_by_epoch[epoch] for epoch in fleet.links.watches]
    finally:
        await fleet.close()

    assert met == 4 * [Role.PREFILL, Role.DECODE]
    assert channels.num_new == len(FLEET)
    assert len(set(num_known)) > len(FLEET) // 2
    assert fleet.replicas == tuple(FLEET)


async def test_others_go_on_while_many_leave_and_who_is_in_a_pool_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet_module, "MET_AT_ONCE", 1)
    fleet, nums_left = Fleet(new_epoch(), lambda: None, Channels()), set[int]()

    async def look() -> None:
        pool = fleet.view(PromptNames()).prefill.pool
        while len(pool):
            nums_left.add(len(pool))
            assert {one.info.epoch for one in pool.replicas} <= {
                one.epoch for one in fleet.replicas
            }
            await asyncio.sleep(0)

    try:
        await fleet.apply(snapshot(*FLEET))
        looking = asyncio.create_task(look())
        await fleet.apply(snapshot(FLEET[0]))
        await looking
    finally:
        await fleet.close()

    assert nums_left == {1, 2, 3, 4}
    assert fleet.replicas == (FLEET[0],)


def test_streams_that_broke_together_come_back_at_different_moments() -> None:
    pauses_s = {jittered(2.0) for _ in range(100)}

    assert len(pauses_s) > 50
    assert min(pauses_s) >= 1.0 and max(pauses_s) <= 3.0
