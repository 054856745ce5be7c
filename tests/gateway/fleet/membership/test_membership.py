from __future__ import annotations

from dataclasses import replace

from tests.gateway.fleet.known_replicas import make_replica

from baton.core.ids import Epoch
from baton.core.replicas import HEARTBEAT_S, Membership, ReplicaInfo, ReportIntervals, Role
from baton.gateway.fleet.membership.membership import merge

A, B = make_replica("a"), make_replica("b")


def known(*infos: ReplicaInfo) -> dict[Epoch, ReplicaInfo]:
    return {info.epoch: info for info in infos}


def snapshot(*infos: ReplicaInfo, age_s: float) -> Membership:
    return Membership(incarnation=Epoch("registry"), version=1, age_s=age_s, replicas=infos)


def test_a_young_incarnation_that_knows_nobody_removes_nobody() -> None:
    assert merge(known(A, B), snapshot(age_s=0.1), settled_after_s=2) == known(A, B)


def test_a_young_incarnation_adds() -> None:
    assert merge(known(A), snapshot(B, age_s=0.1), settled_after_s=2) == known(A, B)


def test_even_a_young_incarnation_is_believed_about_those_it_knows() -> None:
    unready = make_replica("a", is_ready=False)

    assert merge(known(A, B), snapshot(unready, age_s=0.1), settled_after_s=2) == known(unready, B)


def test_a_replica_that_is_another_incarnation_is_no_longer_what_it_was() -> None:
    again = replace(A, epoch=Epoch("another of a"), role=Role.PREFILL)

    assert merge(known(A, B), snapshot(again, age_s=0.1), settled_after_s=2) == known(B, again)


def test_a_settled_incarnation_is_believed_in_full() -> None:
    assert merge(known(A, B), snapshot(B, age_s=2), settled_after_s=2) == known(B)


def test_whoever_is_heard_stays_unless_it_said_farewell() -> None:
    both_heard, farewell = (A.epoch, B.epoch), snapshot(age_s=2)
    farewell = replace(farewell, left=(B.epoch,))

    assert merge(known(A, B), farewell, settled_after_s=2, alive=both_heard) == known(A)
    assert merge(known(A, B), replace(farewell, age_s=0.1), settled_after_s=2) == known(A)


def test_the_known_replicas_are_left_as_they_were() -> None:
    before = known(A)

    merge(before, snapshot(B, age_s=0), settled_after_s=2)

    assert before == known(A)


def test_gateways_wait_long_enough_for_every_replica_to_have_reported_twice() -> None:
    assert ReportIntervals().settled_after_s > 2 * HEARTBEAT_S
