"""What may happen between a replica's last request in one role and its first in the other."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

import pytest
from tests.services.migrating import PROMPT
from tests.services.turning import TurningFleet, turning_fleet

from baton.core.errors import InvalidRequest, TransferError, Unavailable
from baton.core.ids import Epoch, RequestId, new_transfer_id
from baton.core.kv_pool import Holder, HolderKind
from baton.core.messages import GenerateRequest, PullRequest
from baton.core.replicas import Role
from baton.core.tracing import NO_TRACES
from baton.decode_service.worker import DecodeWorker
from baton.kv_transfer.transport.control.client import ControlClient
from baton.platform.config.deployment import override
from baton.platform.replica import flips, serving
from baton.platform.replica.replica import Replica, start_replica
from baton.proto.channels import Channels


async def one_that_has_cached(turning: TurningFleet) -> str:
    """A decode replica; what it has cached is KV of `PROMPT`."""
    await turning.fleet.ask(PROMPT)
    [name] = [one for one, engine in turning.engines.items() if list(engine.pool.prefixes.names())]
    return name


def pull_from(replica: Replica) -> PullRequest:
    return PullRequest(
        transfer_id=new_transfer_id(),
        receiver_epoch=Epoch("peer"),
        layout=replica.info.layout,
        tokens=tuple(PROMPT),
        time_left_ms=10_000,
    )


async def test_nothing_begins_and_nothing_is_lent_between_the_last_look_and_the_end() -> None:
    async with turning_fleet(prefill=0, decode=2) as turning:
        name = await one_that_has_cached(turning)
        replica = turning.replica(name)
        worker, info = replica.worker, replica.info
        assert isinstance(worker, DecodeWorker)
        session = worker.open_session(Epoch("late"))
        turning.registry.may_forget.clear()
        await turning.flip(name, "prefill")
        await turning.until_it_leaves()

        with pytest.raises(Unavailable, match="leaves its role"):
            await anext(worker.pull(pull_from(replica)))
        late = GenerateRequest(request_id=RequestId("r"), attempt=1, prompt=(1, 2, 3))
        worker.generate(session, late)
        frame = await session.next_frame()
        assert frame is not None and isinstance(frame.updates[0].error, Unavailable)
        control = ControlClient(Channels())
        with pytest.raises(TransferError, match="leave its role"):
            await control.offer_probe(info.address, info.epoch, Epoch("peer"), 64, 1.0)
        turning.registry.may_forget.set()

        await turning.until(**{name: Role.PREFILL})
        assert (await turning.core(name).audit()).violations == ()
        again = turning.replica(name)
        async with aclosing(again.worker.pull(pull_from(again))) as loan:
            assert (await anext(loan)).num_tokens


async def test_a_replica_with_blocks_that_nobody_would_let_go_of_is_not_well() -> None:
    async with turning_fleet(prefill=0, decode=2) as turning:
        name = await one_that_has_cached(turning)
        core = turning.core(name)
        turning.registry.may_forget.clear()
        await turning.flip(name, "prefill")
        await turning.until_it_leaves()

        lost = Holder(HolderKind.LEASE, "nobody")
        await core.thread.call(partial(core.engine.pool.hold_cached, lost, PROMPT, b""))
        turning.registry.may_forget.set()

        async with asyncio.timeout(60):
            while turning.is_well(name):
                await asyncio.sleep(0.01)


async def test_a_source_that_all_ask_for_its_kv_turns_all_the_same() -> None:
    async with turning_fleet(prefill=0, decode=2, **{"health.drain_s": 30.0}) as turning:
        name = await one_that_has_cached(turning)
        replica = turning.replica(name)

        async def keep_asking() -> None:
            with suppress(Unavailable):
                while True:
                    async with aclosing(replica.worker.pull(pull_from(replica))) as loan:
                        await anext(loan)
                        await asyncio.sleep(0.05)

        asking = asyncio.create_task(keep_asking())
        await turning.flip(name, "prefill")

        await asking
        await turning.until(**{name: Role.PREFILL})


async def test_a_replica_whose_registry_goes_while_it_drains_stays_what_it_is() -> None:
    async with turning_fleet(prefill=0, decode=2) as turning:
        turning.registry.is_away = True
        await turning.flip("decode-1", "prefill")

        assert (await turning.why_not("decode-1")).startswith("the registry is away")
        core = turning.core("decode-1")
        assert not (core.is_draining or core.is_shut)
        turning.registry.is_away = False
        await turning.until(decode_1=Role.DECODE, decode_2=Role.DECODE)
        await turning.flip("decode-1", "prefill")
        await turning.until(decode_1=Role.PREFILL)


async def test_a_flip_that_was_given_up_does_not_wait_for_the_registry_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with turning_fleet(prefill=0, decode=2) as turning:
        with monkeypatch.context() as silent:
            silent.setattr(turning.serving["decode-1"], "report_state", asyncio.Event().wait)
            await turning.flip("decode-1", "prefill")
            await turning.fleet.dispatcher.undrain("decode-1")
        await turning.flip("decode-1", "prefill")

        await turning.until(decode_1=Role.PREFILL)


async def test_who_asks_a_replica_that_turns_for_anything_else_is_told_to_ask_again() -> None:
    async with turning_fleet(prefill=0, decode=3) as turning:
        dispatcher = turning.fleet.dispatcher
        turning.registry.may_forget.clear()
        await turning.flip("decode-1", "prefill")
        await turning.until_it_leaves()

        for asked in (
            turning.flip("decode-1", "decode"),
            dispatcher.drain("decode-1", is_forced=False),
            dispatcher.undrain("decode-1"),
        ):
            with pytest.raises(Unavailable, match="leaves its role at this moment"):
                await asked
        assert await turning.flip("decode-1", "prefill") == 0
        turning.registry.may_forget.set()

        await turning.until(decode_1=Role.PREFILL)


class Unheard:
    """A tracer whose collector answers when it is told to."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.start = NO_TRACES.start

    def close(self) -> None:
        self.answers.wait(280)


