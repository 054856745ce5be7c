"""A running request leaves a replica that drains: its KV goes along, and its stream goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.scripted import json_vocab_size, tokenizer_json
from tests.in_process_fleet import (
    GREEDY,
    VOCAB_SIZE,
    echo_engine,
    most_tokens,
    running_fleet,
)
from tests.services.migrating import (
    LONG,
    MAX_TOKENS,
    PROMPT,
    SAMPLED,
    ask_and_drain,
    busy,
    is_empty,
    slow_down,
)
from tests.tiny_checkpoints import make_llama

from baton.core.ids import ReplicaId
from baton.core.replicas import Role
from baton.core.sampling import FinishReason, Grammar, GrammarKind, SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig
from baton.engine.engine import Engine
from baton.engine.passes.echo import EchoRunner, echo_info
from baton.kv_transfer.transport.grpc import GrpcTransport

WAYS = {
    "greedy": LONG,
    "sampled": SAMPLED,
    "logprobs": replace(SAMPLED, num_logprobs=2),
    "penalties": replace(
        SAMPLED, presence_penalty=0.5, frequency_penalty=0.7, repetition_penalty=1.2
    ),
    "stop tokens": replace(LONG, min_tokens=100, stop_token_ids=(PROMPT[3],)),
}


@pytest.mark.usefixtures("sync_and_async")
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


@pytest.mark.usefixtures("sync_and_async")
async def test_a_request_can_move_again_and_again() -> None:
    async with running_fleet(prefill=0, decode=4) as fleet:
        drained: list[ReplicaId] = []

        async def on_token(num_tokens: int) -> None:
            here = [replica_id for replica_id in busy(fleet) if replica_id not in drained]
            if here and len(drained) < 3 and num_tokens > 20 * len(drained):
                drained.append(here[0])
                slow_down(fleet.engines[here[0]])
                await fleet.dispatcher.drain(here[0], is_forced=False)
                fleet.replicas[here[0]].worker.core.thread.post(lambda: None)  # it may go on

        def is_ahead(engine: Engine) -> bool:
            """Of who drains: as far as the client must have come for it."""
            is_next = all(engine is not fleet.engines[one] for one in drained)
            return len(drained) < 3 and is_next and most_tokens(engine) > 20 * len(drained)

        undisturbed = await fleet.ask(PROMPT, SAMPLED)
        with fleet.halting(is_ahead):
            answer = await fleet.ask(PROMPT, SAMPLED, on_token=on_token)

        assert len(set(drained)) == 3
        assert answer.tokens == undisturbed.tokens
        assert answer.receipt.attempts == 4
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
                slow_down(fleet.engines[drained[0]])
                await fleet.dispatcher.drain(drained[0], is_forced=False)
                go_on()

        with fleet.halting_at(7) as go_on:
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
        with fleet.halting(lambda engine: engine.stats.num_tokens_run >= 100):
            asking = asyncio.create_task(fleet.ask(prompt, GREEDY))
            async with asyncio.timeout(60):
                while sum(engine.stats.num_tokens_run for engine in fleet.engines.values()) < 100:
                    await asyncio.sleep(0)
            [here] = busy(fleet)
            slow_down(fleet.engines[here])

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
