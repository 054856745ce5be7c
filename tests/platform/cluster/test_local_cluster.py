from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from baton.core.errors import InvalidConfig
from baton.platform.cluster import local_cluster
from baton.platform.cluster.local_cluster import (
    check_ray_folder,
    num_logical_cpus,
    ray_environment,
    worker_environment,
)
from baton.platform.config.deployment import parse_config


def test_as_many_cpus_are_declared_as_replicas_ask_for_and_one_for_each_other_actor() -> None:
    config = parse_config(
        {
            "prefill": {"replicas": 300, "resources": {"num_cpus": 1.5}},
            "decode": {"replicas": 1, "resources": {"num_cpus": 0.25}},
            "gateway": {"replicas": 3},
        }
    )

    assert num_logical_cpus(config) == 451 + 3 + len({"Registry", "ServeController"})


def test_workers_import_what_replicas_of_serve_are_made_of() -> None:
    for module in worker_environment()["RAY_preload_python_modules"].split(","):
        importlib.import_module(module)

    assert "ray.serve._private.replica" in sys.modules


def test_what_the_operator_has_set_for_ray_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "7")
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)

    environment = ray_environment()

    assert "RAY_worker_niceness" not in environment
    assert environment["RAY_USAGE_STATS_ENABLED"] == "0"


def test_a_call_that_comes_after_ray_has_ended_does_not_start_another() -> None:
    call = "import ray\ntry: ray.put(1)\nexcept ray.exceptions.RaySystemError as e: print(e)"
    environment = {**os.environ, **ray_environment()}

    said = subprocess.run(
        [sys.executable, "-c", call], env=environment, capture_output=True, text=True, check=True
    )

    assert "Ray has not been started yet" in said.stdout


def test_a_folder_that_ray_cannot_write_to_is_refused_before_ray_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    check_ray_folder()

    monkeypatch.setattr(local_cluster, "free_for", lambda folder: 3 << 20)
    with pytest.raises(InvalidConfig, match=r"ray has 3 MiB of disk left.* set RAY_TMPDIR"):
        check_ray_folder()


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
