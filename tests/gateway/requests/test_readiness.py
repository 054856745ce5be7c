"""What is missing is said by role, with what each role waits for."""

from __future__ import annotations

from dataclasses import replace

from tests.gateway.fleet.known_replicas import make_replica

from baton.core.ids import ReplicaId
from baton.core.replicas import ReplicaInfo, Role, StartingReplica
from baton.gateway.requests.readiness import Missing, missing

WANTED = {Role.DECODE: 2, Role.PREFILL: 1}


def starting(name: str, role: Role = Role.DECODE) -> StartingReplica:
    return StartingReplica(replica_id=ReplicaId(name), role=role, stage="importing", stage_s=3.2)


def ready(*infos: ReplicaInfo) -> dict[ReplicaInfo, str]:
    return dict.fromkeys(infos, "")


def test_before_any_replica_exists_ray_is_waited_for() -> None:
    assert missing(WANTED, {}, ()) == (
        Missing(role="decode", wanted=2, ready=0, waiting_for="Ray to start 2 processes"),
        Missing(role="prefill", wanted=1, ready=0, waiting_for="Ray to start 1 process"),
    )


def test_a_replica_that_loads_is_named_with_its_stage_and_since_when() -> None:
    loading = starting("decode-ab12").at("loading weights", 0.25)
    known = ready(make_replica("decode-1"), make_replica("prefill-1", role=Role.PREFILL))

    [decode] = missing(WANTED, known, (loading,))

    assert (decode.ready, decode.wanted) == (1, 2)
    assert decode.waiting_for == "decode-ab12: loading weights 25% (3 s)"


def test_a_replica_that_drains_counts_as_missing_and_no_other_is_waited_for() -> None:
    known = {make_replica("decode-1"): "", make_replica("decode-2"): "draining"}

    [decode] = missing({Role.DECODE: 2}, known, ())

    assert str(decode) == "decode 1/2: decode-2: draining"


def test_a_replica_that_failed_is_named_with_its_cause_and_its_successor_waited_for() -> None:
    failed = starting("decode-1").failed("no config.json", is_final=True)

    [decode] = missing({Role.DECODE: 1}, {}, (failed,))

    assert decode.waiting_for == "decode-1: failed while importing, Ray to start 1 process"
    assert decode.causes == ("decode-1: no config.json",)


def test_nothing_is_missing_once_all_that_are_wanted_are_ready() -> None:
    assert missing({Role.DECODE: 1}, ready(make_replica("decode-1")), (starting("x"),)) == ()


def test_a_replica_that_has_taken_the_other_role_is_wanted_in_that_one() -> None:
    flipped = replace(make_replica("prefill-2"), is_flipped=True)
    turning = replace(starting("prefill-3").at("taking the role of decode"), is_flipped=True)
    wanted = {Role.DECODE: 1, Role.PREFILL: 3}
    known = ready(make_replica("decode-1"), make_replica("prefill-1", role=Role.PREFILL), flipped)

    assert missing(wanted, known, ()) == (
        Missing(role="prefill", wanted=2, ready=1, waiting_for="Ray to start 1 process"),
    )
    assert missing(wanted, known, (turning,)) == (
        Missing(
            role="decode",
            wanted=3,
            ready=2,
            waiting_for="prefill-3: taking the role of decode (3 s)",
        ),
    )
