"""What a gateway believes of the replicas, from the registry's word and from their own streams."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from tests.gateway.fleet.known_replicas import make_replica
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
from tests.in_process_fleet import running_fleet

from baton.core.clock import ManualClock
from baton.core.ids import Epoch, new_epoch
from baton.core.kv_events import KvChange, KvEvent, KvEvents
from baton.core.kv_pool import Holder, HolderKind
from baton.core.messages import Receipt
from baton.core.sampling import FinishReason
from baton.core.step_times import StepTimes
from baton.gateway.fleet import links as links_module
from baton.gateway.fleet.fleet import Fleet
from baton.gateway.fleet.links import ALIVE_FOR_S
from baton.gateway.fleet.placed import Placed
from baton.gateway.fleet.traffic import speeds_of
from baton.proto import replica_pb2 as pb
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
                lambda: fleet.link(replica.info.epoch).capacity_report.heard_at_s == clock()
            )
            await fleet.apply(snapshot())
            assert {"d"} <= names(fleet)

        assert names(fleet) == {"d"}  # nothing was heard of the other for two heartbeats' time
        assert list(fleet.open_decode) == [replica.info.epoch]
        await replica.stop()
        await until(lambda: not fleet.connected)
        await fleet.apply(snapshot())
        assert names(fleet) == set()


async def test_rest_that_is_said_again_is_heard_and_is_no_news_of_anything_else() -> None:
    clock = ManualClock()
    replica = ScriptedReplica("d", silent)
    measured = StepTimes(constant_s=0.01, num_decode_steps=3, age_s=5.0)
    async with fleet_of(replica, clock=clock) as fleet:
        link, candidate = fleet.link(replica.info.epoch), fleet.candidate(replica.info.epoch)
        assert candidate is not None

        async def say(**facts: Any) -> int:
            clock.advance(1.0)
            replica.capacity = replace(replica.capacity, **facts)
            replica.say_capacity()
            await until(lambda: link.capacity_report.heard_at_s == clock())
            assert fleet.view(PROMPT).decode.known([0])[0].heard_at_s == clock()
            return candidate.version

        news = await say(step_times=measured)
        assert await say(step_times=replace(measured, age_s=6.0)) == news
        assert await say(step_times=replace(measured, age_s=7.0)) == news
        assert speeds_of([link], clock())[replica.info.epoch].age_s == 7.0

        candidate.num_running = 1
        await say()
        assert candidate.num_running == 0
        await say(num_running=2)
        assert candidate.num_running == 2
        await say(num_running=0, max_open=3)
        assert link.capacity is not None
        assert link.capacity.max_open == 3


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
        fleet.book(placement(100), P.epoch)
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


async def test_tokens_placed_on_a_prefill_replica_count_for_as_long_as_they_are_waited_for() -> (
    None
):
    async with fleet_of(others=(P,)) as fleet:
        first, second = placement(100), placement(20)
        fleet.book(first, P.epoch)
        fleet.book(second, P.epoch)

        fleet.prompt_is_over(first.prompt, P.epoch)
        fleet.prompt_is_over(first.prompt, P.epoch)  # heard twice

        assert fleet.view(PromptNames()).prefill[0].candidate.num_open_tokens == 20


async def test_a_prefill_replica_that_has_lent_nothing_yet_gets_one_prompt_at_a_time() -> None:
    async with fleet_of(others=(P,)) as fleet:
        first, second = placement(100), placement(20)
        [view] = fleet.view(PromptNames()).prefill
        assert view.candidate.takes(first.prompt, 0)

        fleet.book(first, P.epoch)

        assert not view.candidate.takes(second.prompt, 0)
        fleet.prompt_is_over(first.prompt, P.epoch)
        assert view.candidate.takes(second.prompt, 0)


async def test_what_cannot_be_of_a_replicas_speed_is_not_believed_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    replica = ScriptedReplica("d", silent)
    sound = StepTimes(token_s=0.001, num_prompt_steps=99)
    others = [replace(sound, token_s=nan), replace(sound, pair_s=inf), replace(sound, token_s=-1.0)]
    async with fleet_of(replica) as fleet:
        candidate = fleet.candidate(replica.info.epoch)
        assert candidate is not None

        async def believed(times: StepTimes, slowness: float = 1.0) -> float:
            num_queued = replica.capacity.num_queued_tokens + 1
            said = replace(replica.capacity, step_times=times, slowness=slowness)
            replica.capacity = said
            replica.offer(8, num_queued_tokens=num_queued)
            link = fleet.link(replica.info.epoch)
            await until(lambda: link.capacity and link.capacity.num_queued_tokens == num_queued)
            return candidate.speed.prefill_s(1000, 0)

        assert await believed(sound) == 1.0
        for unsound in (*others, StepTimes(num_prompt_steps=99)):
            assert await believed(unsound) == 1.0
        assert await believed(sound, slowness=nan) == 1.0
        assert await believed(sound, slowness=2.0) == 2.0
    assert caplog.text.count("what cannot be") == 1


async def test_news_of_a_replica_reach_the_view_though_its_stream_stays() -> None:
    replica = ScriptedReplica("d", silent)
    async with fleet_of(replica) as fleet:
        await fleet.apply(snapshot(replace(replica.info, is_ready=False)))

        [view] = fleet.view(PromptNames()).decode
        assert (view.info.is_ready, view.is_connected) == (False, True)
        assert replica.num_sessions == 1


async def test_the_end_of_an_attempt_leaves_the_next_one_where_it_runs() -> None:
    async with fleet_of() as fleet:
        old, new = new_epoch(), new_epoch()
        fleet.has_started(REQUEST.request_id, old)
        fleet.has_started(REQUEST.request_id, new)

        fleet.has_ended(REQUEST.request_id, old)
        assert fleet.where_runs(REQUEST.request_id) == new
        fleet.has_ended(REQUEST.request_id, new)
        assert fleet.where_runs(REQUEST.request_id) is None


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


async def test_every_replica_is_asked_for_its_books_and_one_that_is_gone_says_so() -> None:
    async with running_fleet(prefill=1, decode=2) as running:
        gone = running.replicas["decode-2"].info  # type: ignore[index]
        await running.crash(gone.replica_id)

        replies = await running.dispatcher.fleet.links.inspect()

        assert len(replies) == 3
        assert isinstance(replies.pop(gone.epoch), Exception)
        for epoch, reply in replies.items():
            assert isinstance(reply, pb.InspectReply)
            assert reply.epoch == epoch
            assert reply.audit.num_blocks == reply.audit.free


async def test_what_is_wrong_with_blocks_is_told_to_who_asks_for_an_audit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links_module, "AUDIT_TIMEOUT_S", 0.0)
    monkeypatch.setattr(links_module, "AUDIT_S_PER_BLOCK", 1.0)  # large pools have longer
    async with running_fleet(prefill=0, decode=1) as running:
        [(name, engine)] = running.engines.items()
        lost = Holder(HolderKind.REQUEST, "lost")
        await running.replicas[name].worker.core.thread.call(lambda: engine.pool.grow(lost, 1))
        links = running.dispatcher.fleet.links

        [counted] = (await links.inspect()).values()
        [audited] = (await links.inspect(with_audit=True)).values()

        assert isinstance(counted, pb.InspectReply) and isinstance(audited, pb.InspectReply)
        assert (counted.audit.live, audited.audit.live) == (1, 1)
        assert counted.audit.free == audited.audit.free == counted.audit.num_blocks - 1
        assert not counted.audit.violations
        assert "request lost is unknown to its owner" in audited.audit.violations[0]
        await running.replicas[name].worker.core.thread.call(lambda: engine.pool.release(lost))


async def test_only_a_rate_that_has_moved_is_written_to_replicas_that_measured_none() -> None:
    async with fleet_of(others=(P,)) as fleet:
        [view] = fleet.view(PromptNames()).prefill
        table = fleet.view(PromptNames()).prefill.pool.table

        def hear(tokens_per_s: float) -> tuple[int, float]:
            seconds = 1000 / tokens_per_s
            fleet.hear(Receipt(prompt_tokens=1000, prefill_ms=seconds * 1e3), None)
            work_s = table.all.prefill_s(1000, np.zeros(len(table)))
            return table.version, float(work_s[0])

        version, work_s = hear(500.0)
        assert work_s == view.candidate.speed.prefill_s(1000, 0) == pytest.approx(2.0)

        assert hear(502.0) == (version, work_s)
        assert hear(1000.0)[1] == view.candidate.speed.prefill_s(1000, 0) < 1.8


async def test_a_link_is_learnt_of_the_replica_that_pulled_not_of_who_was_to_compute() -> None:
    replica = ScriptedReplica("d", silent)
    lender = make_replica("lender")
    async with fleet_of(replica, others=(P, lender)) as fleet:
        place = replace(
            placement(1000),
            decode=replica.info,
            prefill=(P.endpoint,),
            source=lender.endpoint,
        )
        placed = Placed(fleet, place, REQUEST, PROMPT)
        for _ in range(3):
            placed.hear(Receipt(pulled_tokens=1000, kv_bytes=10**6, transfer_ms=1e5))
        for _ in range(20):  # elsewhere all is well
            fleet.hear(Receipt(pulled_tokens=1000, kv_bytes=10**6, transfer_ms=1.0), None)

        slow_s, other_s = (
            fleet.meter.rates.fetch_s(1000, P.layout, (lender.epoch, taker))
            for taker in (replica.info.epoch, P.epoch)
        )
        assert slow_s > 1.5 * other_s
        placed.close(0)
