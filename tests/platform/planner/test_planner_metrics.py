"""What Prometheus is told of a planner."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs
from tests.platform.planner.planned_deployment import GATEWAY, RULES, Deployment

from baton.core.ids import Epoch
from baton.core.metrics import Family
from baton.core.replicas import Role
from baton.gateway.fleet.traffic import TrafficReport


def told(deployment: Deployment, gateway: Epoch = GATEWAY) -> dict[str, dict[str, float]]:
    """By name, and by the values of labels."""
    answer = deployment.planner.add_report(gateway, deployment.total)
    return {one.name.removeprefix("baton_planner_"): by_labels(one) for one in answer.families}


def by_labels(family: Family) -> dict[str, float]:
    return {" ".join(one.labels.values()): one.value for one in family.samples}


def test_a_planner_tells_what_it_saw_decided_and_foresees() -> None:
    deployment = Deployment()
    deployment.report()
    assert told(deployment)["decided_timestamp_seconds"] == {"": 1e9}
    assert "wanted_replicas" not in told(deployment), "nobody has counted yet"

    deployment.live(1.0, 60)
    busy = deployment.live(4.0, 60).counts[Role.PREFILL]
    found = told(deployment)

    assert found["planned_replicas"]["prefill"] == found["ready_replicas"]["prefill"] == busy
    assert found["demanded_replicas"]["prefill"] == busy
    assert found["most_replicas"] == {"prefill": 8, "decode": 8}
    assert found["decided_timestamp_seconds"] == {"": 1e9 + 120}
    assert found["arrivals_total"] == {"": 60 + 240}
    assert found["arrivals_per_second"][""] == pytest.approx(4.0)
    assert found["foretold_arrivals_per_second"][""] == pytest.approx(4.0)
    assert found["promised_seconds"] == {"prefill": 1.5, "decode": 0.1}
    assert 0.5 < found["foreseen_seconds"]["prefill"] <= 1.5
    assert found["promise_kept"] == {"prefill": 1.0, "decode": 1.0}
    assert sum(found["decisions_total"].values()) == 2 * sum(found["outcomes_total"].values())
    assert found["outcomes_total"].keys() == {"as it is", "scaled"}

    deployment.planner.keep(deployment.live(1.0, 40), "not done: the head is away")
    deployment.planner.flips(deployment.known.replicas[0].replica_id, Role.DECODE)
    after = told(deployment)
    assert after["decisions_total"]["prefill steady"] >= 1
    assert after["outcomes_total"]["not done"] == 1 and after["flips_total"] == {
        "prefill": 0,
        "decode": 1,
    }


def test_a_planner_tells_of_more_than_its_most_and_of_a_promise_that_is_not_kept() -> None:
    deployment = Deployment(structs.replace(RULES, max_prefill=2))

    deployment.live(8.0, 60)
    found = told(deployment)

    assert found["demanded_replicas"]["prefill"] > found["most_replicas"]["prefill"] == 2
    assert found["planned_replicas"]["prefill"] == 2
    assert found["promise_kept"]["prefill"] == 0
    assert found["foreseen_seconds"]["prefill"] > 1.5
    assert found["decisions_total"]["prefill most"] > 5


def test_one_gateway_has_the_planners_metrics_and_another_once_it_is_silent() -> None:
    deployment = Deployment(num_gateways=2)
    planner, other = deployment.planner, Epoch("other")
    deployment.report()

    assert planner.add_report(other, TrafficReport(age_s=1.0)).families == ()
    assert told(deployment)
    deployment.clock.advance(10)
    assert planner.add_report(other, TrafficReport(age_s=11.0)).families
    answer = planner.add_report(GATEWAY, replace(deployment.total, age_s=99.0))
    assert (
        bool(answer.families) and not planner.add_report(other, TrafficReport(age_s=11.0)).families
    )
    assert answer.planned == {"prefill": 1, "decode": 1}
