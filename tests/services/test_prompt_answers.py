"""Embeddings and prompt logprobs through the data plane; priorities; choices of one prompt."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.in_process_fleet import (
    GREEDY,
    VOCAB_SIZE,
    Answer,
    Fleet,
    echo_engine,
    running_fleet,
)
from tests.tiny_checkpoints import VOCAB_SIZE as TINY_VOCAB_SIZE
from tests.tiny_checkpoints import make_llama, transformers_greedy, transformers_logits
from torch import Tensor
from transformers import AutoModelForCausalLM

from baton.core.ids import ReplicaId, RequestId, new_epoch
from baton.core.kv_pool import Holder
from baton.core.messages import GenerateRequest, Pooling, TokenUpdate
from baton.core.replicas import Role
from baton.core.sampling import FinishReason, SamplingParams
from baton.decode_service.worker import DecodeWorker
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.passes.echo import echo_output
from baton.engine.request.request import Request

PREFILL, DECODE = ReplicaId("prefill-1"), ReplicaId("decode-2")
WITH_PROMPT = replace(GREEDY, num_prompt_logprobs=2)
PROMPT = list(range(3, 40))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(9)
    return [[rng.randrange(2, TINY_VOCAB_SIZE) for _ in range(n)] for n in (1, 4, 30, 9, 61, 17)]


def tiny_engine(folder: Path) -> Engine:
    config = EngineConfig(
        cache=CacheConfig(block_size=4, num_blocks=512),
        scheduler=SchedulerConfig(prefill_chunk=7),
    )
    return assemble_engine(folder, config, device="cpu")


def hidden_states(folder: Path, prompts: list[list[int]]) -> list[Tensor]:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return [model.model(torch.tensor([prompt])).last_hidden_state[0] for prompt in prompts]


async def embed(fleet: Fleet, prompt: list[int], pooling: Pooling) -> Answer:
    return await fleet.ask(prompt, SamplingParams(max_tokens=1), pooling=pooling)


async def test_embeddings_beside_generating_requests_are_those_of_transformers(
    folder: Path, prompts: list[list[int]]
) -> None:
    async with running_fleet(make_engine=lambda _: tiny_engine(folder)) as fleet:
        texts, means, lasts = (
            asyncio.gather(*(ask for ask in asks))
            for asks in (
                [fleet.ask(prompt) for prompt in prompts],
                [embed(fleet, prompt, Pooling.MEAN) for prompt in prompts],
                [embed(fleet, prompt, Pooling.LAST) for prompt in prompts],
            )
        )

        expected = transformers_greedy(folder, prompts, GREEDY.max_tokens)
        assert [answer.tokens for answer in await texts] == expected
        for hidden, mean, last in zip(
            hidden_states(folder, prompts), await means, await lasts, strict=True
        ):
            for found, wanted in ((mean, hidden.mean(0)), (last, hidden[-1])):
                assert found.embedding == pytest.approx(wanted.tolist(), abs=1e-4)
                assert (found.tokens, found.finish_reason) == ([], FinishReason.STOP)
                assert (found.receipt.output_tokens, found.receipt.prefill_replica) == (0, "")
        await fleet.assert_nothing_is_held()


async def test_a_receipt_of_an_embedding_counts_its_prompt() -> None:
    async with running_fleet(prefill=0) as fleet:
        await fleet.ask(PROMPT)

        mean = await embed(fleet, PROMPT, Pooling.MEAN)
        last = await embed(fleet, PROMPT, Pooling.LAST)

        assert mean.receipt.prompt_tokens == last.receipt.prompt_tokens == len(PROMPT)
        assert (mean.receipt.cached_tokens, mean.receipt.computed_tokens) == (0, len(PROMPT))
        assert (last.receipt.cached_tokens, last.receipt.computed_tokens) == (36, 1)


@pytest.mark.parametrize("num_prefill", [0, 1])
async def test_prompt_logprobs_come_once_and_are_those_of_transformers(
    folder: Path, prompts: list[list[int]], num_prefill: int
) -> None:
    async with running_fleet(
        prefill=num_prefill, make_engine=lambda _: tiny_engine(folder)
    ) as fleet:
        await fleet.ask(prompts[2])  # so that there is a prefix to be found

        answers = await asyncio.gather(*(fleet.ask(prompt, WITH_PROMPT) for prompt in prompts))

        for prompt, answer in zip(prompts, answers, strict=True):
            wanted = transformers_logits(folder, prompt).log_softmax(-1)
            assert [found.token for found in answer.prompt_logprobs] == prompt[1:]
            for place, found in enumerate(answer.prompt_logprobs):
                assert len(found.top) == 2
                for token, value in ((found.token, found.logprob), *found.top):
                    assert value == pytest.approx(wanted[place, token].item(), abs=1e-4)
        await fleet.assert_nothing_is_held()


async def test_a_continuation_elsewhere_does_not_give_the_prompts_logprobs_again() -> None:
    long = replace(WITH_PROMPT, max_tokens=60)
    async with running_fleet(prefill=1, decode=2) as fleet:

        async def kill(num_tokens: int) -> None:
            if num_tokens >= 20 and len(fleet.replicas) == 3:
                [link] = [one for one in fleet.dispatcher.fleet.connected if one.num_open]
                await fleet.crash(link.info.replica_id)
                go_on()

        with fleet.halting_at(20) as go_on:
            answer = await fleet.ask(PROMPT, long, on_token=kill)

        assert answer.receipt.attempts == 2
        assert answer.tokens == echo_output(PROMPT, 60, VOCAB_SIZE)
        assert [found.token for found in answer.prompt_logprobs] == PROMPT[1:]
        await fleet.assert_nothing_is_held()


async def last_update(worker: DecodeWorker, message: GenerateRequest) -> TokenUpdate:
    session = worker.open_session(new_epoch())
    worker.generate(session, message)
    while (frame := await session.next_frame()) is not None:
        for update in frame.updates:
            if update.is_last:
                worker.close_session(session)
                return update
    raise AssertionError("the session ended before the request did")


@pytest.mark.parametrize(
    "message",
    [
        GenerateRequest(request_id=RequestId("r"), attempt=1, prompt=(), pooling=Pooling.MEAN),
        GenerateRequest(request_id=RequestId("r"), attempt=1, prompt=(), sampling=WITH_PROMPT),
    ],
    ids=["an embedding", "prompt logprobs"],
)
async def test_what_a_prefill_replica_does_not_send_is_computed_here_whoever_was_named(
    message: GenerateRequest,
) -> None:
    async with running_fleet() as fleet:
        prefill = (fleet.replicas[PREFILL].info.endpoint,)
        message = replace(message, prompt=tuple(PROMPT), prefill=prefill)

        worker = fleet.replicas[DECODE].worker
        assert isinstance(worker, DecodeWorker)
        update = await last_update(worker, message)

        assert update.error is None
        assert update.receipt is not None
        assert update.receipt.prefill_replica == ""
        await fleet.assert_nothing_is_held()


async def test_an_embedding_that_nobody_waits_for_any_more_leaves_nothing_behind() -> None:
    async with running_fleet(make_engine=lambda role: echo_engine(role, prefill_chunk=1)) as fleet:
        with fleet.halting(lambda engine: engine.stats.num_tokens_run > 3):
            asking = asyncio.create_task(embed(fleet, PROMPT * 20, Pooling.MEAN))
            while not fleet.engines[DECODE].num_running:
                await asyncio.sleep(0)

            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking

        await fleet.assert_nothing_is_held()


async def test_the_priority_of_a_request_holds_on_both_replicas() -> None:
    async with running_fleet() as fleet:
        seen: dict[Role, int] = {}
        prefill, decode = fleet.engines[PREFILL], fleet.engines[DECODE]
        add, adopt = prefill.add, decode.adopt

        def note_added(request: Request) -> None:
            seen[Role.PREFILL] = request.priority
            add(request)

        def note_adopted(request: Request, lease: Holder) -> None:
            seen[Role.DECODE] = request.priority
            adopt(request, lease)

        prefill.add = note_added  # type: ignore[method-assign]
        decode.adopt = note_adopted  # type: ignore[method-assign]

        await fleet.ask(PROMPT, priority=7)

        assert seen == {Role.PREFILL: 7, Role.DECODE: 7}


async def test_a_second_choice_shares_the_prompt_of_the_first_while_that_still_runs() -> None:
    long = replace(GREEDY, max_tokens=300)
    async with running_fleet(prefill=0) as fleet:
        has_token = asyncio.Event()
        first = asyncio.create_task(fleet.ask(PROMPT, long, on_token=lambda _: has_token.set()))
        await has_token.wait()

        second = await fleet.ask(PROMPT, replace(GREEDY, choice=1))

        assert second.receipt.cached_tokens == 36
        assert second.receipt.computed_tokens == 1 + GREEDY.max_tokens - 1
        assert second.tokens == (await first).tokens[: GREEDY.max_tokens]
        await fleet.assert_nothing_is_held()
