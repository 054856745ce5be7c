from __future__ import annotations

from pathlib import Path

import pytest

from baton.platform.cluster import local_cluster
from baton.platform.cluster.local_cluster import num_logical_cpus, ray_environment
from baton.platform.config.deployment import parse_config


def test_a_laptop_declares_as_many_cpus_as_the_deployment_asks_for() -> None:
    config = parse_config(
        {
            "prefill": {"replicas": 300, "resources": {"num_cpus": 1.5}},
            "decode": {"replicas": 1, "resources": {"num_cpus": 0.25}},
        }
    )

    assert num_logical_cpus(config) == 451


def test_no_fewer_cpus_are_declared_than_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_cluster, "usable_cores", lambda: 3.5)
    config = parse_config({"prefill": {"replicas": 0}, "decode": {"resources": {"num_cpus": 0.1}}})

    assert num_logical_cpus(config) == 3


def test_what_the_operator_has_set_for_ray_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "7")
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)

    environment = ray_environment()

    assert "RAY_worker_niceness" not in environment
    assert environment["RAY_USAGE_STATS_ENABLED"] == "0"


def test_without_a_home_to_keep_it_in_ray_is_given_a_fresh_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "RAY_AUTH_TOKEN" not in ray_environment()

    monkeypatch.setenv("HOME", str(tmp_path / "missing"))

    assert ray_environment()["RAY_AUTH_TOKEN"] != ray_environment()["RAY_AUTH_TOKEN"]


def test_a_cluster_that_was_started_here_is_joined_with_its_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert "RAY_AUTH_MODE" not in ray_environment()

    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")

    assert ray_environment()["RAY_AUTH_MODE"] == "token"
