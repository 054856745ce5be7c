"""What secures the wire is read from files, checked before a handshake, and read again later."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.secured_clusters import (
    AUTHORITY,
    NOW,
    OTHER_AUTHORITY,
    TOKEN,
    expired,
    security_of,
    write_files,
)

from baton.core.errors import InvalidConfig
from baton.core.wire_security import PLAIN, WireSecurity
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.security.certificate_authority import Issued, issue
from baton.platform.security.config import SecurityConfig
from baton.platform.security.connections import load_security

NOTHING: dict[str, str] = {}


def load(config: SecurityConfig, environment: dict[str, str] = NOTHING) -> WireSecurity:
    return load_security(config, environment=environment)


def changed(config: SecurityConfig, **settings: Any) -> SecurityConfig:
    return msgspec.structs.replace(config, **settings)


def test_nothing_configured_is_plain_text_for_everybody() -> None:
    assert load(SecurityConfig()) == PLAIN


def test_files_that_fit_are_read(tmp_path: Path) -> None:
    security = load(security_of(tmp_path))

    assert security.is_encrypted
    assert security.checks_clients
    assert security.tokens == (TOKEN,)
    assert security.authority_pem == AUTHORITY.certificate_pem


def test_neither_key_nor_token_is_shown(tmp_path: Path) -> None:
    config = security_of(tmp_path)
    security = load(config)

    shown = f"{security!r} {msgspec.json.encode(config).decode()}"
    assert TOKEN not in shown
    assert "PRIVATE" not in shown


def test_some_of_the_files_are_not_enough(tmp_path: Path) -> None:
    files = write_files(tmp_path)

    with pytest.raises(InvalidConfig, match="belong together"):
        override(DeploymentConfig(), {"security.tls_cert_file": files["tls_cert_file"]})


def test_a_missing_file_is_named_with_its_setting(tmp_path: Path) -> None:
    config = security_of(tmp_path)

    for setting in ("tls_cert_file", "tls_key_file", "tls_ca_file", "token_file"):
        with pytest.raises(InvalidConfig, match=rf"security\.{setting}: cannot read .*none"):
            load(changed(config, **{setting: str(tmp_path / "none")}))


def test_what_is_no_pem_is_named(tmp_path: Path) -> None:
    config = security_of(tmp_path)
    (tmp_path / "junk").write_text("junk")

    for setting in ("tls_cert_file", "tls_key_file", "tls_ca_file"):
        with pytest.raises(InvalidConfig, match=rf"security\.{setting} holds no PEM"):
            load(changed(config, **{setting: str(tmp_path / "junk")}))


def test_the_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    own, other = issue(AUTHORITY, "baton", NOW, 1), issue(AUTHORITY, "baton", NOW, 1)
    mixed = Issued(certificate_pem=own.certificate_pem, key_pem=other.key_pem)

    with pytest.raises(InvalidConfig, match="tls_key_file is not the key of the certificate"):
        load(security_of(tmp_path, own=mixed))


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"tls_cert_file expired on .*; renew it"):
        load(security_of(tmp_path, own=expired()))


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    foreign = issue(OTHER_AUTHORITY, "baton", NOW, 1)

    with pytest.raises(InvalidConfig, match=r"not signed by an authority in security\.tls_ca_file"):
        load(security_of(tmp_path, own=foreign))


def test_a_certificate_without_the_name_of_all_servers_is_refused(tmp_path: Path) -> None:
    config = security_of(tmp_path, server_name="replica.example")

    with pytest.raises(InvalidConfig, match=r"'baton', but replica\.example; set security\.tls_"):
        load(config)

    assert load(changed(config, tls_server_name="replica.example")).is_encrypted


def test_an_empty_or_guessable_token_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    for text, complaint in (("\n", "is empty"), ("secret", "guessed"), ("ü" * 20, "ASCII")):
        token.write_text(text)
        with pytest.raises(InvalidConfig, match=complaint):
            load(SecurityConfig(token_file=str(token)))


def test_the_token_may_come_from_the_environment_of_each_node() -> None:
    assert load(SecurityConfig(), {"BATON_CLUSTER_TOKEN": TOKEN}).tokens == (TOKEN,)


def test_a_token_over_plain_text_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    load(SecurityConfig(), {"BATON_CLUSTER_TOKEN": TOKEN})

    assert "travels in plain text" in caplog.text


def test_renewed_files_are_read_and_broken_ones_take_nothing_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = load(security_of(tmp_path))

    (tmp_path / "tls_cert_file").write_text("half a certific")
    assert first.now() == first
    assert "the renewed security files are not used: security.tls_cert_file" in caplog.text

    write_files(tmp_path, token="the-next-token-of-it\n" + TOKEN)
    renewed = first.now()
    assert renewed.certificate_pem != first.certificate_pem
    assert renewed.tokens == ("the-next-token-of-it", TOKEN)
    assert first.now() is renewed


def test_a_configured_transport_must_encrypt_or_be_allowed_not_to(tmp_path: Path) -> None:
    secured = {f"security.{name}": path for name, path in write_files(tmp_path).items()}
    by_gloo = {**secured, "transfer.transport": "gloo"}

    with pytest.raises(InvalidConfig, match=r"'gloo' does not encrypt.*transfer\.allow_plain"):
        override(DeploymentConfig(), by_gloo)

    allowed = override(DeploymentConfig(), {**by_gloo, "transfer.allow_plain": True})
    assert allowed.transfer.transport == "gloo"
    assert override(DeploymentConfig(), {**secured, "transfer.transport": "auto"})


@pytest.mark.parametrize("transport", ["tcp", "gloo", "nccl", "nixl", "nobody_has_looked_at_yet"])
def test_kv_does_not_travel_past_the_encryption_unless_allowed(
    tmp_path: Path, transport: str
) -> None:
    config = security_of(tmp_path)

    assert not load(config).may_carry_kv(transport)
    assert load(config).may_carry_kv("grpc")
    assert load(config).may_carry_kv("shm")
    assert load_security(config, allows_plain_kv=True).may_carry_kv(transport)
    assert PLAIN.may_carry_kv(transport)
