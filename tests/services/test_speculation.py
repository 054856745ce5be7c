"""A decode replica that drafts: nothing of it is seen from outside but the counts in receipts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.echo_head import FEATURES, EchoHead
from tests.guessing_drafter import ErringDrafter
from tests.in_process_fleet import VOCAB_SIZE, echo_engine, running_fleet
from tests.services.migrating import LONG, PROMPT, SAMPLED, ask_and_drain, busy, is_empty

from baton.core.ids import ReplicaId
from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.engine.config import CacheConfig, EngineConfig
from baton.engine.engine import Engine
from baton.engine.memory.kv_cache import KvCache
from baton.engine.passes.echo import EchoRunner, echo_info
from baton.engine.speculation.draft_budget import FixedBudget
from baton.engine.speculation.draft_model import ModelDrafter
from baton.engine.speculation.feature_keeper import FeatureKeeper, keeping
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
        engine.speculation = Speculation(ErringDrafter(drafter, 4), FixedBudget(4))
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


def keeping_engine(role: Role, *, features: bool = True) -> Engine:
    """The same with features kept in the blocks, on P as well."""
    info = echo_info(vocab_size=VOCAB_SIZE, max_model_len=2048, num_layers=3)
    kept = FEATURES if features else None
    runner = EchoRunner(info, num_blocks=256, block_size=4, features=kept)
    config = EngineConfig(cache=CacheConfig(block_size=4, num_blocks=256))
    if role is Role.PREFILL:
        keeper = FeatureKeeper(join=EchoHead(runner).joined)
        return Engine(runner, config, speculation=keeping(keeper) if features else None)
    cache = KvCache(info.layout(4), 256)
    drafter = HeadDrafter("mtp", EchoHead(runner), cache, eos_token_ids=())
    erring = ErringDrafter(drafter, 7)
    return Engine(runner, config, speculation=Speculation(erring, FixedBudget(4), reader=drafter))


def head_of(engine: Engine) -> EchoHead:
    assert engine.speculation is not None
    assert isinstance(engine.speculation.reader, HeadDrafter)
    head = engine.speculation.reader._head
    assert isinstance(head, EchoHead)
    return head


async def test_a_head_reads_whole_prompts_where_their_features_are_handed_over() -> None:
    async with running_fleet(prefill=0, make_engine=keeping_engine) as fleet:
        alone = await fleet.ask(PROMPT, PENALISED)

    async with running_fleet(prefill=1, make_engine=keeping_engine) as fleet:
        answer = await fleet.ask(PROMPT, PENALISED)
        again = await fleet.ask([*PROMPT[:24], *PROMPT], SAMPLED)  # P has its first blocks cached
        [decode] = [e for name, e in fleet.engines.items() if name.startswith("decode")]

        assert (answer.tokens, answer.logprobs) == (alone.tokens, alone.logprobs)
        assert answer.receipt.accepted_tokens > 150
        for each in (answer, again):
            assert each.receipt.prefill_replica
            assert not [note for note in each.receipt.notes if note.startswith("drafted without")]
        [prefill] = [e for name, e in fleet.engines.items() if name.startswith("prefill")]
        assert decode.speculation is not None
        assert prefill.speculation is not None
        found = decode.speculation.metrics()
        assert prefill.speculation.metrics() == {}
        assert found["draft_missing_tokens_total"] == 0
        assert found["draft_recalled_tokens_total"] >= len(PROMPT)
        assert head_of(decode).num_first == 1  # pairs of the prefix that both have are found
        await fleet.assert_nothing_is_held()


@pytest.mark.wide
async def test_features_follow_a_request_that_moves() -> None:
    async with running_fleet(prefill=0, make_engine=keeping_engine) as fleet:
        alone = await fleet.ask(PROMPT, SAMPLED)

    async with running_fleet(prefill=1, decode=2, make_engine=keeping_engine) as fleet:
        answer, drained = await ask_and_drain(fleet, SAMPLED)

        assert answer.tokens == alone.tokens
        assert answer.receipt.attempts == 2
        assert not [n for n in answer.receipt.notes if n.startswith("drafted without")]
        await is_empty(fleet, drained)
        await fleet.assert_nothing_is_held()


@pytest.mark.parametrize(
    "has_features", [pytest.param(Role.PREFILL, marks=pytest.mark.wide), Role.DECODE]
)
async def test_where_one_side_has_no_features_the_other_hands_over_without_and_says_so(
    has_features: Role,
) -> None:
    def make(role: Role) -> Engine:
        return keeping_engine(role, features=role is has_features)

    async with running_fleet(prefill=0, make_engine=keeping_engine) as fleet:
        alone = await fleet.ask(PROMPT, SAMPLED)

    async with running_fleet(prefill=1, make_engine=make) as fleet:
        for _ in range(2):  # the second prompt is in D's cache, and of it there are no features
            answer = await fleet.ask(PROMPT, SAMPLED)

            assert answer.tokens == alone.tokens
            assert answer.receipt.prefill_replica
            [note] = [n for n in answer.receipt.notes if n.startswith("drafted without")]
            assert f"without {len(PROMPT)} tokens" in note
        await fleet.assert_nothing_is_held()


async def test_a_replica_that_dies_in_mid_draft_costs_no_token() -> None:
    async with running_fleet(prefill=1, decode=2, make_engine=drafting_engine) as fleet:
        plain = await fleet.ask(PROMPT, SAMPLED)
        died: list[ReplicaId] = []

        async def on_token(num_tokens: int) -> None:
            if num_tokens >= 60 and not died:
                died.extend(busy(fleet))
                await fleet.crash(died[0])
                go_on()

        with fleet.halting_at(60) as go_on:
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
