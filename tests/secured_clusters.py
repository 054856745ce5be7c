"""The files of a cluster whose connections are secured, as `baton certs` writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from baton.platform.security.certificate_authority import Issued, issue, make_authority
from baton.platform.security.config import SecurityConfig

NOW = datetime.now(UTC)
TOKEN = "a-token-of-this-cluster"
AUTHORITY = make_authority("the cluster's authority", NOW, days=2)
OTHER_AUTHORITY = make_authority("somebody else", NOW, days=2)


def expired(authority: Issued = AUTHORITY) -> Issued:
    return issue(authority, "baton", NOW - timedelta(days=3), days=1)


def write_files(
    folder: Path,
    *,
    authority: Issued = AUTHORITY,
    own: Issued | None = None,
    token: str = TOKEN,
    server_name: str = "baton",
) -> dict[str, str]:
    """The `security` settings of a process that has these files."""
    folder.mkdir(exist_ok=True)
    own = own or issue(authority, server_name, NOW, days=1)
    contents = {
        "tls_cert_file": own.certificate_pem,
        "tls_key_file": own.key_pem,
        "tls_ca_file": authority.certificate_pem,
        "token_file": f"{token}\n".encode(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: str(folder / name) for name in contents if name != "token_file" or token}


def security_of(folder: Path, **what: Any) -> SecurityConfig:
    return msgspec.convert(write_files(folder, **what), SecurityConfig)
