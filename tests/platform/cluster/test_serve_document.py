"""What `serve deploy`, a RayService and `baton deploy` are given, and what a change of it does."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ray.serve._private.deploy_utils import get_app_code_version
from ray.serve.schema import ServeApplicationSchema

from baton.core.clock import ManualClock
from baton.core.errors import InvalidConfig
from baton.core.replicas import Role
from baton.platform.cluster.applications.serve_document import (
    application,
    asleep,
    configuration,
    difference,
    document,
    scaled,
    with_planned,
)
from baton.platform.config.deployment import DeploymentConfig, override, parse_config

RICH = parse_config(
    {
        "model": "org/name@v2",
        "log_level": "debug",
        "prefill": {"replicas": 2, "max_queued_tokens": 1000, "parallel": {"tensor": 2}},
        "decode": {"replicas": 3, "max_open": 7, "cache": {"num_blocks": 100}},
        "gateway": {
            "operator_keys": ["env:ROOT", "file:/keys"],
            "policy": "cost",
            "tenants": {
                "a.b": {"api_keys": ["file:/a"], "kv_share": 0.5, "weight": 2.0},
                "c": {"api_keys": ["env:C"], "requests_per_minute": 6},
            },
        },
        "health": {"drain_s": 5.0, "check_period_s": 2.0},
        "chaos": {"enabled": True, "rules": [{"at": "pool.reserve", "fault": "full"}]},
        "ray": {"app_name": "second", "runtime_env": {"env_vars": {"A": "b"}}},
    }
)


def counts(deployed: dict[str, Any]) -> dict[str, int]:
    return {one["name"]: one.get("num_replicas", 1) for one in deployed["deployments"]}


@pytest.mark.parametrize("config", [DeploymentConfig(), RICH], ids=["default", "rich"])
def test_a_document_says_all_that_the_configuration_does(config: DeploymentConfig) -> None:
    read = yaml.safe_load(yaml.safe_dump(document(config)))

    [deployed] = read["applications"]
    assert configuration(deployed) == config
    assert deployed == application(configuration(deployed))  # always the same: nothing is drawn


@pytest.mark.parametrize(
    "change",
    [
        {"prefill.replicas": 4, "decode.replicas": 1, "gateway.replicas": 2},
        {"decode.max_open": 9, "prefill.max_queued_tokens": 8, "gateway.max_waiting": 1},
        {"gateway.policy": "round-robin", "gateway.api_keys": ["env:NEW"]},
        {"gateway.tenants": {"a.b": {"api_keys": ["file:/a"], "kv_share": 0.5, "weight": 9.0}}},
        {"log_level": "error", "health.drain_s": 9.0, "chaos.rules": [], "chaos.seed": 3},
    ],
    ids=lambda change: ",".join(change),
)
def test_counts_limits_policies_keys_and_chaos_change_in_place(change: dict[str, Any]) -> None:
    before, after = application(RICH), application(override(RICH, change))

    found, restarts = difference(before, after)

    assert found and all(one.is_live for one in found)
    assert not restarts
    assert before["args"] == after["args"]


@pytest.mark.parametrize(
    "change",
    [
        {"decode.cache.num_blocks": 200},
        {"gateway.port": 9000},
        {"prefill.replicas": 0},
        {"gateway.tenants": {"a.b": {"api_keys": ["file:/a"], "kv_share": 0.4}}},
        {"ray.runtime_env": {}},
    ],
    ids=lambda change: ",".join(change),
)
def test_what_starts_processes_anew_is_told_before_it_happens(change: dict[str, Any]) -> None:
    found, restarts = difference(application(RICH), application(override(RICH, change)))

    assert restarts
    assert not all(one.is_live for one in found)


def test_scaling_changes_the_numbers_and_what_gateways_expect_and_nothing_else() -> None:
    before = application(RICH)

    after = scaled(before, {"decode": 1, "gateway": 2})

    assert counts(after) == {"Gateway": 2, "Decode": 1, "Prefill": 2, "Registry": 1}
    assert configuration(after).wanted_replicas == {"decode": 1, "prefill": 2}
    found, restarts = difference(before, after)
    assert [one.path for one in found] == ["decode.replicas", "gateway.replicas"]
    assert not restarts


def test_a_document_that_has_all_in_args_is_scaled_without_touching_them() -> None:
    """As somebody's own, or the chart's, may be."""
    args = {"prefill": {"replicas": 2}, "decode": {"max_open": 5}}
    deployed = {"name": "own", "import_path": "baton.platform.serve_app:app", "args": args}

    after = scaled(deployed, {"prefill": 3})

    assert after["args"] == args
    assert configuration(after).prefill.replicas == 3
    assert configuration(after).decode.max_open == 5


def test_scaling_keeps_what_deployments_were_told_also_where_that_is_the_default() -> None:
    default = DeploymentConfig()
    told = {"decode": {"max_open": default.decode.max_open}}
    deployed = {
        "name": "own",
        "import_path": "baton.platform.serve_app:app",
        "args": {"decode": {"replicas": 3, "max_open": 5}},
        "deployments": [{"name": "Decode", "num_replicas": 3, "user_config": told}],
    }

    after = scaled(deployed, {"decode": 1})

    told_after = {one["name"]: one["user_config"] for one in after["deployments"]}
    limit = {"max_open": default.decode.max_open}
    assert told_after.pop("Decode") == {"decode": {**limit, "replicas": 1}}
    for others in told_after.values():
        assert others == {"decode": {"replicas": 1}}  # one is the default, and args say three


@pytest.mark.parametrize(
    ("change", "words"),
    [({"prefil": 2}, "no pool is called 'prefil'"), ({"decode": 0}, "without a restart")],
)
def test_what_cannot_be_scaled_is_refused_with_the_remedy(
    change: dict[str, int], words: str
) -> None:
    with pytest.raises(InvalidConfig, match=words):
        scaled(application(RICH), change)


def test_secrets_never_enter_a_document() -> None:
    config = override(DeploymentConfig(), {"gateway.cache_secret": "hush"})

    with pytest.raises(
        InvalidConfig, match=r"gateway\.cache_secret: .* `file:/path` or `env:NAME`"
    ):
        document(config)


def planned(**changes: Any) -> dict[str, Any]:
    return application(override(RICH, {"planner.enabled": True, **changes}))


def test_numbers_that_the_planner_set_outlive_another_document_as_a_hold_of_them_does() -> None:
    before = scaled(planned(), {"prefill": 5, "decode": 8}, held_until={Role.PREFILL: 9e9})

    [same, freed] = [
        configuration(with_planned(before, wanted))
        for wanted in (
            planned(**{"log_level": "error", "planner.max_decode": 6}),
            application(override(RICH, {"log_level": "error"})),
        )
    ]

    assert (same.prefill.replicas, same.decode.replicas) == (5, 6)  # within the new limits
    assert (same.planner.held_until, same.log_level) == ({Role.PREFILL: 9e9}, "error")
    assert (freed.prefill.replicas, freed.decode.replicas) == (2, 3)
    assert with_planned(None, planned()) == planned()


def test_a_held_number_stays_beyond_new_limits_until_its_hold_is_over() -> None:
    before = scaled(planned(), {"prefill": 5, "decode": 8}, held_until={Role.DECODE: 1000.0})
    wanted = planned(**{"planner.max_prefill": 4, "planner.max_decode": 6})

    [held, over] = [
        configuration(with_planned(before, wanted, ManualClock(now))) for now in (999.0, 1000.0)
    ]

    assert (held.prefill.replicas, held.decode.replicas) == (4, 8)
    assert (over.prefill.replicas, over.decode.replicas) == (4, 6)


def test_who_sets_one_pool_leaves_what_holds_of_the_other() -> None:
    long = scaled(planned(), {"decode": 6}, held_until={Role.DECODE: 90_000.0})

    document = scaled(long, {"prefill": 2}, held_until={Role.PREFILL: 600.0})

    found = configuration(document)
    assert found.planner.held_until == {Role.DECODE: 90_000.0, Role.PREFILL: 600.0}
    assert document == application(found)


def test_the_registry_hears_of_rules_and_numbers_in_place_and_gateways_that_there_are_some() -> (
    None
):
    found, restarts = difference(application(RICH), planned(**{"planner.ttft_s": 3.0}))

    assert [one.path for one in found] == ["planner.enabled", "planner.ttft_s"]
    assert not restarts and all(one.is_live for one in found)
    told = {one["name"]: one["user_config"] for one in planned()["deployments"]}
    assert told["Registry"]["planner"] == told["Gateway"]["planner"] == {"enabled": True}
    assert told["Registry"]["prefill"] == {"replicas": 2} and "planner" not in told["Decode"]


def test_each_of_several_registries_is_told_what_one_is() -> None:
    several = application(override(RICH, {"registry.replicas": 3, "planner.enabled": True}))
    held = scaled(several, {"decode": 2}, held_until={Role.DECODE: 9.0})

    told = [one for one in held["deployments"] if one["name"].startswith("Registry")]
    assert [one["name"] for one in told] == ["Registry", "Registry-1", "Registry-2"]
    assert told[0]["user_config"]["planner"]["held_until"] == {"decode": 9.0}
    assert all({**one, "name": ""} == {**told[0], "name": ""} for one in told)
    assert configuration(held).registry.replicas == 3


SLEEPY = override(
    DeploymentConfig(),
    {"prefill.replicas": 2, "planner.enabled": True, "planner.idle_s": 60.0},
)


def bounds(deployed: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The fewest and the most replicas that Serve may choose, of what its autoscaler is told of."""
    found = {one["name"]: one.get("autoscaling_config") for one in deployed["deployments"]}
    return {name: (it["min_replicas"], it["initial_replicas"]) for name, it in found.items() if it}


