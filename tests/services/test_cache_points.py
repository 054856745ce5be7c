"""Cache points and tenants on real replicas: what stays, on which of them, and for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.in_process_fleet import GREEDY, VOCAB_SIZE, Fleet, running_fleet

from baton.core.chaos import ChaosRule, Fault
from baton.core.errors import InvalidRequest
from baton.core.ids import ReplicaId, new_epoch, new_transfer_id
from baton.core.messages import CachePoint, PullRequest
from baton.core.replicas import Role
from baton.core.sampling import FinishReason
from baton.decode_service.worker import DecodeWorker
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.passes.echo import EchoRunner, echo_info, echo_output
from baton.gateway.access.cache_salt import CacheSalts
from baton.router.cache.prompt_names import PromptNames

PROMPT = list(range(1, 42))
FOR_AN_HOUR = (CachePoint(len(PROMPT), 3600.0),)
DECODE, PREFILL = ReplicaId("decode-2"), ReplicaId("prefill-1")
ALONE = ReplicaId("decode-1")
SALTS = CacheSalts("secret")


def small_engine(
    role: Role = Role.DECODE,
    *,
    num_blocks: int = 32,
    pinned_fraction: float = 0.5,
    kv_shares: Mapping[str, float] | None = None,
) -> Engine:
    info = echo_info(vocab_size=VOCAB_SIZE, max_model_len=2048, num_layers=2)
    config = EngineConfig(
        cache=CacheConfig(block_size=4, num_blocks=num_blocks, pinned_fraction=pinned_fraction),
        scheduler=SchedulerConfig(),
        kv_shares=kv_shares or {},
    )
    return Engine(EchoRunner(info, num_blocks=num_blocks, block_size=4), config)


def shared_engine(role: Role = Role.DECODE) -> Engine:
    return small_engine(role, kv_shares={"a": 0.5})


async def flood(fleet: Fleet, num_prompts: int = 8) -> None:
    """Other prompts, more than the caches hold."""
    for number in range(num_prompts):
        await fleet.ask([100 + number] * 60, replace(GREEDY, max_tokens=2))
        await fleet.assert_nothing_is_held()  # or P would have no room for the next


async def test_a_pinned_prompt_stays_on_both_replicas_that_had_its_kv() -> None:
    async with running_fleet(make_engine=small_engine) as fleet:
        first = await fleet.ask(PROMPT, cache_points=FOR_AN_HOUR)
        await flood(fleet)

        again = await fleet.ask(PROMPT)

        assert again.tokens == first.tokens == echo_output(PROMPT, GREEDY.max_tokens, VOCAB_SIZE)
        assert again.receipt.cached_tokens == 40
        assert [fleet.engines[r].pool.prefixes.pins.num_names for r in (DECODE, PREFILL)] == [
            10,
            10,
        ]
        for replica in fleet.replicas.values():
            metrics = replica.metrics()
            assert metrics["kv_blocks_pinned"] == 10
            assert metrics['kv_blocks_held{tenant=""}'] >= 10
        await fleet.assert_nothing_is_held()


async def test_a_prompt_waits_for_a_computed_one_to_be_fetched_rather_than_take_a_pins_blocks() -> (
    None
):
    changes = {"chaos": {"enabled": True}}
    async with running_fleet(make_engine=small_engine, changes=changes) as fleet:
        await fleet.ask(PROMPT, cache_points=FOR_AN_HOUR)
        await fleet.assert_nothing_is_held()
        chaos = fleet.replicas[DECODE].chaos
        assert chaos is not None
        late = ChaosRule(at="transfer.settle", fault=Fault.DELAY, rate=1.0, delay_s=0.25)
        chaos.set((late,), 0)  # the next prompt is at P before P hears that the last one is fetched

        others = [
            await fleet.ask([100 + number] * 60, replace(GREEDY, max_tokens=2))
            for number in range(3)
        ]

        assert [other.receipt.prefill_replica for other in others] == [PREFILL] * 3
        assert [other.receipt.notes for other in others] == [()] * 3
        assert fleet.engines[PREFILL].pool.supply.counters.num_evicted == 0
        await fleet.assert_nothing_is_held()


async def test_without_a_point_the_same_prompt_is_evicted() -> None:
    async with running_fleet(make_engine=small_engine) as fleet:
        await fleet.ask(PROMPT)
        await fleet.assert_nothing_is_held()
        await flood(fleet)

        again = await fleet.ask(PROMPT)

        assert again.receipt.cached_tokens == 0


async def test_the_receipt_tells_what_was_written_and_what_was_read() -> None:
    async with running_fleet(make_engine=small_engine) as fleet:
        first = await fleet.ask(PROMPT, cache_points=FOR_AN_HOUR)
        longer = await fleet.ask([*PROMPT, *range(60, 72)], cache_points=(CachePoint(53, 300.0),))
        plain = await fleet.ask(PROMPT)

        written = [a.receipt.cache_write_tokens for a in (first, longer, plain)]
        assert written == [40, 12, 0]
        assert [a.receipt.cached_tokens for a in (first, longer, plain)] == [0, 40, 40]


async def test_a_prompt_answered_by_one_token_is_kept_where_it_was_computed() -> None:
    async with running_fleet(make_engine=small_engine) as fleet:
        answer = await fleet.ask(PROMPT, replace(GREEDY, max_tokens=1), cache_points=FOR_AN_HOUR)

        assert answer.receipt.cache_write_tokens == 40
        assert fleet.engines[PREFILL].pool.prefixes.pins.num_names == 10


async def test_a_prompt_computed_where_it_decodes_is_pinned_there() -> None:
    async with running_fleet(prefill=0, make_engine=small_engine) as fleet:
        answer = await fleet.ask(PROMPT, cache_points=FOR_AN_HOUR)
        await flood(fleet)

        assert answer.receipt.cache_write_tokens == 40
        assert (await fleet.ask(PROMPT)).receipt.cached_tokens == 40


async def test_what_could_not_be_kept_is_said_in_a_note() -> None:
    async with running_fleet(prefill=0, make_engine=small_engine) as fleet:
        large = await fleet.ask(list(range(90)), cache_points=(CachePoint(90, 300.0),))
        other = await fleet.ask(PROMPT, cache_points=FOR_AN_HOUR)

        assert large.receipt.cache_write_tokens == 64
        assert "kept 64 of 90 tokens" in large.receipt.notes[0]
        assert "1 older one gave way" in other.receipt.notes[0]


async def test_pins_never_keep_a_request_from_running() -> None:
    def all_pinned(role: Role) -> Engine:
        return small_engine(role, pinned_fraction=1.0)

    prompt = list(range(120))
    async with running_fleet(prefill=0, make_engine=all_pinned) as fleet:
        for number in range(3):
            await fleet.ask([number] * 40, cache_points=(CachePoint(40, 3600.0),))

        answer = await fleet.ask(prompt, replace(GREEDY, max_tokens=6))

        assert answer.tokens == echo_output(prompt, 6, VOCAB_SIZE)
        assert fleet.engines[ALONE].pool.supply.counters.num_evicted == 3
        await fleet.assert_nothing_is_held()


async def test_equal_prompts_of_two_tenants_share_nothing() -> None:
    async with running_fleet(make_engine=small_engine) as fleet:
        salts = [SALTS.salt(tenant, "") for tenant in ("a", "b")]
        first = await fleet.ask(PROMPT, tenant="a", salt=salts[0])
        other = await fleet.ask(PROMPT, tenant="b", salt=salts[1])
        again = await fleet.ask(PROMPT, tenant="a", salt=salts[0])

        assert first.tokens == other.tokens == again.tokens
        assert [a.receipt.cached_tokens for a in (first, other, again)] == [0, 0, 40]
        [layout] = {info.layout for info in fleet.dispatcher.fleet.replicas}
        own, others = (set(PromptNames(PROMPT, salt).under(layout)) for salt in salts)
        assert own and not own & others


async def test_the_router_sees_no_match_for_another_tenant() -> None:
    async with running_fleet(make_engine=small_engine) as fleet:
        await fleet.ask(PROMPT, tenant="a", salt=SALTS.salt("a", ""))
        index, layout = fleet.dispatcher.fleet.index, fleet.dispatcher.fleet.replicas[0].layout
        own, other = (
            PromptNames(PROMPT, SALTS.salt(tenant, "")).under(layout) for tenant in ("a", "b")
        )
        async with asyncio.timeout(60):
            while not index.num_cached_blocks(own):
                await asyncio.sleep(0.01)

        assert not index.num_cached_blocks(other)
        assert not index.expected(other).by_epoch()


@pytest.mark.parametrize("num_prefill", [0, 1])
async def test_a_tenant_that_floods_does_not_keep_another_waiting(num_prefill: int) -> None:
    async with running_fleet(prefill=num_prefill, make_engine=shared_engine) as fleet:
        salt = SALTS.salt("a", "")
        flooding = [
            asyncio.create_task(fleet.ask([n] * 30, tenant="a", salt=salt)) for n in range(20)
        ]
        other = await fleet.ask(PROMPT, tenant="b", salt=SALTS.salt("b", ""))
        assert other.tokens == echo_output(PROMPT, GREEDY.max_tokens, VOCAB_SIZE)
        answers = await asyncio.gather(*flooding)

        assert [a.tokens for a in answers] == [
            echo_output([n] * 30, GREEDY.max_tokens, VOCAB_SIZE) for n in range(20)
        ]
        await fleet.assert_nothing_is_held()
        for engine in fleet.engines.values():
            assert engine.pool.accounts.num_held("a") <= 16


async def test_what_others_borrowed_of_a_tenants_blocks_keeps_no_handoff_of_its_own_out() -> None:
    async with running_fleet(make_engine=shared_engine) as fleet:
        salt = SALTS.salt("a", "")
        await fleet.ask(PROMPT, tenant="a", salt=salt)
        worker = fleet.replicas[DECODE].worker
        assert isinstance(worker, DecodeWorker)
        request = PullRequest(
            transfer_id=new_transfer_id(),
            receiver_epoch=new_epoch(),
            layout=worker.core.kv.pool.layout,
            tokens=tuple(PROMPT),
            num_held=0,
            salt=salt,
            tenant="another's turn",
            time_left_ms=60_000,
        )
        loan = worker.core.kv.lender.lend(request)
        assert (await anext(loan)).num_tokens == 40  # 10 blocks of its 16

        other = await fleet.ask([7] * 30, tenant="a", salt=salt)

        assert other.receipt.prefill_replica == PREFILL and not other.receipt.notes
        assert await anext(loan, None) is None
        await fleet.assert_nothing_is_held()


async def test_what_a_tenant_has_cached_within_its_share_survives_the_flood_of_others() -> None:
    async with running_fleet(make_engine=shared_engine) as fleet:
        salt = SALTS.salt("a", "")
        await fleet.ask(PROMPT, tenant="a", salt=salt)
        await flood(fleet)

        again = await fleet.ask(PROMPT, tenant="a", salt=salt)

        assert again.receipt.cached_tokens == 40


async def test_a_request_larger_than_its_tenants_share_is_refused_by_name() -> None:
    async with running_fleet(make_engine=shared_engine) as fleet:
        with pytest.raises(
            InvalidRequest, match="that tenant `a` may have in the cache"
        ) as refused:
            await fleet.ask([1] * 70, tenant="a", salt=b"a")

        assert refused.value.field == "prompt"
        await fleet.assert_nothing_is_held()


async def test_an_output_ends_where_its_tenants_share_does() -> None:
    async with running_fleet(make_engine=shared_engine) as fleet:
        answer = await fleet.ask(PROMPT, replace(GREEDY, max_tokens=100), tenant="a", salt=b"a")

        assert len(answer.tokens) == 64 - len(PROMPT)
        assert answer.finish_reason is FinishReason.LENGTH
        assert answer.tokens == echo_output(PROMPT, len(answer.tokens), VOCAB_SIZE)
        await fleet.assert_nothing_is_held()
