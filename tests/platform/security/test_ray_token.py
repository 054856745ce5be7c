"""The token that is derived from Ray's own: where it comes from, and when there is none."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from baton.core.errors import InvalidConfig
from baton.platform.cluster.deploy import build_app
from baton.platform.cluster.local_cluster import draw_ray_token
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.security.config import SecurityConfig
from baton.platform.security.connections import load_security
from baton.platform.security.ray_token import settled

RAYS = "0123456789abcdef" * 4
ASKS = SecurityConfig(default_token="ray")


def test_it_is_the_same_wherever_ray_finds_its_own_and_does_not_show_it(tmp_path: Path) -> None:
    kept = tmp_path / ".ray" / "auth_token"
    kept.parent.mkdir()
    kept.write_text(RAYS + "\n")
    places = (
        {"RAY_AUTH_TOKEN": RAYS},
        {"RAY_AUTH_TOKEN_PATH": str(kept), "HOME": "/nowhere"},
        {"HOME": str(tmp_path), "RAY_AUTH_MODE": "token"},
    )

    found = {load_security(ASKS, environment=place).tokens for place in places}
    others = load_security(ASKS, environment={"RAY_AUTH_TOKEN": RAYS[1:]}).tokens

    ((token,),) = found
    assert len(token) == 64
    assert token not in (*others, RAYS)
    assert RAYS[:8] not in token


@pytest.mark.parametrize(
    ("environment", "meant"),
    [
        ({"RAY_AUTH_TOKEN": RAYS, "RAY_AUTH_MODE": "token"}, "ray"),
        ({"RAY_AUTH_TOKEN": RAYS}, "none"),
        ({"RAY_AUTH_TOKEN": RAYS, "RAY_AUTH_MODE": "disabled"}, "none"),
        ({"RAY_AUTH_TOKEN": RAYS, "RAY_ENABLE_K8S_TOKEN_AUTH": "1"}, "none"),
        ({"RAY_AUTH_TOKEN_PATH": "/nowhere", "RAY_AUTH_MODE": "token"}, "none"),
    ],
)
def test_replicas_ask_for_it_where_ray_asks_for_its_own(
    environment: dict[str, str], meant: str
) -> None:
    assert settled(SecurityConfig(), environment).default_token == meant
    assert settled(SecurityConfig(default_token="none"), environment).default_token == "none"


def test_a_tool_shows_what_it_finds_as_ray_tells_it_nothing() -> None:
    assert settled(SecurityConfig(), {"RAY_AUTH_TOKEN": RAYS}, is_tool=True).default_token == "ray"
    assert settled(SecurityConfig(), {"HOME": "/nowhere"}, is_tool=True).default_token == "none"


def test_a_replica_that_is_to_ask_for_it_does_not_start_without() -> None:
    with pytest.raises(InvalidConfig, match=r"security\.default_token: there is no Ray token in"):
        load_security(ASKS, environment={"RAY_AUTH_TOKEN": RAYS, "RAY_AUTH_MODE": "disabled"})


def test_a_token_that_somebody_made_comes_first(caplog: pytest.LogCaptureFixture) -> None:
    derived = load_security(ASKS, environment={"RAY_AUTH_TOKEN": RAYS})
    assert not caplog.text  # it is as well guarded as Ray's own

    given = {"RAY_AUTH_TOKEN": RAYS, "BATON_CLUSTER_TOKEN": "a-token-of-our-own"}
    assert load_security(ASKS, environment=given).tokens == ("a-token-of-our-own",)
    assert derived.tokens != ()


@pytest.mark.parametrize("mode", ["token", "disabled"])
def test_all_processes_of_an_application_are_told_the_same_and_no_token(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", RAYS)
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    gateway: Any = build_app(override(DeploymentConfig(), {}), Path("/model"))._bound_deployment
    registries, *replicas = gateway.init_args[2:]
    actors = [gateway, *(bound._bound_deployment for bound in (*registries, *replicas))]

    found = {actor.init_args[0].security.default_token for actor in actors}

    assert found == {"ray" if mode == "token" else "none"}
    assert ("every client that reaches their ports is served" in caplog.text) == (
        mode == "disabled"
    )
    token = load_security(ASKS, environment={"RAY_AUTH_TOKEN": RAYS}).tokens[0]
    assert not any(secret in repr(actor.init_args) for actor in actors for secret in (RAYS, token))


def test_a_cluster_of_our_own_gets_one_that_only_its_user_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    draw_ray_token()
    kept = tmp_path / ".ray" / "auth_token"
    drawn = kept.read_text()
    draw_ray_token()  # by another, of the same user

    assert (len(drawn), kept.read_text()) == (64, drawn)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert [it.name for it in kept.parent.iterdir()] == ["auth_token"]