async def test_a_collector_that_does_not_answer_holds_up_no_flip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flips, "TURN_TIMEOUT_S", 60.0)
    async with turning_fleet(prefill=0, decode=2) as turning:
        collector = turning.core("decode-1").tracer = Unheard()

        await turning.flip("decode-1", "prefill")
        await turning.until(decode_1=Role.PREFILL)

        assert turning.is_well("decode-1") and not collector.answers.is_set()
        collector.answers.set()


async def test_settings_that_come_while_a_replica_turns_are_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with turning_fleet(prefill=2, decode=1) as turning:
        turns = turning.serving["prefill-1"]

        async def start_while_settings_change(*args: Any, **options: Any) -> Replica:
            started = await start_replica(*args, **options)
            turns.reconfigure(override(turns.config, {"decode.max_open": 7}))
            return started

        monkeypatch.setattr(serving, "start_replica", start_while_settings_change)
        await turning.flip("prefill-1", "decode")
        await turning.until(prefill_1=Role.DECODE)

        replica = turning.replica("prefill-1")
        assert replica.info.max_open == replica.worker.capacity().max_open == 7


async def test_a_deployment_without_prefill_replicas_gets_back_the_one_that_it_lent() -> None:
    async with turning_fleet(prefill=0, decode=2, **{"prefill.replicas": 0}) as turning:
        await turning.flip("decode-1", "prefill")
        await turning.until(decode_1=Role.PREFILL)

        await turning.flip("decode-1", "decode")
        await turning.until(decode_1=Role.DECODE)

        turning.registry.may_forget.clear()
        await turning.flip("decode-1", "prefill")
        with pytest.raises(InvalidRequest, match="last decode replica that takes requests"):
            await turning.flip("decode-2", "prefill")
        turning.registry.may_forget.set()
        await turning.until(decode_1=Role.PREFILL)


async def test_two_flips_by_role_are_two_also_before_the_registry_tells_of_the_first() -> None:
    async with turning_fleet(prefill=3, decode=1) as turning:
        turning.following.cancel()

        first = await turning.fleet.dispatcher.flip("prefill", "decode")
        second = await turning.fleet.dispatcher.flip("prefill", "decode")

        assert first["replica"] != second["replica"]
