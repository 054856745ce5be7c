"""`baton certs` writes what the `security` section wants, and says what to put there."""

from __future__ import annotations

from pathlib import Path

import msgspec
from typer.testing import CliRunner

from baton.platform.cli.main import app
from baton.platform.config.deployment import parse_config
from baton.platform.security.connections import load_security


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["certs", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_what_it_prints_is_a_configuration_that_works(tmp_path: Path) -> None:
    status, printed, _ = run(str(tmp_path / "certs"))

    config = parse_config(msgspec.yaml.decode(printed))
    security = load_security(config.security, environment={})
    assert status == 0
    assert security.is_encrypted
    assert len(security.tokens) == 1


def test_keys_and_token_are_for_their_owner_alone(tmp_path: Path) -> None:
    run(str(tmp_path))

    for name in ("ca.key", "baton.key", "token"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    run(str(tmp_path))
    before = (tmp_path / "ca.pem").read_bytes()

    status, _, complaint = run(str(tmp_path))

    assert status == 2
    assert "--renew" in complaint
    assert (tmp_path / "ca.pem").read_bytes() == before


def test_a_renewed_certificate_is_of_the_same_authority_and_token(tmp_path: Path) -> None:
    _, printed, _ = run(str(tmp_path))
    first = load_security(parse_config(msgspec.yaml.decode(printed)).security, environment={})

    status, _, _ = run(str(tmp_path), "--renew", "--days", "7")

    renewed = first.now()
    assert status == 0
    assert renewed.certificate_pem != first.certificate_pem
    assert (renewed.authority_pem, renewed.tokens) == (first.authority_pem, first.tokens)


def test_an_authority_that_is_not_there_cannot_renew(tmp_path: Path) -> None:
    status, _, complaint = run(str(tmp_path), "--renew")

    assert status == 2
    assert "ca.pem" in complaint


def test_a_folder_that_cannot_be_is_told_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")

    status, _, complaint = run(str(file / "certs"))

    assert status == 2
    assert "Not a directory; choose another folder" in complaint
