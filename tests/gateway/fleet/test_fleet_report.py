"""What operators read, from two replicas of which one may not answer."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from tests.gateway.fleet.known_replicas import make_replica

from baton.core.ids import Epoch
from baton.core.metrics import exposition
from baton.core.replicas import Capacity, Role
from baton.gateway.fleet.fleet_report import (
    TERMS,
    Inspections,
    Knowledge,
    knowledge_families,
    leaks_report,
    status_report,
)
from baton.gateway.fleet.links.kv_watch import KvKnowledge
from baton.proto import replica_pb2 as pb
from baton.proto.capacity_wire import capacity_to_proto

P = make_replica("prefill-1", role=Role.PREFILL)
D = make_replica("decode-2", role=Role.DECODE)
NOBODY: Inspections = {}
NOTHING: Knowledge = {}
KNOWN = KvKnowledge(num_blocks=7, num_events=20, num_gaps=1, num_resyncs=2, is_synced=True)


def reply(*, violations: tuple[str, ...] = (), **metrics: float) -> pb.InspectReply:
    return pb.InspectReply(
        audit=pb.Audit(
            num_blocks=16, quarantined=1, leased=2, live=3, cached=4, free=6, violations=violations
        ),
        capacity=capacity_to_proto(
            Capacity(num_running=5, num_waiting=6, num_queued_tokens=70, num_free_blocks=10)
        ),
        metrics=[pb.Metric(name=name, value=value) for name, value in metrics.items()],
    )


def samples(text: str) -> dict[tuple[str, str], float]:
    """By metric and replica, as Prometheus reads it."""
    return {
        (sample.name, sample.labels["replica"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_leaks_report_shows_the_terms_of_the_equation_by_replica() -> None:
    report = leaks_report([P], {P.epoch: reply()})

    [row] = report["replicas"]
    assert report["equation"] == "num_blocks = quarantined + leased + live + cached + free"
    assert {term: row[term] for term in TERMS} == {
        "quarantined": 1, "leased": 2, "live": 3, "cached": 4, "free": 6,
    }  # fmt: skip
    assert row["num_blocks"] == sum(row[term] for term in TERMS)
    assert (row["replica"], row["role"], row["epoch"]) == ("prefill-1", "prefill", P.epoch)
    assert (report["violations"], report["unreachable"]) == ([], [])


def test_a_violation_is_named_with_its_replica() -> None:
    report = leaks_report(
        [P, D], {P.epoch: reply(), D.epoch: reply(violations=("block 7: 2 references, 1 holder",))}
    )

    assert report["violations"] == ["decode-2: block 7: 2 references, 1 holder"]
    assert [row["violations"] for row in report["replicas"]] == [[], report["violations"]]


def test_a_replica_that_does_not_answer_is_no_proof_that_nothing_leaks() -> None:
    report = leaks_report([P, D], {D.epoch: RuntimeError("unreachable")})

    assert report["unreachable"] == ["prefill-1", "decode-2"]
    assert report["replicas"] == []


def test_the_status_groups_replicas_by_pool_and_says_how_busy_each_is() -> None:
    report = status_report([P, D], {D.epoch: reply(steps_total=3)}, {D.epoch: KNOWN})

    [prefill], [decode] = report["pools"]["prefill"], report["pools"]["decode"]
    assert (prefill["replica"], prefill["is_reachable"]) == ("prefill-1", False)
    assert "num_running" not in prefill
    assert decode["is_reachable"]
    assert (decode["num_running"], decode["num_waiting"]) == (5, 6)
    assert (decode["num_queued_tokens"], decode["num_free_blocks"]) == (70, 10)
    assert set(decode["kv"]) == set(TERMS) and sum(decode["kv"].values()) == 16
    assert decode["metrics"] == {"steps_total": 3}
    assert decode["kv_index"] == {
        "num_blocks": 7, "num_events": 20, "num_gaps": 1, "num_resyncs": 2, "is_synced": True,
    }  # fmt: skip
    assert not prefill["kv_index"]["is_synced"]


def test_the_status_of_no_replicas_still_names_both_pools() -> None:
    assert status_report([], NOBODY, NOTHING) == {"pools": {"prefill": [], "decode": []}}


def test_the_metrics_say_how_well_the_gateway_follows_each_cache() -> None:
    text = exposition(knowledge_families([P, D], {D.epoch: KNOWN}))

    assert samples(text) == {
        ("baton_gateway_kv_index_blocks", "decode-2"): 7,
        ("baton_gateway_kv_index_synced", "decode-2"): 1,
        ("baton_gateway_kv_events_total", "decode-2"): 20,
        ("baton_gateway_kv_gaps_total", "decode-2"): 1,
        ("baton_gateway_kv_resyncs_total", "decode-2"): 2,
        ("baton_gateway_kv_index_blocks", "prefill-1"): 0,
        ("baton_gateway_kv_index_synced", "prefill-1"): 0,
        ("baton_gateway_kv_events_total", "prefill-1"): 0,
        ("baton_gateway_kv_gaps_total", "prefill-1"): 0,
        ("baton_gateway_kv_resyncs_total", "prefill-1"): 0,
    }


def test_a_replica_that_has_left_has_no_series_any_more() -> None:
    assert not samples(exposition(knowledge_families([], {Epoch("gone"): KNOWN})))


ENGINE = pb.EngineFacts(
    model='say "tiny"', dtype="bfloat16", quantize="int8", kernels="compiled", num_threads=2
)


def test_the_status_says_how_each_engine_computes() -> None:
    answer = reply()
    answer.engine.CopyFrom(ENGINE)

    report = status_report([P, D], {P.epoch: reply(), D.epoch: answer}, NOTHING)

    assert report["pools"]["decode"][0]["engine"] == {
        "model": 'say "tiny"',
        "dtype": "bfloat16",
        "quantize": "int8",
        "kernels": "compiled",
        "num_threads": 2,
    }
    assert report["pools"]["prefill"][0]["engine"] == {}  # it is of a release that does not say