def test_pools_sleep_and_wake_in_place_with_the_numbers_they_had() -> None:
    awake = application(SLEEPY)
    sleeping = asleep(awake)
    woken = scaled(sleeping, {"prefill": 1, "decode": 3})
    by_hand = scaled(sleeping, {"decode": 2})

    assert bounds(awake) == {"Decode": (1, 1), "Prefill": (2, 2)}
    assert bounds(sleeping) == {"Decode": (0, 0), "Prefill": (0, 0)}
    assert bounds(woken) == {"Decode": (3, 3), "Prefill": (1, 1)}
    assert bounds(by_hand) == {"Decode": (2, 2), "Prefill": (2, 2)}
    assert configuration(sleeping).wanted_replicas == {}
    assert configuration(sleeping).started_replicas == dict.fromkeys(Role, 0)
    assert configuration(by_hand).wanted_replicas == {Role.PREFILL: 2, Role.DECODE: 2}
    assert application(configuration(sleeping)) == sleeping
    for name in ("Gateway", "Registry"):
        told = {one["name"]: one.get("user_config", {}) for one in sleeping["deployments"]}
        assert told[name]["planner"]["is_asleep"] is True
    every = (awake, sleeping, woken, by_hand)
    assert len({get_app_code_version(ServeApplicationSchema(**it)) for it in every}) == 1
    assert not any(difference(awake, it)[1] for it in every)


def test_a_document_that_is_deployed_over_one_that_sleeps_wakes_it() -> None:
    sleeping, wanted = asleep(application(SLEEPY)), application(SLEEPY)

    assert bounds(with_planned(sleeping, wanted)) == bounds(wanted)


def test_whether_pools_may_sleep_at_all_is_told_to_start_processes_anew() -> None:
    plain = application(override(SLEEPY, {"planner.idle_s": 0.0}))

    with pytest.raises(InvalidConfig, match="Decode and Prefill must have `autoscaling_config`"):
        asleep(plain)  # as of one that was written by hand
    assert difference(plain, application(SLEEPY))[1]
    assert difference(application(SLEEPY), plain)[1]
    codes = {
        get_app_code_version(ServeApplicationSchema(**it)) for it in (plain, application(SLEEPY))
    }
    assert len(codes) == 2
