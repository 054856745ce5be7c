"""The planner beside a deployment: what it hears of gateways and replicas, and what it proposes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from tests.platform.planner.planned_deployment import (
    RULES,
    Deployment,
    fails,
    nobody_flips,
    overtaken,
    prefill,
)

from baton.core.errors import InvalidConfig
from baton.core.ids import Epoch
from baton.core.replicas import Role
from baton.platform.cluster.nodes.node_places import places_of
from baton.platform.cluster.registry.planning import keep_planned
from baton.platform.config.deployment import parse_config
from baton.platform.planner.config import PlannerConfig
from baton.platform.planner.planner import Planner
from baton.platform.planner.proposal import Counts

"""A prompt of 1000 tokens takes half a second."""


def test_pools_follow_what_gateways_tell_and_each_change_is_explained_once() -> None:
    deployment = Deployment()

    quiet = prefill(deployment.live(1.0, 30))
    busy = prefill(deployment.live(4.0, 30))
    after = prefill(deployment.live(1.0, 120))

    assert quiet <= after <= 2 < busy
    told = deployment.planner.explain()
    counts = [(one["before"]["prefill"], one["after"]["prefill"]) for one in told["changes"]]
    assert counts[-1][0] == 1 and counts[0][1] == after  # the latest first
    assert len(counts) <= 6
    assert "would be" in told["changes"][0]["reasons"][0]
    assert told["pools"]["prefill"] == {
        "planned": after, "wanted": after, "ready": after, "draining": 0
    }  # fmt: skip


def test_engines_that_share_experts_come_and_go_as_whole_replicas_of_serve() -> None:
    deployment = Deployment(engines={Role.PREFILL: 3})
    alone = Deployment()

    busy = [one.live(4.0, 30) for one in (deployment, alone)]
    told = deployment.planner.explain()["pools"]["prefill"]
    quiet = [one.live(0.2, 120) for one in (deployment, alone)]

    engines, replicas = prefill(busy[0]), busy[0].started[Role.PREFILL]
    assert engines == 3 * replicas and prefill(busy[1]) <= engines < prefill(busy[1]) + 3
    assert told["wanted"] == told["ready"] == engines
    assert deployment.planner.planned.wanted[Role.PREFILL] == quiet[0].started[Role.PREFILL] == 1
    assert (prefill(quiet[0]), prefill(quiet[1])) == (3, 1)
    most = deployment.live(400.0, 60)
    assert most.started[Role.PREFILL] == RULES.max_prefill


def test_whole_replicas_of_several_engines_wait_for_their_nodes() -> None:
    deployment = Deployment(structs.replace(RULES, nodes="kuberay"), engines={Role.PREFILL: 3})
    deployment.planner.places = {Role.PREFILL: 2, Role.DECODE: 8}

    found = deployment.live(20.0, 30)

    assert found.asked[Role.PREFILL] > 2 == found.started[Role.PREFILL]
    assert prefill(found) == 6 and found.causes[Role.PREFILL] == "nodes"
    told = deployment.planner.explain()["pools"]["prefill"]
    assert (told["planned"], told["places"]) == (6, 6)


def test_nodes_hold_engines_that_share_experts_each_on_one_of_them() -> None:
    parallel = {"data": 4, "expert": 4}
    config = parse_config({"decode": {"resources": {"num_gpus": 2}, "parallel": parallel}})
    has = {"CPU": 64.0, "GPU": 7.0}
    nodes = [
        {"Alive": alive, "Resources": has, "Labels": {}} for alive in (True, True, True, False)
    ]

    assert places_of(nodes, config)[Role.DECODE] == 2  # 9 engines


def test_pools_go_to_zero_together_when_all_gateways_are_quiet_and_wake_for_one_who_waits() -> None:
    deployment = Deployment(structs.replace(RULES, idle_s=20.0))
    deployment.live(4.0, 30)
    unheard = deployment.live(0.0, 60, hears=False)
    deployment.live(4.0, 30)

    asleep = deployment.live(0.0, 30)
    still = deployment.live(0.0, 120)
    deployment.total = replace(
        deployment.total, num_arrived=deployment.total.num_arrived + 1, num_waiting=1,
        num_for_decode=1, waiting_tokens=1000, oldest_wait_s=0.5,
    )  # fmt: skip
    deployment.placeable = dict.fromkeys(Role, 0)  # they take their time
    woken = deployment.live(0.0, 5)
    deployment.total = replace(deployment.total, num_waiting=0, num_for_decode=0)  # it gave up
    starting = deployment.live(0.0, 40)
    deployment.placeable = dict.fromkeys(Role, 8)
    again = deployment.live(0.0, 40)

    assert min(unheard.counts.values()) > 0
    assert set(asleep.started.values()) == set(still.started.values()) == {0}
    assert not still.is_change
    assert woken.started == {Role.PREFILL: 1, Role.DECODE: 1}
    assert woken.flips == 0 and min(starting.counts.values()) > 0
    assert set(again.started.values()) == {0}


def test_what_a_gateway_counted_while_nobody_heard_it_is_no_burst_and_nobody_goes_meanwhile() -> (
    None
):
    deployment = Deployment()
    busy = prefill(deployment.live(4.0, 30))

    away = deployment.live(4.0, 120, hears=False)
    back = deployment.live(4.0, 30)

    assert prefill(away) == prefill(back) == busy
    assert "not all gateways have reported theirs" in away.reasons[0]


def test_a_planner_that_begins_anew_counts_from_then_on_and_lets_nobody_go_at_once() -> None:
    before = Deployment()
    busy = before.live(4.0, 60)
    anew = Deployment()
    anew.planner.want(busy.counts, {})
    anew.total = before.total  # the gateway has counted for long

    assert anew.live(1.0, 30).counts == busy.counts
    assert prefill(anew.live(1.0, 60)) < prefill(busy)


def test_a_number_set_by_hand_holds_until_its_time_is_over_and_the_other_role_is_free() -> None:
    deployment = Deployment(
        PlannerConfig(
            enabled=True, ttft_s=1.5, itl_s=0.1, cold_start_s=10.0, window_s=30.0,
            held_until={Role.PREFILL: 1e9 + 60},
        )
    )  # fmt: skip
    planner = deployment.planner
    planner.planned = replace(planner.planned, max_running=dict.fromkeys(Role, 2), can_flip=True)

    held = deployment.live(4.0, 30)

    assert held.is_held and held.flips == 0
    assert "prefill: set by hand, which holds for 30 s more" in held.reasons
    assert planner.planned.wanted[Role.PREFILL] == 1
    assert planner.planned.wanted[Role.DECODE] > 2
    assert any("prefill: set by hand" in " ".join(one["reasons"]) for one in told_changes(planner))

    deployment.live(4.0, 40)
    assert planner.planned.wanted[Role.PREFILL] > 2


def told_changes(planner: Planner) -> list[dict[str, Any]]:
    changes: list[dict[str, Any]] = planner.explain()["changes"]
    return changes


def test_no_more_are_asked_for_while_replicas_find_no_place_and_why_is_told() -> None:
    deployment = Deployment()
    deployment.placeable[Role.PREFILL] = 2
    deployment.live(5.0, 60)
    stuck = deployment.planner.planned.wanted[Role.PREFILL]
    untold = deployment.live(9.0, 30)
    for role in Role:
        deployment.planner.told_of(role, "")
    deployment.planner.told_of(Role.DECODE, "is whole")
    unknown = deployment.live(9.0, 30)
    deployment.planner.told_of(Role.PREFILL, "0 GPUs are free")

    proposal = deployment.live(9.0, 30)

    assert deployment.planner.short() == (Role.PREFILL,)
    assert prefill(proposal) == stuck  # and no fewer: a node may come
    assert "have not come for" in proposal.reasons[-1] and "(0 GPUs" in proposal.reasons[-1]
    assert not any("(" in one.reasons[-1] for one in (untold, unknown))
    assert Role.DECODE not in deployment.planner.trouble_by_role
    deployment.placeable[Role.PREFILL] = 8
    assert prefill(deployment.live(9.0, 30)) > stuck


def test_replicas_that_measured_nothing_lately_stay_while_there_is_work_and_go_without() -> None:
    deployment = Deployment()
    deployment.planner.want({Role.PREFILL: 3, Role.DECODE: 1}, {})
    deployment.report = lambda age_s=0.0: Deployment.report(deployment, 1e4)  # type: ignore[method-assign]

    assert prefill(deployment.live(9.0, 30)) == 3
    assert prefill(deployment.live(0.0, 120)) == 1


def test_a_replica_takes_the_other_role_before_one_is_added_and_counts_there_from_then_on() -> None:
    """Answers become long: decode replicas have four places each."""
    deployment = Deployment()
    planner = deployment.planner
    limits = {Role.PREFILL: 64, Role.DECODE: 4}
    wanted = {Role.PREFILL: 3, Role.DECODE: 1}
    planner.planned = replace(
        planner.planned, wanted=wanted, max_running=limits, can_flip=True, flip_s=30.0
    )
    deployment.answer_tokens = 150

    deployment.hear_of(1.0, 15)
    asked = planner.propose(deployment.known)

    assert asked is not None and asked.flips == 1
    assert asked.started == asked.started_before == wanted  # Serve has nothing to do
    gone = deployment.known.replicas[0]
    planner.flips(gone.replica_id, Role.DECODE)
    others = deployment.known.replicas[1:]
    stages = [
        (*others, replace(gone, is_ready=False)),  # it drains
        (*others, replace(gone, epoch=Epoch("new"), role=Role.DECODE, is_flipped=True)),
    ]
    for replicas in stages:
        deployment.hear_of(1.0, 5)
        later = planner.propose(replace(deployment.known, replicas=replicas))
        assert later is not None and not later.is_change
        assert later.counts == {Role.PREFILL: 2, Role.DECODE: 2}
    assert planner.explain()["pools"]["decode"]["wanted"] == 2
    assert planner.short() == ()


def test_the_next_flip_waits_for_the_one_that_is_under_way_and_nobody_is_added_for_it() -> None:
    deployment = Deployment()
    planner = deployment.planner
    limits, wanted = {Role.PREFILL: 64, Role.DECODE: 4}, {Role.PREFILL: 5, Role.DECODE: 1}
    planner.planned = replace(
        planner.planned, wanted=wanted, max_running=limits, can_flip=True, flip_s=30.0
    )
    deployment.answer_tokens = 150
    deployment.hear_of(1.0, 15)
    gone = deployment.known.replicas[0]
    planner.flips(gone.replica_id, Role.DECODE)
    draining = (*deployment.known.replicas[1:], replace(gone, is_ready=False))
    deployment.answer_tokens = 450

    deployment.hear_of(1.0, 5)
    later = planner.propose(replace(deployment.known, replicas=draining))

    assert later is not None and later.decision.flips
    assert not later.is_change
    assert later.counts == {Role.PREFILL: 4, Role.DECODE: 2}
    assert "the next waits for it" in later.reasons[-1]


def test_a_planner_that_takes_over_waits_for_the_flip_that_another_has_begun() -> None:
    deployment = Deployment()
    planner = deployment.planner
    limits, wanted = {Role.PREFILL: 64, Role.DECODE: 4}, {Role.PREFILL: 5, Role.DECODE: 1}
    planner.planned = replace(
        planner.planned, wanted=wanted, max_running=limits, can_flip=True, flip_s=30.0
    )
    deployment.answer_tokens = 150
    gone, *others = deployment.known.replicas
    leaving = replace(gone, is_ready=False, is_flipping=True)

    deployment.hear_of(1.0, 15)
    later = planner.propose(replace(deployment.known, replicas=(*others, leaving)))

    assert later is not None and not later.is_change
    assert later.counts == {Role.PREFILL: 4, Role.DECODE: 2}


def test_a_pool_that_is_to_be_smaller_than_its_flipped_replicas_gets_one_back_first() -> None:
    deployment = Deployment()
    planner = deployment.planner
    planner.planned = replace(
        planner.planned, wanted={Role.PREFILL: 2, Role.DECODE: 1}, can_flip=True, flip_s=30.0
    )
    deployment.hear_of(0.05, 5)
    flipped, *others = deployment.known.replicas
    known = (*others, replace(flipped, epoch=Epoch("new"), role=Role.DECODE, is_flipped=True))
    for _ in range(40):
        deployment.hear_of(0.05, 5)
        found = planner.propose(replace(deployment.known, replicas=known))
        if found is not None and found.is_change:
            break

    assert found is not None and found.flips == -1
    assert found.counts == {Role.PREFILL: 2, Role.DECODE: 1}
    assert found.started == found.started_before
    deployment.hear_of(0.05, 5)
    back = planner.propose(deployment.known)
    assert back is not None and back.started == {Role.PREFILL: 1, Role.DECODE: 1}


Scale = Callable[[Any, Any, Any], bool]


async def test_replicas_are_added_once_their_nodes_are_there_and_nodes_are_asked_for_at_once() -> (
    None
):
    deployment = Deployment(replace_rules(nodes="kuberay", min_decode=3, period_s=0.001))
    places = {Role.PREFILL: 1, Role.DECODE: 1}
    told: list[tuple[Counts, Counts]] = []

    def scale(before: Counts, started: Counts, asked: Counts) -> bool:
        told.append((dict(started), dict(asked)))
        return True

    planning = asyncio.create_task(
        keep_planned(
            deployment.planner,
            lambda: deployment.known,
            scale,
            nobody_flips,
            dict,
            lambda: dict(places),
        )
    )
    async with asyncio.timeout(60):
        while not (first := deployment.planner.explain())["changes"]:
            await asyncio.sleep(0.001)
        places[Role.DECODE] = 2  # the first of two nodes
        while len(told) < 2:
            await asyncio.sleep(0.001)
    planning.cancel()

    one, three = {Role.PREFILL: 1, Role.DECODE: 1}, {Role.PREFILL: 1, Role.DECODE: 3}
    assert told == [(one, three), ({Role.PREFILL: 1, Role.DECODE: 2}, three)]
    [change] = first["changes"]
    assert change["outcome"] == "nodes asked for"
    assert "nodes for 3 are asked for" in " ".join(change["reasons"])
    assert (first["pools"]["decode"]["asked"], first["pools"]["decode"]["places"]) == (3, 1)


def replace_rules(**changes: Any) -> PlannerConfig:
    return structs.replace(RULES, **changes)


@pytest.mark.parametrize(
    ("mode", "scale", "outcome"),
    [
        ("observe", fails, "only told"),
        ("scale", overtaken, "not done: others changed the numbers meanwhile"),
        ("scale", fails, "not done: the head is away"),
        ("scale", lambda before, counts, asked: True, "scaled"),
    ],
    ids=["observe", "overtaken", "fails", "done"],
)
async def test_what_is_proposed_is_carried_out_and_what_came_of_it_is_kept(
    mode: str, scale: Scale, outcome: str
) -> None:
    deployment = Deployment()
    deployment.hear_of(9.0, 10)
    planned = deployment.planner.planned
    rules = PlannerConfig(enabled=True, mode=mode, ttft_s=1.5, period_s=0.001, window_s=30.0)  # type: ignore[arg-type]
    deployment.planner.planned = replace(planned, rules=rules)

    planning = asyncio.create_task(
        keep_planned(deployment.planner, lambda: deployment.known, scale, nobody_flips, dict, dict)
    )
    async with asyncio.timeout(60):
        while not (changes := deployment.planner.explain()["changes"]):
            await asyncio.sleep(0.001)
    planning.cancel()

    assert changes[-1]["outcome"] == outcome
    is_done = deployment.planner.planned.wanted != planned.wanted
    assert is_done is (outcome == "scaled")


async def test_numbers_that_it_is_told_while_it_makes_a_change_are_those_it_goes_by() -> None:
    """A person sets others at once, and Serve tells of them before the change is over."""
    deployment = Deployment()
    deployment.hear_of(9.0, 10)
    planner = deployment.planner
    rules = PlannerConfig(enabled=True, ttft_s=1.5, period_s=0.001, window_s=30.0)
    planner.planned = replace(planner.planned, rules=rules)
    later = {Role.PREFILL: 6, Role.DECODE: 5}
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def scale(before: object, counts: object, asked: object) -> bool:
        planner.planned = replace(planner.planned, wanted=later)
        loop.call_soon_threadsafe(done.set)
        return True

    planning = asyncio.create_task(
        keep_planned(planner, lambda: deployment.known, scale, nobody_flips, dict, dict)
    )
    async with asyncio.timeout(60):
        await done.wait()
        while planner.explain()["latest"] is None:
            await asyncio.sleep(0.001)
    planning.cancel()

    assert planner.planned.wanted == later


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"planner": {"enabled": True, "idle_s": 60, "nodes": "kuberay"}}, "planner.idle_s"),
        ({"planner": {"enabled": True, "min_decode": 0}}, "min_decode"),
        ({"planner": {"enabled": True, "is_asleep": True}}, "planner.is_asleep"),
        ({"planner": {"enabled": True, "max_prefill": 0, "min_prefill": 0}}, "max_prefill is 0"),
    ],
    ids=["idle", "least", "asleep", "no-prefill"],
)
def test_what_a_live_deployment_cannot_do_is_refused_by_name(
    sections: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidConfig, match=named):
        parse_config(sections)
