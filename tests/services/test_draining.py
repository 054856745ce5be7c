"""A replica that drains: who leaves it and how, who stays, and when it may not."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from tests.in_process_fleet import (
    GREEDY,
    Answer,
    Fleet,
    echo_engine,
    running_fleet,
)
from tests.services.migrating import (
    LONG,
    MAX_TOKENS,
    PROMPT,
    SAMPLED,
    busy,
    is_empty,
    slow_down,
)

from baton.core.errors import InvalidRequest
from baton.core.ids import ReplicaId
from baton.core.messages import Pooling
from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.engine.engine import Engine
from baton.platform.config.deployment import override


@pytest.mark.usefixtures("sync_and_async")
async def test_a_drain_under_load_is_noticed_by_nobody() -> None:
    rng = random.Random(5)
    prompts = [[rng.randrange(1, 256) for _ in range(rng.randrange(1, 90))] for _ in range(16)]
    samplings = [
        SamplingParams(
            temperature=60.0 * (i % 2), seed=i, max_tokens=rng.randrange(1, 200), ignore_eos=True
        )
        for i in range(16)
    ]

    async def ask_all(fleet: Fleet) -> list[Answer]:
        asking = (fleet.ask(*one) for one in zip(prompts, samplings, strict=True))
        return await asyncio.gather(*asking)

    async with running_fleet(prefill=1, decode=1) as fleet:
        undisturbed = await ask_all(fleet)

    async with running_fleet(prefill=1, decode=3) as fleet:
        with fleet.halting_at(1):
            asking = asyncio.create_task(ask_all(fleet))
            async with asyncio.timeout(60):
                while len(busy(fleet)) < 3:
                    await asyncio.sleep(0.002)
            for leaving in ("decode-2", "decode-3"):
                slow_down(fleet.engines[ReplicaId(leaving)])
                await fleet.dispatcher.drain(leaving, is_forced=False)
        answers = await asking

        assert [a.tokens for a in answers] == [a.tokens for a in undisturbed]
        assert any(a.receipt.attempts > 1 for a in answers)
        for replica_id in (ReplicaId("decode-2"), ReplicaId("decode-3")):
            await is_empty(fleet, replica_id)
        await fleet.assert_nothing_is_held()


async def test_of_two_drained_at_once_one_stays_if_they_are_the_last() -> None:
    async with running_fleet(prefill=0, decode=2) as fleet:
        drains = (fleet.dispatcher.drain(one, is_forced=False) for one in list(fleet.replicas))

        told = await asyncio.gather(*drains, return_exceptions=True)

        assert [isinstance(one, InvalidRequest) for one in told] == [False, True]
        assert (await fleet.ask(PROMPT)).tokens


async def test_one_that_died_is_nobody_to_go_on_with() -> None:
    async with running_fleet(prefill=0, decode=2) as fleet:
        await fleet.replicas[ReplicaId("decode-2")].server.stop(grace_s=0)
        async with asyncio.timeout(60):
            while len(fleet.dispatcher.fleet.connected) > 1:
                await asyncio.sleep(0.01)

        with pytest.raises(InvalidRequest, match="last decode replica"):
            await fleet.dispatcher.drain("decode-1", is_forced=False)


async def test_a_replica_that_shuts_down_hands_over_what_it_runs() -> None:
    async with running_fleet(prefill=0, decode=2) as fleet:
        undisturbed = await fleet.ask(PROMPT, SAMPLED)
        leaving: list[tuple[ReplicaId, asyncio.Task[bool]]] = []

        async def on_token(num_tokens: int) -> None:
            if num_tokens >= 7 and not leaving:
                [here] = busy(fleet)
                slow_down(fleet.engines[here])
                draining = asyncio.create_task(fleet.replicas[here].drain(timeout_s=60))
                leaving.append((here, draining))
                go_on()

        with fleet.halting_at(7) as go_on:
            answer = await fleet.ask(PROMPT, SAMPLED, on_token=on_token)

        [(here, draining)] = leaving
        assert await draining
        assert not fleet.replicas[here].info.is_ready
        assert answer.tokens == undisturbed.tokens
        assert answer.receipt.decode_replica != here
        await fleet.crash(here)
        await fleet.assert_nothing_is_held()


async def test_requests_that_wait_on_the_replica_begin_elsewhere() -> None:
    def narrow(role: Role) -> Engine:
        return echo_engine(role, max_running=1)

    async with running_fleet(prefill=0, decode=1, make_engine=narrow) as fleet:
        with fleet.halting_at(5):
            asking = [asyncio.create_task(fleet.ask([i, *PROMPT], LONG)) for i in range(1, 4)]
            async with asyncio.timeout(60):
                while fleet.replicas[ReplicaId("decode-1")].worker.num_open < 3:
                    await asyncio.sleep(0.002)
            slow_down(fleet.engines[ReplicaId("decode-1")])
            await fleet.add(Role.DECODE)

            await fleet.dispatcher.drain("decode-1", is_forced=False)
        answers = await asyncio.gather(*asking)

        assert all(len(answer.tokens) == MAX_TOKENS for answer in answers)
        assert {answer.receipt.decode_replica for answer in answers} == {"decode-2"}
        num_run = sum(engine.stats.num_tokens_run for engine in fleet.engines.values())
        assert num_run < 3 * (1 + len(PROMPT) + MAX_TOKENS) + len(PROMPT)  # no prompt ran twice
        await fleet.assert_nothing_is_held()


async def test_an_embedding_ends_where_it_began() -> None:
    async with running_fleet(prefill=0, decode=2) as fleet:
        asking = asyncio.create_task(fleet.ask(PROMPT, GREEDY, pooling=Pooling.MEAN))
        async with asyncio.timeout(60):
            while not busy(fleet) and not asking.done():
                await asyncio.sleep(0)
        for here in busy(fleet):
            await fleet.dispatcher.drain(here, is_forced=False)

        answer = await asking

        assert answer.embedding
        assert answer.receipt.attempts == 1
        await fleet.assert_nothing_is_held()


async def test_the_last_decode_replica_is_drained_only_by_force() -> None:
    async with running_fleet(prefill=1, decode=1) as fleet:
        with pytest.raises(InvalidRequest, match="decode-2 is the last decode replica that takes"):
            await fleet.dispatcher.drain("decode-2", is_forced=False)
        with pytest.raises(InvalidRequest, match="there are: decode-2, prefill-1"):
            await fleet.dispatcher.drain("decode-9", is_forced=False)
        await fleet.dispatcher.drain("prefill-1", is_forced=False)

        async def force(num_tokens: int) -> None:
            if fleet.dispatcher.is_ready():  # told once: each telling has a time limit of its own
                await fleet.dispatcher.drain("decode-2", is_forced=True)

        answer = await fleet.ask(PROMPT, LONG, on_token=force)

        assert len(answer.tokens) == MAX_TOKENS  # it could go nowhere, and went on
        assert not fleet.dispatcher.is_ready()
        await is_empty(fleet, ReplicaId("decode-2"))
        await fleet.assert_nothing_is_held()


async def test_a_replica_that_comes_later_takes_what_had_to_stay() -> None:
    async with running_fleet(prefill=0, decode=1) as fleet:

        async def replace_it(num_tokens: int) -> None:
            if num_tokens >= 5 and len(fleet.replicas) == 1:  # an update may bring several
                slow_down(fleet.engines[ReplicaId("decode-1")])
                await fleet.dispatcher.drain("decode-1", is_forced=True)
                await fleet.add(Role.DECODE)
                go_on()

        with fleet.halting_at(5) as go_on:
            answer = await fleet.ask(PROMPT, replace(LONG, max_tokens=900), on_token=replace_it)

        assert len(answer.tokens) == 900
        assert answer.receipt.decode_replica == "decode-2"
        assert answer.receipt.computed_tokens == len(PROMPT) + 900 - 1
        await fleet.assert_nothing_is_held()


async def test_a_drained_replica_that_is_undrained_takes_requests_again() -> None:
    async with running_fleet(prefill=1, decode=2) as fleet:
        drained = ("decode-2", "prefill-1")
        for one in drained:
            await fleet.dispatcher.drain(one, is_forced=False)
        away = await fleet.ask(PROMPT)
        assert away.receipt.decode_replica == "decode-3"
        assert not away.receipt.prefill_replica

        links = fleet.dispatcher.fleet.links
        told = [links.get(fleet.replicas[ReplicaId(it)].info.epoch) for it in drained]
        async with asyncio.timeout(60):  # each says by itself that it drains ...
            while not all(link is not None and link.is_draining for link in told):
                await asyncio.sleep(0.01)
        for one in drained:
            await fleet.dispatcher.undrain(one)
        async with asyncio.timeout(60):  # ... and that it is open again
            while any(fleet.dispatcher.fleet.trouble_by_replica().values()):
                await asyncio.sleep(0.01)
        await fleet.dispatcher.drain("decode-3", is_forced=False)
        again = await fleet.ask(list(range(1, 99)))

        assert again.receipt.decode_replica == "decode-2"
        assert again.receipt.prefill_replica == "prefill-1"
        await fleet.assert_nothing_is_held()


async def test_limits_of_replicas_change_while_they_run() -> None:
    async with running_fleet(prefill=1, decode=1) as fleet:
        before = fleet.config
        after = override(before, {"decode.max_open": 1, "prefill.max_queued_tokens": 4})

        for replica in fleet.replicas.values():
            replica.reconfigure(before, after)
        await fleet.sync()
        answers = await asyncio.gather(*(fleet.ask(PROMPT) for _ in range(3)))

        assert all(answer.tokens for answer in answers)  # one after the other
        told = {replica.info.role: replica.info for replica in fleet.replicas.values()}
        assert told[Role.DECODE].max_open == 1
        assert told[Role.PREFILL].max_queued_tokens == 4
        [link] = fleet.dispatcher.fleet.connected
        assert link.capacity is not None and link.capacity.max_open == 1
