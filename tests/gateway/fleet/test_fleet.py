"""What a gateway believes of the replicas, from the registry's word and from their own streams."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.gateway.fleet.scripted_replica import ScriptedReplica, snapshot, until, update
from tests.gateway.fleet.small_fleet import (
    HASHES,
    PROMPT,
    REQUEST,
    P,
    fleet_of,
    names,
    placement,
    silent,
)

from baton.core.clock import ManualClock
from baton.core.ids import Epoch, new_epoch
from baton.core.kv_events import KvChange, KvEvent, KvEvents
from baton.core.sampling import FinishReason
from baton.gateway.fleet.fleet import Fleet
from baton.gateway.fleet.links.links import ALIVE_FOR_S
from baton.proto.channels import Channels
from baton.router.cache.prompt_names import PromptNames


async def test_a_replica_that_the_registry_does_not_hear_stays_while_its_stream_lives() -> None:
    clock = ManualClock()
    replica, other = ScriptedReplica("d", silent), ScriptedReplica("other", silent)
    async with fleet_of(replica, other, clock=clock) as fleet:
        for _ in range(2):
            clock.advance(ALIVE_FOR_S)
            replica.say_capacity()
            await until(
                lambda: fleet.link(replica.info.epoch).capacity_report.received_at_s == clock()
            )
            await fleet.apply(snapshot())
            assert {"d"} <= names(fleet)

        assert names(fleet) == {"d"}  # nothing was heard of the other for two heartbeats' time
        assert list(fleet.open_decode) == [replica.info.epoch]
        await replica.stop()
        await until(lambda: not fleet.connected)
        await fleet.apply(snapshot())
        assert names(fleet) == set()


async def test_a_replica_that_said_farewell_finishes_what_it_has_and_gets_nothing_new() -> None:
    replica = ScriptedReplica("d", silent)
    async with fleet_of(replica) as fleet:
        attempt = fleet.link(replica.info.epoch).open(REQUEST)

        await fleet.apply(replace(snapshot(), left=(replica.info.epoch,)))

        [view] = fleet.view(PromptNames()).decode
        assert (view.is_connected, view.info.is_ready) == (True, False)
        replica.say(update(REQUEST, 1, finish=FinishReason.LENGTH))
        assert (await attempt.next()).tokens == (1,)
        attempt.close(1)
        await fleet.apply(snapshot())
        assert not fleet.view(PromptNames()).decode


async def test_a_replica_that_the_registry_lost_and_found_again_is_as_before() -> None:
    replica = ScriptedReplica("d", silent)
    async with fleet_of(replica) as fleet:
        fleet.link(replica.info.epoch).open(REQUEST)
        await fleet.apply(replace(snapshot(), left=(replica.info.epoch,)))

        await fleet.apply(snapshot(replica.info))

        [view] = fleet.view(PromptNames()).decode
        assert (view.is_connected, view.info.is_ready, view.replica.num_open) == (True, True, 1)
        assert replica.num_sessions == 1


async def test_a_replica_whose_stream_broke_is_known_until_the_registry_drops_it() -> None:
    replica = ScriptedReplica("d", silent)
    async with fleet_of(replica) as fleet:
        await replica.stop()
        await until(lambda: not fleet.connected)
        assert names(fleet) == {"d"}

        await fleet.apply(snapshot())

        assert names(fleet) == set()
        assert not fleet.view(PromptNames()).decode


async def test_a_prefill_replica_has_no_stream_so_the_registrys_word_counts() -> None:
    async with fleet_of(others=(P,)) as fleet:
        await fleet.apply(snapshot())

        assert names(fleet) == set()


async def test_what_is_known_of_a_replica_goes_with_it() -> None:
    async with fleet_of(others=(P,)) as fleet:
        three_blocks = KvEvent(KvChange.STORED, b"".join(HASHES))
        fleet.index.apply(
            P.epoch, KvEvents(first_sequence=1, events=(three_blocks,), is_snapshot=True)
        )
        fleet.expect(PROMPT, P.epoch)
        fleet.loads.book(placement(100), P.epoch)
        [view] = fleet.view(PROMPT).prefill
        assert view.num_cached_tokens == view.num_expected_tokens == 3 * P.layout.block_size

        await fleet.apply(snapshot())
        await fleet.apply(snapshot(P))

        [view] = fleet.view(PROMPT).prefill
        assert (view.num_cached_tokens, view.num_expected_tokens) == (0, 0)
        assert view.candidate.num_open_tokens == 0


async def test_each_replica_has_what_it_has_by_the_names_of_its_own_block_size() -> None:
    wide = replace(P, epoch=Epoch("wide"), layout=replace(P.layout, block_size=6))
    replica = ScriptedReplica("d", silent)
    async with fleet_of(replica, others=(P, wide)) as fleet:
        for info in (replica.info, P, wide):
            stored = KvEvent(KvChange.STORED, b"".join(PROMPT.under(info.layout)))
            events = KvEvents(first_sequence=1, events=(stored,), is_snapshot=True)
            fleet.index.apply(info.epoch, events)
            fleet.expect(PROMPT, info.epoch)

        view = fleet.view(PROMPT)
        told = [(v.num_cached_tokens, v.num_expected_tokens) for v in (*view.decode, *view.prefill)]

        assert told == [(12, 12)] * 3


async def test_a_replica_without_kv_events_serves_all_the_same() -> None:
    replica = ScriptedReplica("d", silent)  # knows nothing of WatchKv
    async with fleet_of(replica) as fleet:
        [view] = fleet.view(PROMPT).decode

        assert (view.replica.is_open, view.num_cached_tokens) == (True, 0)
        assert not fleet.links.kv_knowledge()[replica.info.epoch].is_synced


async def test_news_of_a_replica_reach_the_view_though_its_stream_stays() -> None:
    replica = ScriptedReplica("d", silent)
    async with fleet_of(replica) as fleet:
        await fleet.apply(snapshot(replace(replica.info, is_ready=False)))

        [view] = fleet.view(PromptNames()).decode
        assert (view.info.is_ready, view.is_connected) == (False, True)
        assert replica.num_sessions == 1


async def test_a_broken_stream_is_opened_again() -> None:
    replica = ScriptedReplica("d", silent)
    async with fleet_of(replica) as fleet:
        replica.cut()

        await until(lambda: replica.num_sessions == 2 and fleet.connected)


async def test_a_listener_that_fails_does_not_end_the_link(
    caplog: pytest.LogCaptureFixture,
) -> None:
    has_failed = False

    def on_change() -> None:
        nonlocal has_failed
        if fleet.connected and not has_failed:  # the first frame has come
            has_failed = True
            raise RuntimeError("the listener is broken")

    replica = ScriptedReplica("d", silent)
    await replica.start()
    fleet = Fleet(new_epoch(), on_change, Channels())
    try:
        await fleet.apply(snapshot(replica.info))

        await until(lambda: replica.num_sessions == 2 and fleet.connected)

        assert "the link to d failed" in caplog.text
    finally:
        await fleet.close()
        await replica.stop()
