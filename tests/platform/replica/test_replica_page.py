"""What replicas tell Prometheus, each of itself, after requests through several gateways."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from tests.in_process_fleet import Fleet, running_fleet

from baton.core.metrics import exposition
from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.core.step_times import StepWork
from baton.engine.mesh.mesh import Mesh
from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.kv_transfer.handoff.messages import Outcome, SettleTransfer
from baton.kv_transfer.sending.outbox import Outbox
from baton.platform.models.model_shape import AttentionShape, ModelShape, Part, Product
from baton.platform.observe.config import MetricsConfig
from baton.platform.replica.metric_help import HELP
from baton.platform.replica.replica_page import ReplicaPage, families_of, peaks_of
from baton.platform.replica.step_cost import cost_of
from baton.replica_core.step_meter import StepCost
from baton.router.placer import Routing
from baton.router.policies.cost import Cost

NUM_GATEWAYS = 3
PLAIN = MetricsConfig()
PROMPT = [5, 6, 7, 8, 9, 10]


def samples(page: str) -> list[Sample]:
    return [one for family in text_string_to_metric_families(page) for one in family.samples]


def value(page: str, name: str, **labels: str) -> float:
    """The sum over what has these labels."""
    return sum(
        one.value
        for one in samples(page)
        if one.name == name and labels.items() <= one.labels.items()
    )


def replica_pages(fleet: Fleet, config: MetricsConfig = PLAIN) -> dict[Role, str]:
    return {
        replica.info.role: ReplicaPage(replica, config).text()
        for replica in fleet.replicas.values()
    }


async def until_sealed(fleet: Fleet, num_transfers: int) -> None:
    """A sender hears of the last seal a moment after its blocks are free."""
    async with asyncio.timeout(20):
        while True:
            page = replica_pages(fleet)[Role.PREFILL]
            if value(page, "baton_replica_transfers_sealed_total") == num_transfers:
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def more_gateways(fleet: Fleet) -> AsyncIterator[list[ReplicaDispatcher]]:
    """`fleet` has one, the others know the same replicas."""
    routing = Routing(Cost(), local_prefill_tokens=0)
    others = [
        ReplicaDispatcher(routing, max_waiting=10, no_replica_grace_s=5.0)
        for _ in range(NUM_GATEWAYS - 1)
    ]
    first = fleet.dispatcher
    try:
        for one in others:
            fleet.dispatcher = one
            await fleet.sync()
        yield [first, *others]
    finally:
        fleet.dispatcher = first
        for one in others:
            await one.fleet.close()


async def test_no_series_is_there_twice_however_many_gateways_there_are() -> None:
    async with running_fleet() as fleet, more_gateways(fleet) as gateways:
        for gateway in gateways:
            fleet.dispatcher = gateway
            answer = await fleet.ask(PROMPT)
            assert answer.receipt.prefill_replica
        await fleet.assert_nothing_is_held()
        await until_sealed(fleet, len(gateways))
        pages = replica_pages(fleet)
        gateway_pages = [exposition(gateway.metrics()) for gateway in gateways]

    num_requests = len(gateways)
    whole = "".join(pages.values()) + "".join(gateway_pages)
    of_replicas = Counter(
        (one.name, *sorted(one.labels.items()))
        for page in (*pages.values(), *gateway_pages)
        for one in samples(page)
        if one.name.startswith("baton_replica_")
    )
    assert set(of_replicas.values()) == {1}
    assert not [one for page in gateway_pages for one in samples(page) if "replica_" in one.name]
    assert whole.count("# TYPE baton_gateway_waiting_requests") == num_requests
    assert value(pages[Role.DECODE], "baton_replica_transfers_adopted_total") == num_requests
    assert value(pages[Role.PREFILL], "baton_replica_transfers_sealed_total") == num_requests
    taken = {"transport": "grpc"}
    decode = pages[Role.DECODE]
    assert value(decode, "baton_replica_kv_transfer_seconds_count", **taken) == num_requests
    assert value(decode, "baton_replica_kv_transfer_bytes_total", **taken) > 0
    blocks = [value(page, "baton_replica_kv_blocks") for page in pages.values()]
    assert blocks == [256, 256]
    assert value(pages[Role.PREFILL], "baton_replica_step_seconds_count", phase="prompt") >= 1
    assert value(decode, "baton_replica_step_seconds_count", phase="decode") >= 1


async def test_a_page_explains_all_that_is_on_it_and_has_the_names_of_vllm_if_asked() -> None:
    async with running_fleet() as fleet:
        await fleet.ask(PROMPT)
        plain = replica_pages(fleet)
        both = replica_pages(fleet, MetricsConfig(vllm_names=True))
        names = {key.partition("{")[0] for it in fleet.replicas.values() for key in it.metrics()}

    assert not names - HELP.keys()
    assert not [page for page in plain.values() if "vllm:" in page]
    labels = {"model_name": "demo"}
    assert value(both[Role.DECODE], "vllm:num_requests_running", **labels) == 0
    queries = {role: value(page, "vllm:prefix_cache_queries_total") for role, page in both.items()}
    assert queries == {Role.PREFILL: len(PROMPT), Role.DECODE: 0}  # it decoded alone
    assert {one.labels["engine"] for one in samples(both[Role.DECODE]) if ":" in one.name} == {
        "decode-2"
    }


async def test_a_handoff_is_sealed_also_if_its_answer_is_over_before_p_has_heard_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hears = Outbox.settle

    async def hears_late(self: Outbox, request: SettleTransfer) -> Outcome:
        await asyncio.sleep(0.3)
        return await hears(self, request)

    monkeypatch.setattr(Outbox, "settle", hears_late)
    async with running_fleet() as fleet:
        await fleet.ask(PROMPT, SamplingParams(max_tokens=2, temperature=0.0))
        await until_sealed(fleet, 1)


async def test_a_handoff_that_its_first_token_ends_is_cancelled_and_no_failure() -> None:
    async with running_fleet() as fleet:
        await fleet.ask(PROMPT, SamplingParams(max_tokens=1, temperature=0.0))
        await fleet.assert_nothing_is_held()
        page = replica_pages(fleet)[Role.DECODE]

    name = "baton_replica_transfers_aborted_total"
    ended = {one.labels["reason"]: one.value for one in samples(page) if "reason" in one.labels}
    assert ended == {"cancelled": 1, "expired": 0, "pressure": 0, "failed": 0}
    assert value(page, name, side="sending") == 0


def test_labels_that_stand_behind_a_name_are_read_as_they_were_written() -> None:
    [family] = families_of({'held{tenant="a \\"b\\" \\\\ c"}': 3, 'held{tenant=""}': 1})

    assert (family.name, family.kind) == ("baton_replica_held", "gauge")
    assert [(one.labels, one.value) for one in family.samples] == [
        ({"tenant": 'a "b" \\ c'}, 3),
        ({"tenant": ""}, 1),
    ]


def test_a_step_costs_what_the_shape_of_the_model_says() -> None:
    head = Product(part=Part.HEAD, width=8, num_rows=100, num_bytes=1600)
    dense = Product(part=Part.QKV, width=8, num_rows=24, num_bytes=384)
    experts = Product(part=Part.EXPERTS, width=8, num_rows=32, num_bytes=4096, experts=(4, 2))
    attention = AttentionShape(
        num_heads=4, num_kv_heads=2, head_dim=2, window=None, kv_token_bytes=16
    )
    shape = ModelShape(
        width=8,
        vocab_size=100,
        item_bytes=2,
        products=(dense, experts, head),
        attentions=(attention, attention),
        num_norms=2,
    )

    cost = cost_of(shape)
    one_token = StepWork(num_tokens=1, num_pairs=0, num_context=10, num_requests=1)

    assert cost.flops(one_token) == 2 * 8 * (24 + 2 * 32 + 100) + 10 * 2 * 4 * 4 * 2
    assert cost.bytes_moved(one_token) == 384 + 1600 + 4096 / 2 + (10 + 1) * 2 * 16
    assert StepCost().flops(one_token) == StepCost().bytes_moved(one_token) == 0


def test_whole_experts_of_a_rank_cost_their_part_of_all_data_places() -> None:
    experts = Product(part=Part.EXPERTS, width=8, num_rows=32, num_bytes=512, experts=(32, 2))
    shape = ModelShape(
        width=8, vocab_size=100, item_bytes=2, products=(experts,), attentions=(), num_norms=2
    )
    step = StepWork(num_tokens=4, num_pairs=0, num_context=0, num_requests=4)
    everywhere = 2 * 8 * 32 * 2 * 4  # by the tokens of one data place

    alike = cost_of(shape, Mesh(tensor=8, expert=8))
    apart = cost_of(shape, Mesh(data=8, expert=8))

    assert alike.flops(step) == everywhere / 8
    assert apart.flops(step) == everywhere
    assert alike.bytes_moved(step) == pytest.approx(512 * (1 - (30 / 32) ** 4))
    assert apart.bytes_moved(step) == pytest.approx(512 * (1 - (30 / 32) ** 32))


def test_what_a_device_can_do_is_as_configured_where_no_data_sheet_says() -> None:
    peaks = peaks_of(MetricsConfig(peak_tflop_s=1.5, peak_gb_s=40), "cpu")

    assert (peaks.flops_s, peaks.bytes_s) == (1.5e12, 40e9)
