"""The gateway's identity, for clients that want to be sure: a certificate and its key."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from baton.core.errors import InvalidConfig
from baton.gateway.access.config import GatewayConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsIdentity:
    """Files that have been seen to fit together."""

    cert_file: str
    key_file: str

    def read(self) -> tuple[bytes, bytes]:
        """The key and the certificate, as gRPC takes them."""
        return Path(self.key_file).read_bytes(), Path(self.cert_file).read_bytes()


def tls_identity(config: GatewayConfig) -> TlsIdentity | None:
    """None: no encryption. Raises InvalidConfig, naming the setting that is at fault.

    Needs no model and no port, so that `baton serve` can find mistakes before it starts anything.
    """
    if not config.tls_cert_file:
        return None
    _read("gateway.tls_cert_file", config.tls_cert_file)
    _read("gateway.tls_key_file", config.tls_key_file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An encrypted key would ask for its passphrase on the terminal.
        context.load_cert_chain(config.tls_cert_file, config.tls_key_file, password=_refuse)
    except ssl.SSLError as error:
        key = _at_fault(config.tls_cert_file)
        raise InvalidConfig(f"{key} cannot be used: {error.reason or error}") from error
    return TlsIdentity(cert_file=config.tls_cert_file, key_file=config.tls_key_file)


def _read(key: str, path: str) -> None:
    try:
        Path(path).read_bytes()
    except OSError as error:
        raise InvalidConfig(f"{key}: cannot read {path}: {error.strerror}") from error


def _refuse() -> str:
    raise InvalidConfig("gateway.tls_key_file is encrypted; give the key without a passphrase")


def _at_fault(cert_file: str) -> str:
    """The certificate if it cannot be read on its own, else its key."""
    try:
        ssl.create_default_context(cafile=cert_file)
    except ssl.SSLError:
        return "gateway.tls_cert_file"
    return "gateway.tls_key_file"
