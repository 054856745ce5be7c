"""A running request leaves a replica that drains: its KV goes along, and its stream goes on."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.scripted import json_vocab_size, tokenizer_json
from tests.in_process_fleet import (
    GREEDY,
    VOCAB_SIZE,
    Answer,
    Fleet,
    echo_engine,
    running_fleet,
)
from tests.tiny_checkpoints import make_llama

from baton.core.errors import DeadlineExceeded, InvalidRequest
from baton.core.ids import ReplicaId
from baton.core.messages import (
    FinishReason,
    Grammar,
    GrammarKind,
    Pooling,
    PullOffered,
    PullRequest,
    Role,
    SamplingParams,
)
from baton.decode_service.departures import Departures
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig
from baton.engine.engine import Engine
from baton.engine.passes.echo import EchoRunner, echo_info
from baton.kv_transfer.transport.grpc import GrpcTransport

PROMPT = [(7 * i) % 250 + 1 for i in range(43)]  # ten full blocks of 4, and a part
MAX_TOKENS = 250
LONG = replace(GREEDY, max_tokens=MAX_TOKENS, ignore_eos=True)
SAMPLED = SamplingParams(temperature=60.0, seed=11, max_tokens=MAX_TOKENS, ignore_eos=True)
WAYS = {
    "greedy": LONG,
    "sampled": SAMPLED,
    "logprobs": replace(SAMPLED, num_logprobs=2),
    "penalties": replace(
        SAMPLED, presence_penalty=0.5, frequency_penalty=0.7, repetition_penalty=1.2
    ),
    "stop tokens": replace(LONG, min_tokens=100, stop_token_ids=(PROMPT[3],)),
}


def busy(fleet: Fleet) -> list[ReplicaId]:
    """The decode replicas that have requests."""
    return [
        replica_id
        for replica_id, replica in fleet.replicas.items()
        if replica.info.role is Role.DECODE and replica.worker.num_open
    ]


def slow_down(engine: Engine) -> None:
    """So that what it runs can move before it is done, however long that takes here."""
    forward = engine.runner.forward

    def slowly(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.02)
        return forward(*args, **kwargs)

    engine.runner.forward = slowly  # type: ignore[method-assign]


async def ask_and_drain(
    fleet: Fleet, sampling: SamplingParams = LONG, *, after: int = 7, **options: Any
) -> tuple[Answer, ReplicaId]:
    """One request whose replica is drained when the client has `after` tokens."""
    drained: list[ReplicaId] = []

    async def on_token(num_tokens: int) -> None:
        if num_tokens >= after and not drained:
            drained.extend(busy(fleet))
            slow_down(fleet.engines[drained[0]])
            await fleet.dispatcher.drain(drained[0], is_forced=False)

    answer = await fleet.ask(PROMPT, sampling, on_token=on_token, **options)
    return answer, drained[0]


async def is_empty(fleet: Fleet, replica_id: ReplicaId) -> None:
    async with asyncio.timeout(10):
        await fleet.replicas[replica_id].worker.drain()
    assert fleet.replicas[replica_id].worker.num_open == 0


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("prefill", [0, 1])
@pytest.mark.parametrize("sampling", WAYS.values(), ids=WAYS.keys())
async def test_no_token_is_lost_or_repeated_or_prefilled_again(
    sampling: SamplingParams, prefill: int
) -> None:
    async with running_fleet(prefill=prefill, decode=1) as fleet:
        undisturbed = await fleet.ask(PROMPT, sampling)

    async with running_fleet(prefill=prefill, decode=2) as fleet:
        answer, drained = await ask_and_drain(fleet, sampling)

        receipt = answer.receipt
        assert answer.tokens == undisturbed.tokens
        assert answer.logprobs == undisturbed.logprobs
        assert answer.finish_reason == undisturbed.finish_reason
        assert receipt.attempts == 2
        assert receipt.decode_replica != drained
        assert any(note.startswith(f"moved from {drained} with") for note in receipt.notes)
        assert f"attempt 1: {drained} is draining" in receipt.notes
        assert receipt.pulled_tokens >= len(PROMPT)
        assert receipt.computed_tokens == undisturbed.receipt.computed_tokens
        await is_empty(fleet, drained)
        await fleet.assert_nothing_is_held()


@pytest.mark.usefixtures("both_ways")
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
        asking = asyncio.create_task(ask_all(fleet))
        async with asyncio.timeout(10):
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
        async with asyncio.timeout(10):
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
                draining = asyncio.create_task(fleet.replicas[here].drain(timeout_s=10))
                leaving.append((here, draining))

        answer = await fleet.ask(PROMPT, SAMPLED, on_token=on_token)

        [(here, draining)] = leaving
        assert await draining
        assert not fleet.replicas[here].info.is_ready
        assert answer.tokens == undisturbed.tokens
        assert answer.receipt.decode_replica != here
        await fleet.crash(here)
        await fleet.assert_nothing_is_held()


@pytest.mark.usefixtures("both_ways")
async def test_a_request_can_move_again_and_again() -> None:
    async with running_fleet(prefill=0, decode=4) as fleet:
        drained: list[ReplicaId] = []

        async def on_token(num_tokens: int) -> None:
            here = [replica_id for replica_id in busy(fleet) if replica_id not in drained]
            if here and len(drained) < 3 and num_tokens > 20 * len(drained):
                drained.append(here[0])
                slow_down(fleet.engines[here[0]])
                await fleet.dispatcher.drain(here[0], is_forced=False)

        undisturbed = await fleet.ask(PROMPT, SAMPLED)
        answer = await fleet.ask(PROMPT, SAMPLED, on_token=on_token)

        assert len(set(drained)) == 3
        assert answer.tokens == undisturbed.tokens
        assert answer.receipt.attempts == 4
        await fleet.assert_nothing_is_held()


async def test_requests_that_wait_on_the_replica_begin_elsewhere() -> None:
    def narrow(role: Role) -> Engine:
        return echo_engine(role, max_running=1)

    async with running_fleet(prefill=0, decode=1, make_engine=narrow) as fleet:
        asking = [asyncio.create_task(fleet.ask([i, *PROMPT], LONG)) for i in range(1, 4)]
        async with asyncio.timeout(10):
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


async def test_a_request_whose_kv_is_still_arriving_takes_it_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arriving, go_on = asyncio.Event(), asyncio.Event()
    honest = GrpcTransport.open

    async def halting(self: GrpcTransport, *args: Any) -> Any:
        async for piece in honest(self, *args):
            arriving.set()
            await go_on.wait()
            yield piece

    monkeypatch.setattr(GrpcTransport, "open", halting)
    changes = {"transfer": {"transport": "grpc"}}
    async with running_fleet(prefill=1, decode=2, changes=changes) as fleet:
        asking = asyncio.create_task(fleet.ask(PROMPT, LONG))
        await arriving.wait()
        [here] = busy(fleet)
        slow_down(fleet.engines[here])

        await fleet.dispatcher.drain(here, is_forced=False)
        go_on.set()
        answer = await asking

        assert len(answer.tokens) == MAX_TOKENS
        assert answer.receipt.decode_replica != here
        assert fleet.engines[ReplicaId("prefill-1")].stats.num_tokens_run == len(PROMPT)
        assert answer.receipt.pulled_tokens >= len(PROMPT) - 1
        await fleet.assert_nothing_is_held()


async def test_an_embedding_ends_where_it_began() -> None:
    async with running_fleet(prefill=0, decode=2) as fleet:
        asking = asyncio.create_task(fleet.ask(PROMPT, GREEDY, pooling=Pooling.MEAN))
        async with asyncio.timeout(10):
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
        with pytest.raises(InvalidRequest, match="there are: prefill-1, decode-2"):
            await fleet.dispatcher.drain("decode-9", is_forced=False)
        await fleet.dispatcher.drain("prefill-1", is_forced=False)

        async def force(num_tokens: int) -> None:
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

        answer = await fleet.ask(PROMPT, replace(LONG, max_tokens=900), on_token=replace_it)

        assert len(answer.tokens) == 900
        assert answer.receipt.decode_replica == "decode-2"
        assert answer.receipt.computed_tokens == len(PROMPT) + 900 - 1
        await fleet.assert_nothing_is_held()


@pytest.mark.parametrize("victim", ["the old replica", "the new replica"])
async def test_a_replica_that_dies_in_the_move_costs_no_token(
    victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Departures.pull
    pulled: list[PullRequest] = []

    async with running_fleet(prefill=0, decode=3) as fleet:
        undisturbed = await fleet.ask(PROMPT, SAMPLED)

        async def dying(self: Departures, message: PullRequest) -> Any:
            async for offered in honest(self, message):
                if not pulled:
                    pulled.append(message)
                    await fleet.crash(self_id if victim == "the old replica" else other_id())
                yield offered

        def other_id() -> ReplicaId:
            [other] = [
                replica_id
                for replica_id, replica in fleet.replicas.items()
                if replica.info.epoch == pulled[0].receiver_epoch
            ]
            return other

        self_id = ReplicaId("")

        async def on_token(num_tokens: int) -> None:
            nonlocal self_id
            if num_tokens >= 7 and not self_id:
                [self_id] = busy(fleet)
                await fleet.dispatcher.drain(self_id, is_forced=False)

        monkeypatch.setattr(Departures, "pull", dying)
        answer = await fleet.ask(PROMPT, SAMPLED, on_token=on_token)

        assert len(pulled) == 1 or victim == "the new replica"
        assert answer.tokens == undisturbed.tokens
        await fleet.assert_nothing_is_held()


async def test_a_client_that_leaves_in_the_move_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moving, honest = asyncio.Event(), Departures.pull

    async def halting(self: Departures, message: PullRequest) -> Any:
        async for offered in honest(self, message):
            moving.set()
            yield offered

    monkeypatch.setattr(Departures, "pull", halting)
    async with running_fleet(prefill=0, decode=2) as fleet:
        asking = asyncio.create_task(ask_and_drain(fleet))
        await moving.wait()

        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

        await fleet.assert_nothing_is_held()
        await is_empty(fleet, ReplicaId("decode-1"))


async def test_a_time_limit_counts_on_over_the_move() -> None:
    async with running_fleet(prefill=0, decode=2) as fleet:
        endless = replace(LONG, max_tokens=1900)
        with pytest.raises(DeadlineExceeded):
            await ask_and_drain(fleet, endless, time_left_s=0.15)

        await fleet.assert_nothing_is_held()


async def test_a_move_that_cannot_be_made_is_a_continuation_like_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refusing(self: Departures, message: PullRequest) -> Any:
        if message.request_id is None:
            yield PullOffered
        raise InvalidRequest("not today")

    monkeypatch.setattr(Departures, "pull", refusing)
    async with running_fleet(prefill=1, decode=2) as fleet:
        undisturbed = await fleet.ask(PROMPT, SAMPLED)

        answer, drained = await ask_and_drain(fleet, SAMPLED)

        assert answer.tokens == undisturbed.tokens
        assert f"nothing brought in from {drained}: not today" in answer.receipt.notes
        await is_empty(fleet, drained)
        await fleet.assert_nothing_is_held()


async def test_a_grammar_is_followed_over_the_move(tmp_path: Path) -> None:
    folder = make_llama(tmp_path, vocab_size=json_vocab_size())
    (folder / "tokenizer.json").write_text(tokenizer_json())
    grammar = Grammar(GrammarKind.REGEX, "[a-z]{80,90}(-[0-9]{2}){9}")
    sampling = SamplingParams(temperature=1.0, seed=3, max_tokens=200, grammar=grammar)

    def engine(role: Role) -> Engine:
        config = EngineConfig(cache=CacheConfig(block_size=4, num_blocks=256))
        return assemble_engine(folder, config, dtype="float32", device="cpu")

    async with running_fleet(prefill=1, decode=2, make_engine=engine) as fleet:
        undisturbed = await fleet.ask(PROMPT[:20], sampling)

        drained: list[ReplicaId] = []

        async def on_token(num_tokens: int) -> None:
            if num_tokens >= 7 and not drained:
                drained.extend(busy(fleet))
                await fleet.dispatcher.drain(drained[0], is_forced=False)

        answer = await fleet.ask(PROMPT[:20], sampling, on_token=on_token)

        assert answer.tokens == undisturbed.tokens
        assert answer.finish_reason is FinishReason.STOP
        assert answer.receipt.decode_replica != drained[0]
        await fleet.assert_nothing_is_held()


async def test_a_prompt_half_computed_is_computed_on_from_there() -> None:
    prompt = [(11 * i) % 249 + 1 for i in range(601)]

    def in_small_chunks(role: Role) -> Engine:
        return echo_engine(role, prefill_chunk=4)

    async with running_fleet(prefill=0, decode=2, make_engine=in_small_chunks) as fleet:
        asking = asyncio.create_task(fleet.ask(prompt, GREEDY))
        async with asyncio.timeout(10):
            while sum(engine.stats.num_tokens_run for engine in fleet.engines.values()) < 100:
                await asyncio.sleep(0)
        [here] = busy(fleet)

        await fleet.dispatcher.drain(here, is_forced=False)
        answer = await asking

        assert answer.receipt.decode_replica != here
        assert answer.receipt.pulled_tokens >= 100
        num_run = sum(engine.stats.num_tokens_run for engine in fleet.engines.values())
        assert num_run <= len(prompt) + GREEDY.max_tokens + 8  # at most two chunks twice
        await fleet.assert_nothing_is_held()


async def test_without_a_prefix_cache_a_request_moves_all_the_same() -> None:
    def engine(role: Role) -> Engine:
        info = echo_info(vocab_size=VOCAB_SIZE, max_model_len=2048, num_layers=3)
        cache = CacheConfig(block_size=4, num_blocks=256, prefix_caching=False)
        runner = EchoRunner(info, num_blocks=256, block_size=4)
        return Engine(runner, EngineConfig(cache=cache))

    async with running_fleet(prefill=0, decode=2, make_engine=engine) as fleet:
        answer, drained = await ask_and_drain(fleet, LONG)

        assert len(answer.tokens) == MAX_TOKENS
        assert answer.receipt.decode_replica != drained
        assert answer.receipt.computed_tokens == len(PROMPT) + MAX_TOKENS - 1
        await fleet.assert_nothing_is_held()
