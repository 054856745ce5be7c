"""A replica takes the other role under load: nobody notices, and nothing is loaded or lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest
from tests.in_process_fleet import Answer
from tests.services.migrating import LONG, MAX_TOKENS, PROMPT, SAMPLED, slow_down
from tests.services.turning import turning_fleet

from baton.core.errors import InvalidRequest, Unavailable
from baton.core.kv_pool import Holder, HolderKind
from baton.core.replicas import Membership, ReplicaInfo, Role
from baton.platform.config.deployment import override
from baton.platform.registry.registry import Registry
from baton.platform.replica import serving


async def test_replicas_swap_roles_under_load_and_no_token_is_lost_or_computed_twice() -> None:
    async with turning_fleet(prefill=2, decode=2) as turning:
        fleet = turning.fleet
        samplings = [replace(SAMPLED, seed=i, max_tokens=60) for i in range(4)]

        async def ask_all() -> list[Answer]:
            return [await fleet.ask([one.seed, *PROMPT], one) for one in samplings]

        undisturbed = await ask_all()
        slow_down(turning.engines["decode-3"])
        asking = [
            asyncio.create_task(fleet.ask([seed, *PROMPT], replace(LONG, seed=seed)))
            for seed in range(90, 96)
        ]
        async with asyncio.timeout(60):
            while not turning.engines["decode-3"].num_running:
                await asyncio.sleep(0.002)

        await turning.flip("decode-3", "prefill")
        await turning.flip("prefill-1", "decode")
        answers = await asyncio.gather(*asking)
        await turning.until(decode_3=Role.PREFILL, prefill_1=Role.DECODE)

        assert all(len(answer.tokens) == MAX_TOKENS for answer in answers)
        moved = [answer.receipt for answer in answers if answer.receipt.attempts > 1]
        assert moved
        for receipt in moved:
            assert receipt.computed_tokens <= len(PROMPT) + 1 + MAX_TOKENS - 1
        for name in ("decode-4", "prefill-2"):  # the other two alone do the work now
            await fleet.dispatcher.drain(name, is_forced=False)
        assert [one.tokens for one in await ask_all()] == [one.tokens for one in undisturbed]
        new = (await fleet.ask([77, *PROMPT])).receipt
        assert (new.prefill_replica, new.decode_replica) == ("decode-3", "prefill-1")
        for name in turning.serving:
            assert (await turning.core(name).audit()).violations == ()


async def test_one_that_looks_texts_up_drafts_as_soon_as_it_decodes() -> None:
    changes = {"decode.speculation.method": "suffix", "decode.speculation.adaptive": False}
    async with turning_fleet(prefill=2, decode=1, **changes) as turning:
        ask = partial(turning.fleet.ask, PROMPT, SAMPLED)
        before = await ask()
        assert turning.engines["prefill-1"].stats.num_drafted == 0

        await turning.flip("prefill-1", "decode")
        await turning.until(prefill_1=Role.DECODE)
        await turning.fleet.dispatcher.drain("decode-3", is_forced=False)
        answers = [await ask(), await ask()]  # what the first said is drafted for the second

        assert [answer.tokens for answer in answers] == [before.tokens] * 2
        assert answers[1].receipt.decode_replica == "prefill-1"
        assert answers[1].receipt.accepted_tokens > 100
        assert (await turning.core("prefill-1").audit()).violations == ()


async def test_a_replica_that_turns_keeps_its_engine_and_what_it_has_cached() -> None:
    async with turning_fleet(prefill=1, decode=2) as turning:
        engine, before = turning.engines["decode-2"], turning.serving["decode-2"].replica
        await turning.fleet.dispatcher.drain("decode-3", is_forced=False)
        await turning.fleet.ask(PROMPT)
        await turning.fleet.dispatcher.undrain("decode-3")
        await turning.until(decode_3=Role.DECODE)
        num_cached = len(list(engine.pool.prefixes.names()))
        assert num_cached and before is not None

        await turning.flip("decode-2", "prefill")
        await turning.until(decode_2=Role.PREFILL)

        after = turning.serving["decode-2"].replica
        assert after is not None and after.worker.core.engine is engine
        assert after.info.epoch != before.info.epoch
        assert after.info.is_flipped
        assert len(list(engine.pool.prefixes.names())) == num_cached
        wanted = {Role.PREFILL: 1, Role.DECODE: 2}
        assert turning.fleet.dispatcher.missing(wanted) == ()

        assert await turning.flip("decode-2", "prefill") == 0  # asked once more
        await turning.flip("decode-2", "decode")
        await turning.until(decode_2=Role.DECODE)
        [row] = [
            it for it in turning.fleet.dispatcher.fleet.replicas if it.replica_id == "decode-2"
        ]
        assert not row.is_flipped


async def test_gateways_hang_up_before_a_replica_that_turns_ends_their_streams(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "HANG_UP_S", 60.0)
    links = "baton.gateway.fleet.links"
    caplog.set_level("INFO", links)
    async with turning_fleet(prefill=2, decode=1) as turning:
        fleet = turning.fleet.dispatcher.fleet
        apply = fleet.apply

        async def apply_late(snapshot: Membership) -> None:
            await asyncio.sleep(0.1)
            await apply(snapshot)

        monkeypatch.setattr(fleet, "apply", apply_late)
        for to in (Role.DECODE, Role.PREFILL):
            caplog.clear()
            await turning.flip("prefill-1", to)
            await turning.until(prefill_1=to)

            # A stream that its replica ends is a broken one.
            assert not [record for record in caplog.records if record.name.startswith(links)]


async def test_what_cannot_take_the_other_role_is_told_why() -> None:
    async with turning_fleet(prefill=1, decode=1) as turning:
        with pytest.raises(InvalidRequest, match="last decode replica that takes requests"):
            await turning.flip("decode-2", "prefill")
        with pytest.raises(InvalidRequest, match="prefill-1 is the last prefill replica"):
            await turning.flip("prefill-1", "decode")
        with pytest.raises(InvalidRequest, match="there are: decode-2, prefill-1"):
            await turning.flip("prefill-9", "decode")
        with pytest.raises(InvalidRequest, match="must be prefill or decode"):
            await turning.flip("prefill-1", "router")
        await turning.add(Role.PREFILL, **{"prefill.scheduler.max_running": 7})
        await turning.until(prefill_3=Role.PREFILL)
        with pytest.raises(
            InvalidRequest, match=r"prefill\.scheduler\.max_running is 7 and decode"
        ):
            await turning.flip("prefill-3", "decode")

        assert (await turning.fleet.ask(PROMPT)).receipt.prefill_replica


async def test_of_two_that_would_leave_their_role_at_once_one_stays_if_they_are_the_last() -> None:
    async with turning_fleet(prefill=2, decode=1) as turning:
        asked = (turning.flip(one, "decode") for one in ("prefill-1", "prefill-2"))

        told = await asyncio.gather(*asked, return_exceptions=True)

        assert sorted(isinstance(one, InvalidRequest) for one in told) == [False, True]


async def test_a_flip_gives_way_to_an_undrain_a_drain_and_the_end_of_its_time() -> None:
    async with turning_fleet(prefill=0, decode=2, **{"health.drain_s": 60.0}) as turning:
        drain, undrain = turning.fleet.dispatcher.drain, turning.fleet.dispatcher.undrain
        await turning.fleet.ask(PROMPT)
        [name] = [
            one for one, engine in turning.engines.items() if list(engine.pool.prefixes.names())
        ]
        core = turning.core(name)
        lease = Holder(HolderKind.LEASE, "of a peer that reads on")
        await core.thread.call(partial(core.engine.pool.hold_cached, lease, PROMPT, b""))

        def in_the_registry() -> bool:
            known = turning.registry.registry.membership().replicas
            return any(it.replica_id == name and it.is_flipping for it in known)

        await turning.flip(name, "prefill")
        assert turning.replica(name).info.is_flipping and in_the_registry()
        await undrain(name)
        assert (await turning.why_not(name), core.is_draining) == ("it was undrained", False)

        await turning.flip(name, "prefill")
        await turning.flip(name, "decode")
        assert (await turning.why_not(name), core.is_draining) == (
            "it was ordered to stay decode",
            False,
        )

        serving = turning.serving[name]
        serving.reconfigure(override(serving.config, {"health.drain_s": 0.3}))
        await turning.flip(name, "prefill")
        assert (
            await turning.why_not(name)
            == "still here after 0.3 s: 0 requests, or KV that they lend"
        )
        assert not (core.is_draining or turning.replica(name).info.is_flipping)
        serving.reconfigure(override(serving.config, {"health.drain_s": 60.0}))

        await turning.flip(name, "prefill")
        await drain(name, is_forced=False)
        assert await turning.why_not(name) == "it was ordered to drain instead"
        assert core.is_draining

        await core.thread.call(partial(core.engine.pool.release, lease))
        await turning.flip(name, "prefill")
        await turning.until(**{name: Role.PREFILL})


async def test_one_that_serve_stops_in_the_middle_leaves_and_does_not_come_back() -> None:
    async with turning_fleet(prefill=1, decode=2) as turning:
        serving = turning.serving["decode-2"]
        assert serving.replica is not None
        asking = asyncio.create_task(serving.replica.books.flips.begin(Role.PREFILL))  # type: ignore[union-attr]
        await asyncio.sleep(0)

        await serving.drain()
        await serving.leave()
        await asking

        left = [info.replica_id for info in turning.fleet.registry.membership().replicas]
        assert left == ["prefill-1", "decode-3"]
        del turning.serving["decode-2"]


async def test_a_replica_that_cannot_begin_in_its_new_role_is_not_well() -> None:
    async with turning_fleet(prefill=1, decode=2) as turning:
        serving = turning.serving["decode-2"]
        serving.check_health()
        serving.config = override(serving.config, {"transfer.transport": "nixl"})  # is not there

        await turning.flip("decode-2", "prefill")

        async with asyncio.timeout(60):
            while turning.is_well("decode-2"):
                await asyncio.sleep(0.02)
        assert (await turning.fleet.ask(PROMPT)).receipt.decode_replica == "decode-3"


async def test_without_its_registry_a_replica_keeps_its_role() -> None:
    async with turning_fleet(prefill=1, decode=2) as turning:
        turning.serving["decode-2"].spare = away  # type: ignore[method-assign]

        with pytest.raises(Unavailable, match="the registry does not say whether it can be spared"):
            await turning.flip("decode-2", "prefill")

        assert turning.serving["decode-2"].is_ready


async def away(info: ReplicaInfo) -> str:
    raise ConnectionError("the registry is away")


async def test_a_registry_that_starts_anew_hears_the_roles_that_replicas_have_taken() -> None:
    async with turning_fleet(prefill=2, decode=1) as turning:
        await turning.flip("prefill-1", "decode")
        await turning.until(prefill_1=Role.DECODE)
        again = Registry()

        for serving in turning.serving.values():
            assert serving.replica is not None
            again.heartbeat(serving.replica.info)

        told = {info.replica_id: info.role for info in again.membership().replicas}
        assert told == {"prefill-1": "decode", "prefill-2": "prefill", "decode-3": "decode"}
        assert again.spare(turning.core("prefill-2").epoch).startswith("prefill-2 is the last")
