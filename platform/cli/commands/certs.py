"""`baton certs`: makes the certificates and token for the `security` section of a configuration."""

from __future__ import annotations

import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from baton.core.errors import InvalidConfig
from baton.platform.cli.terminal.errors import errors_in_one_line
from baton.platform.security.certificate_authority import Issued, issue, make_authority

AUTHORITY_DAYS = 3650
TOKEN_BYTES = 32


def certs(
    folder: Annotated[Path, typer.Argument(help="Where to write; made if it is not there.")],
    name: Annotated[str, typer.Option(help="security.tls_server_name.")] = "baton",
    days: Annotated[int, typer.Option(help="How long the certificate is valid.", min=1)] = 365,
    renew: Annotated[
        bool, typer.Option("--renew", help="Issue another certificate of the same authority.")
    ] = False,
) -> None:
    """Make an authority, a certificate for all replicas and gateways, and a cluster token."""
    with errors_in_one_line("baton certs"):
        now = datetime.now(UTC)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            authority = _known_authority(folder) if renew else _new_authority(folder, now)
            _write_all(folder, "baton", issue(authority, name, now, days))
        except OSError as error:
            where = error.filename or folder
            raise InvalidConfig(f"{where}: {error.strerror}; choose another folder") from error
    typer.echo(_as_configuration(folder.absolute(), name))


def _new_authority(folder: Path, now: datetime) -> Issued:
    for path in (folder / "ca.pem", folder / "ca.key", folder / "token"):
        if path.exists():
            raise InvalidConfig(
                f"{path} already exists; choose another folder, or renew the certificate with "
                "--renew"
            )
    authority = make_authority("Baton cluster authority", now, AUTHORITY_DAYS)
    _write_all(folder, "ca", authority)
    _write(folder / "token", f"{secrets.token_hex(TOKEN_BYTES)}\n".encode(), 0o600)
    return authority


def _known_authority(folder: Path) -> Issued:
    return Issued(
        certificate_pem=(folder / "ca.pem").read_bytes(), key_pem=(folder / "ca.key").read_bytes()
    )


def _write_all(folder: Path, name: str, issued: Issued) -> None:
    """Write the key first: a process that reads in between finds a mismatch, and waits."""
    _write(folder / f"{name}.key", issued.key_pem, 0o600)
    _write(folder / f"{name}.pem", issued.certificate_pem, 0o644)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Replace the file atomically: processes may be reading the old one."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    fresh.replace(path)


def _as_configuration(folder: Path, name: str) -> str:
    return (
        "# for the deployment's YAML; every node needs all of these but ca.key, which signs more\n"
        "security:\n"
        f"  tls_cert_file: {folder / 'baton.pem'}\n"
        f"  tls_key_file: {folder / 'baton.key'}\n"
        f"  tls_ca_file: {folder / 'ca.pem'}\n"
        f"  tls_server_name: {name}\n"
        f"  token_file: {folder / 'token'}"
    )
