"""A decode replica that drafts: nothing of it is seen from outside but the counts in receipts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.echo_head import EchoHead
from tests.guessing_drafter import ErringDrafter
from tests.in_process_fleet import VOCAB_SIZE, echo_engine, running_fleet
from tests.services.migrating import LONG, PROMPT, SAMPLED, ask_and_drain, busy, is_empty

from baton.core.messages import Role, SamplingParams
from baton.engine.engine import Engine
from baton.engine.memory.kv_cache import KvCache
from baton.engine.passes.echo import EchoRunner, echo_info
from baton.engine.speculation.draft_budget import FixedBudget
from baton.engine.speculation.draft_model import ModelDrafter
from baton.engine.speculation.head_drafter import HeadDrafter
from baton.engine.speculation.speculation import Speculation

PENALISED = replace(SAMPLED, frequency_penalty=0.7, repetition_penalty=1.2, num_logprobs=2)


def drafting_engine(role: Role) -> Engine:
    """A small model drafts on D, and errs now and then; D's pool is tight."""
    engine = echo_engine(role, num_blocks=256 if role is Role.PREFILL else 130)
    if role is Role.DECODE:
        small = EchoRunner(
            echo_info(vocab_size=VOCAB_SIZE, max_model_len=2048), num_blocks=512, block_size=4
        )
        drafter = ModelDrafter(small, max_batch_tokens=64, eos_token_ids=())
        engine.speculation = Speculation(ErringDrafter(drafter, 5), FixedBudget(4))
    return engine


@pytest.mark.parametrize("prefill", [0, 1])
@pytest.mark.parametrize("sampling", [LONG, PENALISED], ids=["greedy", "penalties, logprobs"])
async def test_a_replica_that_drains_in_mid_draft_loses_no_token(
    sampling: SamplingParams, prefill: int
) -> None:
    async with running_fleet(prefill=prefill, decode=1) as fleet:
        plain = await fleet.ask(PROMPT, sampling)

    async with running_fleet(prefill=prefill, decode=2, make_engine=drafting_engine) as fleet:
        answer, drained = await ask_and_drain(fleet, sampling)

        receipt = answer.receipt
        assert answer.tokens == plain.tokens
        assert answer.logprobs == plain.logprobs
        assert receipt.attempts == 2
        assert receipt.computed_tokens == plain.receipt.computed_tokens
        assert receipt.drafted_tokens > receipt.accepted_tokens > 100
        await is_empty(fleet, drained)
        await fleet.assert_nothing_is_held()


def engine_with_a_head(role: Role) -> Engine:
    """D drafts by what it computes itself: of a prompt that P computes it is shown nothing."""
    engine = echo_engine(role)
    if role is Role.DECODE:
        assert isinstance(engine.runner, EchoRunner)
        cache = KvCache(engine.runner.cache.layout, 256)
        drafter = HeadDrafter("mtp", EchoHead(engine.runner), cache, eos_token_ids=())
        erring = ErringDrafter(drafter, 5)
        engine.speculation = Speculation(erring, FixedBudget(4), reader=drafter)
    return engine


@pytest.mark.parametrize("prefill", [0, 1])
async def test_a_head_says_what_it_drafts_without_and_a_drain_loses_no_token(prefill: int) -> None:
    async with running_fleet(prefill=prefill, decode=1) as fleet:
        plain = await fleet.ask(PROMPT, PENALISED)

    async with running_fleet(prefill=prefill, decode=2, make_engine=engine_with_a_head) as fleet:
        answer, drained = await ask_and_drain(fleet, PENALISED)

        notes = [note for note in answer.receipt.notes if note.startswith("drafted without")]
        assert answer.tokens == plain.tokens
        assert answer.logprobs == plain.logprobs
        assert answer.receipt.attempts == 2
        assert answer.receipt.accepted_tokens > 100
        assert len(notes) >= prefill
        await is_empty(fleet, drained)
        await fleet.assert_nothing_is_held()


async def test_a_replica_that_dies_in_mid_draft_costs_no_token() -> None:
    async with running_fleet(prefill=1, decode=2, make_engine=drafting_engine) as fleet:
        plain = await fleet.ask(PROMPT, SAMPLED)
        died: list[str] = []

        async def on_token(num_tokens: int) -> None:
            if num_tokens >= 60 and not died:
                died.extend(busy(fleet))
                await fleet.crash(busy(fleet)[0])

        answer = await fleet.ask(PROMPT, SAMPLED, on_token=on_token)

        assert died and answer.receipt.attempts == 2
        assert answer.tokens == plain.tokens
        await fleet.assert_nothing_is_held()


async def test_many_that_draft_in_a_tight_pool_get_what_each_gets_alone() -> None:
    prompts = [[(7 * i + j) % 250 + 1 for i in range(20 + 5 * j)] for j in range(6)]
    sampling = replace(SAMPLED, max_tokens=120)
    async with running_fleet(prefill=1, decode=1) as fleet:
        plain = [(await fleet.ask(prompt, sampling)).tokens for prompt in prompts]

    async with running_fleet(prefill=1, decode=1, make_engine=drafting_engine) as fleet:
        [here] = [name for name, each in fleet.replicas.items() if each.info.role is Role.DECODE]
        asking = [fleet.ask(prompt, sampling) for prompt in prompts]
        answers = await fleet.ask_all(asking, at=here, first=range(6))

        assert [answer.tokens for answer in answers] == plain
        assert fleet.engines[here].stats.num_accepted > 0
        assert fleet.engines[here].stats.num_preempted > 0
        await fleet.assert_nothing_is_held()
