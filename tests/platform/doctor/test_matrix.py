"""What the measured ways between replicas mean for a deployment."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from baton.core.ids import Epoch, ReplicaId
from baton.core.replicas import Role
from baton.platform.doctor.finding import Status
from baton.platform.doctor.matrix import (
    LiveReplica,
    Size,
    TransportMeasurement,
    check_sample,
    check_ways,
    pairs_of,
    sampled,
)

P, D, E = (
    LiveReplica(replica_id=ReplicaId(name), role=role, epoch=Epoch(name), address=name)
    for name, role in (("p", Role.PREFILL), ("d", Role.DECODE), ("e", Role.DECODE))
)


def way(transport: str, gb_per_s: float | None, **details: Any) -> TransportMeasurement:
    """None: it does not work."""
    sizes: tuple[Size, ...] = ()
    if gb_per_s is None:
        details.setdefault("error", "nobody listens")
    else:
        sizes = (Size(num_bytes=1 << 20, rounds_s=((1 << 20) / gb_per_s / 1e9,)),)
    return TransportMeasurement(
        receiver=D.replica_id, sender=P.replica_id, transport=transport, sizes=sizes, **details
    )


def test_kv_travels_from_prefill_to_decode_and_between_decode_replicas() -> None:
    assert pairs_of([P, D, E]) == [(D, P), (D, E), (E, P), (E, D)]


def test_a_sample_has_as_many_replicas_as_its_pairs_can() -> None:
    prefills = [replace(P, replica_id=ReplicaId(f"p{n}"), epoch=Epoch(f"p{n}")) for n in range(20)]
    decodes = [replace(D, replica_id=ReplicaId(f"d{n}"), epoch=Epoch(f"d{n}")) for n in range(20)]
    pairs = pairs_of([*prefills, *decodes])

    few, some, all_ = (sampled(pairs, num, Random(7)) for num in (5, 100, 10_000))

    assert len(few) == 5 and len({one.epoch for pair in few for one in pair}) == 10
    assert len(set(some)) == 100 and len({one.epoch for pair in some for one in pair}) == 40
    assert set(all_) == set(pairs)
    assert sampled(pairs, 5, Random(8)) != few
    told = check_sample(pairs, few)
    assert told.seen == "5 of 780, drawn at random, with 10 of 40 replicas among them"


def test_a_pair_with_a_way_is_well_and_says_which_is_fastest() -> None:
    [found] = check_ways([way("shm", 5.0), way("grpc", 1.0), way("gloo", None)], ())

    assert found.status is Status.OK
    assert found.where == "p -> d"
    assert found.seen == "shm 5.00 GB/s; not gloo: nobody listens"


@pytest.mark.parametrize(
    ("required", "status"), [((), "ok"), (("grpc", "nixl"), "ok"), (("nixl",), "fail")]
)
def test_what_is_required_must_work(required: tuple[str, ...], status: str) -> None:
    [found] = check_ways([way("grpc", 1.0), way("nixl", None)], required)

    assert found.status == status


def test_a_pair_says_which_way_is_taken_where_another_is_a_little_faster() -> None:
    [found] = check_ways([way("tcp", 5.0), way("shm", 4.0, chosen="auto")], ())

    assert found.status is Status.OK
    assert found.seen == "shm 4.00 GB/s, which is taken; tcp 5.00 GB/s at its fastest"


def test_a_pair_without_any_way_fails_and_says_why_of_each() -> None:
    [found] = check_ways([way("shm", None, error="another host"), way("grpc", None)], ())

    assert found.status is Status.FAIL
    assert found.seen == "no way by any transport: shm: another host; grpc: nobody listens"


def test_a_required_transport_nobody_knows_fails() -> None:
    [found] = check_ways([way("grpc", 1.0)], ("pigeon",))

    assert "no way by pigeon: it is not known here" in found.seen


def test_a_slow_way_taken_beside_a_fast_one_is_warned_about() -> None:
    ways = [way("shm", 5.0), way("grpc", 1.0, chosen="auto: it measured 1.0 GB/s")]

    [found] = check_ways(ways, ())

    assert found.status is Status.WARN
    assert found.seen.startswith("grpc is taken (auto: it measured 1.0 GB/s), though shm")


def test_each_pair_is_judged_alone() -> None:
    other = TransportMeasurement(
        receiver=E.replica_id, sender=P.replica_id, transport="grpc", error="refused"
    )

    found = check_ways([way("grpc", 1.0), other], ())

    assert [(f.where, f.status) for f in found] == [
        ("p -> d", Status.OK),
        ("p -> e", Status.FAIL),
    ]


def test_a_rate_is_that_of_the_median_round() -> None:
    assert Size(num_bytes=100, rounds_s=(1.0, 50.0, 2.0)).bytes_per_s == 50.0
