"""Secrets that a configuration only names."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from baton.core.errors import InvalidConfig
from baton.gateway.access.config import GatewayConfig, TenantConfig
from baton.platform.cli.commands.keys import line_of
from baton.platform.security.secrets import with_secrets


def test_keys_are_read_from_files_and_variables_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text("one\n\n two \n")
    monkeypatch.setenv("TENANTS", "three,four")
    config = GatewayConfig(
        api_keys=frozenset({f"file:{tmp_path}/keys", "plain"}),
        tenants={"acme": TenantConfig(api_keys=frozenset({"env:TENANTS"}), weight=2.0)},
    )

    read = with_secrets(config)

    assert read.api_keys == {"one", "two", "plain"}
    assert read.tenants["acme"].api_keys == {"three", "four"}
    assert read.tenants["acme"].weight == 2.0


def test_a_comment_is_no_key_and_a_line_with_scopes_is_one_wherever_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    line = line_of("k", now, name="ci", days=None, scopes=["inference", "admin"])
    (tmp_path / "keys").write_text(f"\ufeff{line}\n  # of whom, and until when\n")
    monkeypatch.setenv("KEYS", f"one,{line}\n# two, three\n")

    for name, keys in ((f"file:{tmp_path}/keys", {line}), ("env:KEYS", {line, "one"})):
        assert with_secrets(GatewayConfig(operator_keys=frozenset({name}))).operator_keys == keys


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sha256:" + "0" * 64 + " scopes=inference,admin", "looks like"),
        ("env:OTHER", "holds the name of another secret"),
    ],
)
def test_what_a_variable_has_beside_keys_is_refused(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYS", text)

    with pytest.raises(InvalidConfig, match=message):
        with_secrets(GatewayConfig(operator_keys=frozenset({"env:KEYS"})))


@pytest.mark.parametrize("name", ["file:/no/such", "env:NO_SUCH_VARIABLE"])
def test_a_secret_that_is_not_there_is_refused_by_its_setting(name: str) -> None:
    with pytest.raises(InvalidConfig, match=r"gateway\.operator_keys: .*(/no/such|NO_SUCH)"):
        with_secrets(GatewayConfig(operator_keys=frozenset({name})))


def test_a_key_of_two_tenants_is_refused_once_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "same")
    monkeypatch.setenv("OTHER", "same")
    tenants = {name: TenantConfig(api_keys=frozenset({f"env:{name}"})) for name in ("ONE", "OTHER")}

    with pytest.raises(InvalidConfig, match="a key occurs twice"):
        with_secrets(GatewayConfig(tenants=tenants))
